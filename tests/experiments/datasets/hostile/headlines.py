"""Texts with headlines."""

from experiments.datasets.text.headlines import read_headlines
from tests.experiments.datasets.hostile.case import Case, anywhere


def headlines(content: bytes, seen: str, name: str, file: str = "news.jsonl") -> Case:
    return Case(f"headlines: {name}", lambda root: read_headlines(root / file), {file: content}, file, seen)


HEADLINES = anywhere("headlines", lambda root: read_headlines(root / "news.jsonl"), "news.jsonl")
HEADLINES += [
    headlines(b"", "is empty", "empty"),
    headlines(b"[" * 100_000, "line 1 is no JSON", "deep"),
    headlines(b'{"text": ' + b"1" * 10_000 + b"}", "line 1 is no JSON", "long number"),
    headlines(b'{"text": "\xff"}', "line 1 is no JSON", "other encoding"),
    headlines(bytes(99), "line 1 is no JSON", "zero bytes"),
    headlines(b'{"summaries": ["' + b"x" * 10**6 + b'"], "text": 7}', "'text' is 7", "number"),
    headlines(b'{"summaries": ["a"], "text": "' + b"x" * 10**6 + b'"}', "1000000 letters", "long text"),
    headlines(b'{"summaries": ["\\ud800"], "text": "a"}', "holds half a character", "surrogate"),
    headlines(b"\x1f\x8bno", "is no gzip archive", "no archive", "news.jsonl.gz"),
]
