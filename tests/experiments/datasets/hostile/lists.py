"""Lists of pictures with captions."""

import json
from pathlib import Path

from experiments.datasets.images.karpathy import read_karpathy
from tests.experiments.datasets.hostile.case import Case, anywhere, link_to
from tests.experiments.datasets.hostile.pictures import picture


def entry(**changes: object) -> dict[str, object]:
    return {"filename": "a.jpg", "split": "val", "sentences": [{"raw": "A cat ."}]} | changes


def listing(*, name: object = "mine", images: object = None, **changes: object) -> bytes:
    return json.dumps({"dataset": name, "images": [entry(**changes)] if images is None else images}).encode()


def read_list(root: Path) -> object:
    return read_karpathy(root / "list.json", root / "pictures", "val", skip=True)


NAMES = ("../x", "/tmp/x", "a/../../x", "a/b", "", ".", "..", "x" * 200, "a\nb", "a\0b", "\ud800", "~")
ELSEWHERE = (
    "../secret.jpg",
    "../../outside/secret.jpg",
    "a/../../secret.jpg",
    "/etc/passwd",
    "/dev/zero",
    "link.jpg",
    "out/secret.jpg",
)
LISTS = [
    Case(
        f"list: {name}",
        read_list,
        {"pictures/a.jpg": picture(), "secret.jpg": picture(), "list.json": content}
        | {"pictures/link.jpg": link_to("../secret.jpg"), "pictures/out": link_to("../../outside")},
        "list.json",
        seen,
    )
    for name, content, seen in [
        *((f"name {name[:9]!r}", listing(name=name), "'dataset' is ") for name in NAMES),
        *((f"picture {name!r}", listing(filename=name), "image 1: ") for name in ELSEWHERE),
        ("folder", listing(filepath="../.."), "leads out of"),
        ("absolute folder", listing(filepath="/etc", filename="passwd"), "leads out of"),
        ("zero byte", listing(filename="a\0.jpg"), "image 1: "),
        ("half a character in a name", listing(filename="\ud800.jpg"), "image 1: "),
        ("half a character in a caption", listing(sentences=[{"raw": "a \ud800"}]), "image 1: Unicode"),
        ("long name", listing(filename="x" * 5000), "image 1: "),
        ("picture that is a folder", listing(filename="."), "is a directory"),
        ("name that is a number", listing(name=3), "'dataset' is 3; expected a name"),
        ("name that is a list", listing(name=[["a"] * 999] * 999), "'dataset' is list; expected a name"),
        ("images that are a number", listing(images=3), "expected the keys 'dataset' and 'images'"),
        ("images that are a dictionary", listing(images={"a": entry()}), "image 1: TypeError"),
        ("images that are lists", listing(images=[[[]]]), "image 1: TypeError"),
        ("number for a name of a file", listing(filename=3), "image 1: TypeError"),
        ("nothing for a folder", listing(filepath=None), "image 1: TypeError"),
        ("sentences that are text", listing(sentences="abc"), "image 1: TypeError"),
        ("caption that is a number", listing(sentences=[{"raw": 7}]), "image 1: AttributeError"),
        ("no sentences", json.dumps({"dataset": "a", "images": [{"split": "val"}]}).encode(), "image 1: KeyError"),
        ("nested lists", b"[" * 10**5, "recursion depth"),
        ("nested dictionaries", b'{"a":' * 10**5, "recursion depth"),
        ("number of 5000 digits", b"1" * 5000, "digits"),
        ("other encoding", b"\xff\xfe\xff", "expected a JSON object"),
        ("cut off", listing()[:-9], "expected a JSON object"),
        ("empty", b"", "expected a JSON object"),
        ("a number", b"3", "expected a JSON object"),
        ("no number", b"NaN", "expected a JSON object"),
    ]
]
LISTS += anywhere("list", read_list, "list.json")
