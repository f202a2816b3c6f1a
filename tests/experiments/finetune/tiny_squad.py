"""Tiny files in the format of SQuAD: the answer is the one word of the context that is among the first few words."""

import gzip
import json
from pathlib import Path

import torch

from tests.experiments.finetune.tiny_glue import WORDS

ANSWERS = 4  # these words are answers, the others are none


def article(title: str, questions: int, generator: torch.Generator, *, impossible: bool) -> dict:
    """An article of one question a paragraph; of 2.0 every other question has no answer."""

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    paragraphs = []
    for number in range(questions):
        words = [WORDS[draw(ANSWERS, len(WORDS))] for _ in range(draw(6, 24))]
        entry = {"id": f"{title}-{number}", "question": f"{words[0]} ?", "answers": []}
        if impossible:
            entry["is_impossible"] = bool(number % 2)
        if not entry.get("is_impossible"):
            place, answer = draw(0, len(words)), WORDS[draw(0, ANSWERS)]
            words[place] = answer
            start = len(" ".join(words[:place])) + bool(place)
            entry["answers"] = [{"text": answer, "answer_start": start}] * (1 + impossible)
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    return {"title": title, "paragraphs": paragraphs}


def write_squad(root: Path, *, train: int = 12, test: int = 6) -> Path:
    """Three articles of 1.1 to train on and four of 2.0 below a folder, which is returned; sizes are those of one."""
    generator = torch.Generator().manual_seed(0)
    folder = root / "squad"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "train-v1.1-tiny.json": [(f"train{place}", train, False) for place in range(3)],
        "dev-v2.0.json.gz": [(f"dev{place}", test, True) for place in range(4)],
    }
    for name, articles in files.items():
        data = [article(title, count, generator, impossible=impossible) for title, count, impossible in articles]
        content = json.dumps({"version": "tiny", "data": data}).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return root
