"""Tiny sets of questions about photographs, in the formats of the published ones."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
NAMES = list(COLOURS)


def write_easy_vqa(root: Path, pictures: int = 6) -> Path:
    """Pictures of one colour; each has three questions."""
    folder = root / "easy-vqa"
    folder.mkdir(parents=True)
    (folder / "answers.txt").write_text("\n".join([*COLOURS, "circle", "yes", "no"]))
    for split in ("train", "test"):
        names = [NAMES[place % 3] for place in range(pictures)]
        images = np.array([np.full((64, 64, 3), COLOURS[name], np.uint8) for name in names])
        np.savez(folder / f"{split}_images.npz", images=images)
        asked = [
            ("what color is the shape?", None),
            ("is there a red shape?", "red"),
            ("is no blue shape present?", "blue"),
        ]
        questions = []
        for place, name in enumerate(names):
            for text, about in asked:
                answer = name if about is None else "yes" if (name == about) != ("no" in text.split()) else "no"
                questions.append([text, answer, place])
        (folder / f"{split}_questions.json").write_text(json.dumps(questions))
    return folder


DAQUAR = {"train": ["image1", "image2", "image3", "image4"], "test": ["image5", "image6"]}


def write_daquar(root: Path, *, archive: bool = False) -> Path:
    """Photographs of one colour, with two questions about each; image7 is listed and has none."""
    folder = root / "daquar"
    (folder / "text").mkdir(parents=True)
    files = {}
    for place, name in enumerate(sorted([*DAQUAR["train"], *DAQUAR["test"], "image7"])):
        file = io.BytesIO()
        Image.new("RGB", (40, 30), COLOURS[NAMES[place % 3]]).save(file, "PNG")
        files[f"{name}.png"] = file.getvalue()
    if archive:
        with tarfile.open(folder / "images160.tar", "w") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        (folder / "images").mkdir()
        for name, content in files.items():
            (folder / "images" / name).write_bytes(content)
    rows = ["question,answer,image_id"]
    for split, names in DAQUAR.items():
        rows += [f'what is on the desk,"lamp, table",{name}\nhow many chairs are there,2,{name}' for name in names]
        listed = [*names, "image7"] if split == "train" else names
        (folder / "text" / f"{split}_images_list.txt").write_text("\n".join(listed))
    (folder / "text" / "data.csv").write_text("\n".join(rows) + "\n")
    return folder
