"""Tiny sets of questions about photographs, in the formats of the published ones."""

import gzip
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


VQA = {"train": (9, 25, 30), "val": (42, 73)}


def vqa_rows(number: int, more: int = 0) -> np.ndarray:
    """Features of the regions of a photograph, from 2 to 4 of them, and more."""
    return np.random.default_rng(number + more).normal(size=(2 + more + number % 3, 4)).astype(np.float32)


def write_vqa_v2(root: Path, form: str = "npy", *, packed: bool = False, excerpt: bool = False) -> Path:
    """Two questions about every photograph, ten answers each, and features in one of the forms."""
    folder = root / "vqa_v2"
    (folder / "features").mkdir(parents=True)
    for split, photographs in (VQA | {"test": (80, 81)} if excerpt else VQA).items():
        questions, annotations = [], []
        for photograph in photographs:
            for place, text in enumerate(("Is there a cat?", "What color is the cat's hat?")):
                number = photograph * 1000 + place
                questions.append({"image_id": photograph, "question": text, "question_id": number})
                given = ["yes"] * 10 if place == 0 else ["red"] * 6 + ["the dark, red"] * 3 + ["dark red"]
                answers = [
                    {"answer": text, "answer_confidence": "yes", "answer_id": person}
                    for person, text in enumerate(given, 1)
                ]
                kind = "yes/no" if place == 0 else "other"
                annotations.append(
                    {"question_type": "is there a", "multiple_choice_answer": given[0], "answers": answers,
                     "image_id": photograph, "answer_type": kind, "question_id": number}
                )  # fmt: skip
        names = (
            (f"{split}_questions.json", f"{split}_annotations.json")
            if excerpt
            else (f"v2_OpenEnded_mscoco_{split}2014_questions.json", f"v2_mscoco_{split}2014_annotations.json")
        )
        for name, content in zip(names, ({"questions": questions}, {"annotations": annotations}), strict=True):
            text = json.dumps(content).encode()
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(text) if packed else text)
        if form != "none":
            write_features(folder / "features" / (split if excerpt else f"{split}2014"), photographs, form)
    return folder


def write_features(folder: Path, photographs: tuple[int, ...], form: str, more: int = 0) -> None:
    """Features in a file of every photograph (npy, npz, mcan)."""
    folder.mkdir()
    for number in (*photographs, 999):  # nobody asks about the last
        rows = vqa_rows(number, more)
        if form == "npy":
            np.save(folder / f"{number}.npy", rows)
        elif form == "npz":
            np.savez(folder / f"{number:012d}.npz", features=rows)
        else:
            boxes = np.zeros((len(rows), 4), np.float32)
            np.savez(folder / f"COCO_{folder.name}_{number:012d}.jpg.npz", x=rows.T, bbox=boxes)
