"""Tiny files in the format of RACE: the right option is one of the first five words, which is in the passage."""

import json
from pathlib import Path
from typing import Any

import torch

from tests.experiments.finetune.tiny_glue import WORDS


def passage(generator: torch.Generator, *, questions: int = 2, options: int = 4) -> dict[str, Any]:
    """A passage with questions; every other one has a blank for the option."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    words = [WORDS[draw(10, len(WORDS))] for _ in range(draw(3, 8))]
    content: dict[str, Any] = {"article": "", "questions": [], "options": [], "answers": [], "id": "tiny.txt"}
    named = WORDS[draw(0, 5)]
    words[draw(0, len(words))] = named
    for number in range(questions):
        chosen = [WORDS[5 + index] for index in torch.randperm(5, generator=generator)[:options].tolist()]
        answer = draw(0, options)
        chosen[answer] = named
        content["questions"].append("word1 ?" if number % 2 else "_ is named")
        content["options"].append(chosen)
        content["answers"].append("ABCDEFGH"[answer])
    return content | {"article": " ".join(words)}


def write_race(root: Path, *, train: int = 12, test: int = 6, options: int = 4) -> Path:
    """Passages of two questions each below a folder, which is returned; half as many to train on in each level."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", train), ("dev", test), ("test", test)):
        for level in ("middle", "high"):
            folder = root / "RACE" / part / level
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count // 2):
                (folder / f"{number}.txt").write_text(json.dumps(passage(generator, options=options)))
    return root
