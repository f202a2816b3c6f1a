"""Plain text and vocabularies."""

import json
from pathlib import Path

from experiments.datasets.images.captions import load_captions
from experiments.datasets.text.glue import load_glue
from experiments.datasets.text.parallel import load_parallel
from experiments.datasets.text.parallel_text import read_parallel
from experiments.datasets.text.squad import read_squad
from experiments.datasets.text.sst2 import load_sst2
from experiments.datasets.text.vocabulary import Vocabulary
from pyro_attention.analysis import read_naacl, read_pharaoh
from tests.experiments.datasets.hostile.case import Case, Content, anywhere, link_to
from tests.experiments.datasets.hostile.pictures import picture

SENTENCES = b"sentence\tlabel\na film\t1\n"


def reviews(content: bytes, seen: str, name: str) -> Case:
    path = "glue/SST-2/train.tsv"
    return Case(f"reviews: {name}", read_reviews, {path: content}, path, seen)


def read_reviews(root: Path) -> object:
    return load_sst2(data_root=root)


def read_paraphrases(root: Path) -> object:
    return load_glue("mrpc", data_root=root)


def squad(content: bytes, seen: str, name: str, file: str = "squad.json") -> Case:
    return Case(f"SQuAD: {name}", lambda root: read_squad(root / file), {file: content}, file, seen)


def flickr8k(name: str, file: str, content: bytes, seen: str, *, named: str | None = None) -> Case:
    """Flickr8k with one file of its text replaced."""
    text = {"Flickr8k.token.txt": b"a.jpg#0\tA dog .\n", "Flickr_8k.devImages.txt": b"a.jpg\n"} | {file: content}
    files = {f"flickr8k/{path}": value for path, value in text.items()}
    files |= {"flickr8k/images/a.jpg": picture(), "flickr8k/images/link.jpg": link_to("../../../outside/secret.jpg")}
    return Case(f"Flickr8k: {name}", read_flickr8k, files, f"flickr8k/{named or file}", seen)


def read_flickr8k(root: Path) -> object:
    return load_captions("flickr8k", "val", data_root=root)


def pairs(root: Path) -> object:
    return read_parallel(root / "a.de", root / "a.en", languages=("de", "en"))


def gold(root: Path) -> object:
    return read_pharaoh(root / "gold.txt")


def columns(root: Path) -> object:
    return read_naacl(root / "gold.wa")


def speeches(root: Path) -> object:
    return load_parallel("europarl_de_en", "train", data_root=root)


def linked(root: Path) -> object:
    return load_parallel("europarl_de_en", "test", data_root=root)


def vocabulary(root: Path) -> object:
    return Vocabulary.load(root / "vocabulary.json")


# The library cuts off a prefix of six letters from a piece of one.
PANIC = {
    "type": "BPE",
    "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]],
    "continuing_subword_prefix": "######",
}
EUROPARL, LINKS = "europarl-de-en", "europarl-de-en/gold/de-en.wa"
LINKED: dict[str, Content] = {f"{EUROPARL}/gold/test.de": b"a\n", f"{EUROPARL}/gold/test.en": b"a\n"}
PACKED: dict[str, Content] = {f"{EUROPARL}/train.de.gz": b"\x1f\x8bno", f"{EUROPARL}/train.en": b"a\n"}
TOKENS, IMAGES = "Flickr8k.token.txt", "Flickr_8k.devImages.txt"
TEXTS = [
    reviews(b"sentence\tlabel\n\xff\t1\n", "line 2 is not UTF-8; expected UTF-8", "other encoding"),
    reviews(b"x" * 10**6, "line 1 is", "one long line"),
    reviews(SENTENCES + b"a\tb\x1b[2J\r\t9\n", "line 3 is [", "signs that move the cursor"),
    reviews(SENTENCES, "1 sentences; expected 2 at least", "one sentence"),
    reviews(b"", "0 sentences; expected 2 at least", "empty"),
    flickr8k("long line", TOKENS, b"x" * 10**6, "line 1 is b'"),
    flickr8k("other encoding", TOKENS, b"a.jpg#0\t\xff\n", "line 1 is b'"),
    flickr8k("zero bytes", TOKENS, bytes(99), "line 1 is b'"),
    flickr8k("long name", IMAGES, b"x" * 10**6, "line 1: 'xxx"),
    flickr8k("lines in a name", IMAGES, "a\u2028b.jpg".encode(), "line 1: 'a\\u2028b.jpg'"),
    flickr8k("picture elsewhere", IMAGES, b"../../secret.jpg\n", "line 1: ../../secret.jpg is missing"),
    flickr8k("link to elsewhere", IMAGES, b"link.jpg\n", "leads out of", named="images/link.jpg"),
    Case("pairs: other encoding", pairs, {"a.de": b"\xff\n", "a.en": b"a\n"}, "a.de", "line 1 is not UTF-8"),
    Case("pairs: another number", pairs, {"a.de": b"a\n", "a.en": b"a\nb\n"}, "a.de", "1 lines, but 2"),
    Case("pairs: zero bytes", pairs, {"a.de": b" \n", "a.en": bytes(9)}, "a.de", "line 1 is empty"),
    Case("gold links: other encoding", gold, {"gold.txt": b"\xff\n"}, "gold.txt", "expected UTF-8"),
    Case("gold links: a number of 5000 digits", gold, {"gold.txt": b"1" * 5000 + b"-0\n"}, "gold.txt", "is no link"),
    Case(
        "gold links: columns without end",
        columns,
        {"gold.wa": b"1 1 " + b"1" * 5000},
        "gold.wa",
        "expected the columns",
    ),
    *(
        Case(f"vocabulary: {name}", vocabulary, {"vocabulary.json": content}, "vocabulary.json", seen)
        for name, content, seen in [
            ("nested", b"[" * 10**5, "no tokenizer"),
            ("other encoding", b"\xff\xfe", "can't decode"),
            ("cut off", b'{"version": "1.0", ', "no tokenizer"),
            ("a number", b"3", "no tokenizer"),
            ("panic", json.dumps({"model": PANIC}).encode(), "no tokenizer"),
            ("other kind", b'{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}}', ""),
        ]
    ),
]
TEXTS += anywhere("reviews", read_reviews, "glue/SST-2/train.tsv")
TEXTS += anywhere("GLUE", read_paraphrases, "glue/MRPC/msr_paraphrase_train.txt")
TEXTS += anywhere("SQuAD", lambda root: read_squad(root / "squad.json"), "squad.json")
TEXTS += [
    squad(b"", "cannot be read", "empty"),
    squad(b"[" * 100_000, "cannot be read", "deep"),
    squad(b'{"data": ' + b"1" * 10_000 + b"}", "cannot be read", "long number"),
    squad(b'{"data": [[[]]]}', "article 1: 'title' is None", "lists"),
    squad(b'{"data": [{"title": "' + b"x" * 10_000 + b'", "paragraphs": [7]}]}', "xxx'...: 'context' is None", "title"),
    squad(b"\x1f\x8bno", "is no gzip archive", "no archive", "squad.json.gz"),
    squad(b'{"data": [{"title": "\\ud800"}]}', "'title' holds half a character", "surrogate"),
]
TEXTS += anywhere("pairs", pairs, "a.de", **{"a.en": b"a\n"})
TEXTS += anywhere("Europarl", speeches, f"{EUROPARL}/train.de", **{f"{EUROPARL}/train.en": b"a\n"})
TEXTS += anywhere("Europarl's links", linked, LINKS, **LINKED)
TEXTS += [
    Case("Europarl: no archive", speeches, PACKED, f"{EUROPARL}/train.de.gz", "is no gzip archive"),
    Case("Europarl's links: zero bytes", linked, LINKED | {LINKS: bytes(9)}, LINKS, "is no link"),
]
TEXTS += anywhere("vocabulary", vocabulary, "vocabulary.json")
TEXTS += anywhere("Flickr8k", read_flickr8k, f"flickr8k/{TOKENS}", **{f"flickr8k/{IMAGES}": b"a.jpg\n"})
