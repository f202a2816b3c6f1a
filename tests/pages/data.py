"""The files that the commands of the pages name, at tiny sizes: the data in DIR, a text and a model in FOLDER, ..."""

import json
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
from torchvision.models import mobilenet_v2

from experiments.data.text.parallel import toy_translation
from tests.experiments.captioning.tiny_captions import COLOURS, photograph, write_flickr8k
from tests.experiments.data.questions.tiny_questions import write_daquar, write_easy_vqa, write_vqa_v2
from tests.experiments.finetune.tiny_glue import WORDS, write_bert, write_glue
from tests.experiments.finetune.tiny_race import write_race
from tests.experiments.finetune.tiny_squad import write_squad
from tests.experiments.graph.tiny_graphs import write_citations, write_splits
from tests.experiments.headlines.tiny_headlines import write_texts
from tests.experiments.nmt.tiny_text import write_text

__all__ = ["write_files"]

ROOT = Path(__file__).parents[2]


def write_files(folder: Path, photographs: dict[str, Any]) -> None:
    """Write everything below a folder, under the names that the pages give it.

    ``photographs`` is the description of one's own that a page shows.
    """
    write_data(folder / "DIR")
    for sizes in ROOT.glob("experiments/*/paper"):
        shutil.copytree(sizes, folder / sizes.relative_to(ROOT))
    write_coco(folder / "DIR" / "coco", photographs)
    write_text(folder / "FOLDER")
    write_bert(folder / "FOLDER", positions=256)
    text = toy_translation(train=1, val=1, test=8)["test"]
    for name in ("some.de", "new.de", "a.de"):
        write_lines(folder / name, text.source)
    for name in ("some.en", "a.en"):
        write_lines(folder / name, text.target)
    write_lines(folder / "my.txt", [f"{WORDS[place]} {WORDS[0]}\t{WORDS[1]}" for place in range(3)])
    write_lines(folder / "questions.txt", [f"{' '.join(WORDS)}\t{WORDS[0]} {WORDS[1]}"])
    shutil.copy(folder / "DIR" / "RACE" / "test" / "high" / "0.txt", folder / "passage.json")
    write_lines(folder / "FILE", ["Police met officials in Rome, they said.", "The president left town on June 12."])
    (folder / "my.jpg").write_bytes(photograph(COLOURS["red"]))
    weights = mobilenet_v2(weights=None, num_classes=1001).state_dict()  # with one for "background"
    safetensors.torch.save_file(weights, folder / "mobilenet_v2_imagenet.safetensors")


def write_data(root: Path) -> None:
    """All data sets below a data root."""
    root.mkdir()
    write_citations(root)
    write_citations(root, name="citeseer", classes=6)
    for name, classes in (
        ("texas", 5),
        ("chameleon_filtered", 5),
        ("squirrel_filtered", 5),
        ("actor", 5),
        ("minesweeper", 2),
    ):
        write_splits(root / "heterophilous" / f"{name}.npz", classes=classes)
    write_multi30k(root / "multi30k" / "task1")
    write_tatoeba(root / "tatoeba-deu-eng")
    write_europarl(root / "europarl-de-en")
    write_flickr8k(root)
    write_easy_vqa(root)
    daquar = write_daquar(root)
    for path in (daquar / "text").iterdir():  # where the page wants them
        path.rename(daquar / path.name)
    write_vqa_v2(root, "none", excerpt=True)
    write_glue(root)
    write_squad(root)
    write_race(root)
    write_texts(root)


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_multi30k(folder: Path) -> None:
    texts = toy_translation(train=24, val=6, test=6)
    for split, stem in {"train": "train", "val": "val", "test": "test_2016_flickr"}.items():
        write_lines(folder / f"{stem}.de", texts[split].source)
        write_lines(folder / f"{stem}.en", texts[split].target)


def write_tatoeba(folder: Path) -> None:
    text = toy_translation(train=40, val=1, test=1)["train"]
    pairs = zip(text.target, text.source, strict=True)
    write_lines(folder / "deu.txt", ["\t".join(pair) for pair in pairs])


def write_europarl(folder: Path) -> None:
    texts = toy_translation(train=32, val=1, test=6)
    for name in ("train", "test"):
        place = folder / "gold" if name == "test" else folder
        write_lines(place / f"{name}.de", texts[name].source)
        write_lines(place / f"{name}.en", texts[name].target)
    (folder / "gold" / "de-en.wa").write_text("".join(f"{links}\n" for links in texts["test"].alignments))


def write_coco(folder: Path, described: dict[str, Any]) -> None:
    """The photographs that are described, and more of them."""
    images = list(described["images"])
    for split, number in (("train", 6), ("val", 3), ("test", 4)):
        for place in range(number):
            sentences = [{"raw": f"A {list(COLOURS)[place % 3]} picture."}, {"raw": "A square with a dark corner."}]
            images.append({"filename": f"{split}{place}.jpg", "split": split, "sentences": sentences})
    folder.mkdir()
    for place, image in enumerate(images):
        (folder / image["filename"]).write_bytes(photograph(list(COLOURS.values())[place % 3]))
    (folder / "dataset_coco.json").write_text(json.dumps(described | {"images": images}))
