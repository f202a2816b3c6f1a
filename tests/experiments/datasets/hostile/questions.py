"""Questions about photographs: their lists, their pictures, and features of regions."""

import gzip
import io
import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import safetensors.torch
import torch

from experiments.datasets.graphs.masked import read_own_graph
from experiments.datasets.images import mobilenet
from experiments.datasets.questions.load import PhotographOptions, load_photo_questions
from experiments.datasets.questions.readers.vqa_v2 import read_pairs
from experiments.datasets.questions.region_files import region_features
from tests.experiments.datasets.hostile.arrays import npy, npz, objects, telling
from tests.experiments.datasets.hostile.case import Case, Content, anywhere, directory, later, link_to
from tests.experiments.datasets.hostile.pictures import EPS, picture, tar


def archive(**values: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


# VQA v2

QUESTION = {"image_id": 9, "question": "Is there a cat?", "question_id": 1}
ANNOTATION = {"image_id": 9, "question_id": 1, "answers": [{"answer": "yes"}], "answer_type": "yes/no"}
DEEP = b"[" * 10**5


def asked(**changes: object) -> bytes:
    return json.dumps({"questions": [QUESTION | changes]}).encode()


def answered(**changes: object) -> bytes:
    return json.dumps({"annotations": [ANNOTATION | changes]}).encode()


def read_vqa(root: Path) -> object:
    packed = root / "questions.json.gz"
    return read_pairs(packed if packed.exists() else root / "questions.json", root / "annotations.json")


def vqa(name: str, seen: str, file: str = "questions.json", **files: Content) -> Case:
    """Questions and annotations, of which one is another file; its name has _ for the dot."""
    whole: dict[str, Content] = {"questions.json": asked(), "annotations.json": answered()}
    named = {key.replace("_json", ".json").replace("_gz", ".gz"): content for key, content in files.items()}
    return Case(f"VQA: {name}", read_vqa, whole | named, file, seen)


PAIRS = [
    vqa(f"question, {name}", seen, questions_json=content)
    for name, content, seen in [
        ("empty", b"", "expected an intact JSON file"),
        ("deep", DEEP, "expected an intact JSON file"),
        ("deep dictionaries", b'{"a":' * 10**5, "expected an intact JSON file"),
        ("long number", b'{"a": ' + b"1" * 5000 + b"}", "expected an intact JSON file"),
        ("other encoding", b'{"a": "\xff"}', "expected an intact JSON file"),
        ("cut off", asked()[:-5], "expected an intact JSON file"),
        ("web page", b"<html>", "expected an intact JSON file"),
        ("a list", b"[]", "questions is None; expected a list"),
        ("a text for the list", b'{"questions": "abc"}', "questions is 'abc'; expected a list"),
        ("lists in it", b'{"questions": [[]]}', "question_id None; expected a number"),
        ("text for a number", asked(question_id="1"), "question_id '1'; expected a number"),
        ("fraction for a number", asked(question_id=1.0), "question_id 1.0; expected a number"),
        ("another number", asked(question_id=2**70), "is not in annotations.json"),
        ("photograph that is a path", asked(image_id="../../secret.jpg"), "image_id is '../../secret.jpg'"),
        ("photograph that is nothing", asked(image_id=None), "image_id is None"),
        ("question that is a list", asked(question=["a"]), "the question is list"),
        ("question without a word", asked(question="?!"), "expected a text with a word"),
        ("twice", json.dumps({"questions": [QUESTION, QUESTION]}).encode(), "is there twice"),
    ]
]
PAIRS += [
    vqa(f"annotation, {name}", seen, file, annotations_json=content)
    for name, content, seen, file in [
        ("empty", b"", "expected an intact JSON file", "annotations.json"),
        ("deep", DEEP, "expected an intact JSON file", "annotations.json"),
        ("no answers", answered(answers=[]), "answers are list", "annotations.json"),
        ("answers that are text", answered(answers="yes"), "answers are 'yes'", "annotations.json"),
        ("answers that are numbers", answered(answers=[1]), "answers are list", "annotations.json"),
        ("answers in lists", answered(answers=[["yes"]]), "answers are list", "annotations.json"),
        ("another photograph", answered(image_id=[9]), "it is about photograph list", "annotations.json"),
        ("none", b'{"annotations": []}', "is not in annotations.json", "questions.json"),
    ]
]
PAIRS += [
    vqa("no archive", "expected an intact JSON file", "questions.json.gz", questions_json_gz=b"\x1f\x8bno"),
    vqa("archive cut off", "expected", "questions.json.gz", questions_json_gz=gzip.compress(asked())[:-9]),
    vqa(
        "archive of zeros",
        "expected",
        "questions.json.gz",
        questions_json_gz=later(lambda: gzip.compress(bytes(2**22))),
    ),
]
PAIRS += [
    case._replace(files=case.files | {"annotations.json": answered()})
    for case in anywhere("VQA", read_vqa, "questions.json")
]


# easy-VQA and DAQUAR


def easy(name: str, file: str, content: Content, seen: str) -> Case:
    row = ["is there a red shape?", "yes", 0]
    files: dict[str, Content] = {"answers.txt": b"red\nyes\nno\n"}
    for split in ("train", "test"):
        files |= {
            f"{split}_images.npz": archive(images=np.zeros((2, 8, 8, 3), np.uint8)),
            f"{split}_questions.json": json.dumps([row]).encode(),
        }
    files = {f"easy-vqa/{path}": value for path, value in (files | {file: content}).items()}
    return Case(f"easy-VQA: {name}", load_easy, files, f"easy-vqa/{file}", seen)


def load_easy(root: Path) -> object:
    return load_photos("easy_vqa", root)


def load_daquar(root: Path) -> object:
    return load_photos("daquar", root)


def load_photos(name: str, root: Path) -> object:
    with TemporaryDirectory() as cache:
        return load_photo_questions(name, PhotographOptions(train=False, cache=Path(cache)), data_root=root)


def rows(*found: object) -> bytes:
    return json.dumps(list(found)).encode()


EASY = [
    *(
        easy(name, "train_questions.json", content, seen)
        for name, content, seen in [
            ("deep", DEEP, "expected an intact JSON file"),
            ("dictionary", b"{}", "it holds dict; expected a list"),
            ("no question", b"[]", "expected a list of questions"),
            ("dictionaries", rows({}), "question 1 is dict"),
            ("two cells", rows(["a", "yes"]), "question 1 is list"),
            ("picture that is text", rows(["a", "yes", "../x"]), "question 1 is list"),
            ("picture below zero", rows(["a b", "yes", -1]), "there is no picture -1"),
            ("picture 10 ** 30", rows(["a b", "yes", 10**30]), "there is no picture"),
            ("answer that is a list", rows(["a b", "perhaps", 0]), "the answer is 'perhaps'"),
            ("question that is a number", rows([3, "yes", 0]), "the question is 3"),
        ]
    ),
    *(
        easy(name, "train_images.npz", content, seen)
        for name, content, seen in [
            ("objects", npz(("images.npy", objects())), "Python objects"),
            ("terabytes", npz(("images.npy", npy("'|u1'", f"({10**6}, 1000, 1000, 3)"))), "its header promises"),
            ("no pictures", archive(pictures=np.zeros(3)), "images is missing"),
            ("other type", archive(images=np.zeros((2, 8, 8, 3))), "images is float64"),
            ("other shape", archive(images=np.zeros((2, 8, 8), np.uint8)), "images is uint8 [2, 8, 8]"),
            ("bomb that tells its size", telling(npz(("images.npy", bytes(9))), 2**32 - 2), "unpacked, it has"),
            ("directory", directory, "is a directory"),
        ]
    ),
]


def daquar(name: str, file: str, content: Content, seen: str, *, named: str | None = None, **more: Content) -> Case:
    files: dict[str, Content] = {
        "text/train_images_list.txt": b"image1\nimage2\n",
        "text/test_images_list.txt": b"image3\n",
        "text/data.csv": b"question,answer,image_id\nwhat is there,lamp,image1\nhow many,2,image3\n",
        **{f"images/image{place}.png": picture("PNG") for place in (1, 2, 3)},
    }
    files = {f"daquar/{path}": value for path, value in (files | {file: content} | more).items()}
    return Case(f"DAQUAR: {name}", load_daquar, files, f"daquar/{named or file}", seen)


HEAD = b"question,answer,image_id\n"
DAQUAR = [
    *(
        daquar(name, "text/data.csv", content, seen)
        for name, content, seen in [
            ("other encoding", b"\xff\n", "expected UTF-8"),
            ("photograph of elsewhere", HEAD + b"what is,lamp,../../../secret.jpg\n", "is in neither list of images"),
            ("cells too few", HEAD + b"what is\n", "is in neither list of images"),
            ("long cell", HEAD + b"x" * 200_000 + b",a,image1\n", "field larger than field limit"),
            ("no answer", HEAD + b"what is,,image1\n", "the question has no answer"),
            ("a quote inside", HEAD + b'"a" b,lamp,image1\n', "expected question,answer,image_id"),
        ]
    ),
    daquar("link to elsewhere", "images/image4.png", link_to("../../../outside/secret.jpg"), "leads out of"),
    daquar("no picture", "images/image1.png", EPS, "no picture"),
    daquar("list in another encoding", "text/train_images_list.txt", b"\xff", "expected UTF-8"),
    Case(
        "DAQUAR: archive of one program", load_daquar,
        {
            "daquar/text/train_images_list.txt": b"a\n", "daquar/text/test_images_list.txt": b"b\n",
            "daquar/text/data.csv": HEAD + b"what is,lamp,a\n", "daquar/images160.tar": tar(content=EPS),
        },
        "daquar/images160.tar", "no picture",
    ),
]  # fmt: skip


# features of regions


def regions(name: str, content: Content, seen: str, file: str = "features/train/9.npz", **more: Content) -> Case:
    return Case(f"regions: {name}", read_regions, {file: content} | more, file, seen)


def read_regions(root: Path) -> object:
    with TemporaryDirectory() as cache:
        return region_features(root / "features", "train", [9], Path(cache))


REGIONS = [
    regions("objects", npz(("features.npy", objects())), "Python objects"),
    regions("terabytes", npz(("features.npy", npy("'<f4'", f"({10**9}, 1000)"))), "its header promises"),
    regions("no features", archive(a=np.zeros((2, 3))), "expected features or x"),
    regions("text", archive(features=np.array([["a"]])), "features are <U1"),
    regions("one dimension", archive(features=np.zeros(3)), "features are float64 [3]"),
    regions("no region", archive(features=np.zeros((0, 3))), "features are float64 [0, 3]"),
    regions("no number", archive(features=np.full((2, 3), np.nan)), "features are NaN or above"),
    regions("without end", archive(features=np.full((2, 3), np.inf)), "features are NaN or above"),
    regions("too large", archive(features=np.full((2, 3), 1e30)), "features are NaN or above"),
    regions("name outside", npz(("../canary.npy", npy())), "expected features or x"),
    regions("no archive", b"no archive", "expected a numpy archive"),
    regions("array with a pickle", objects(), "Python objects", "features/train/9.npy"),
    regions("array of terabytes", npy("'<f4'", f"({10**9}, 1000)"), "promises", "features/train/9.npy"),
    regions(
        "twice",
        archive(features=np.zeros((2, 3))),
        "has features in",
        "features/train/b9.npz",
        **{"features/train/a9.npz": b""},
    ),
    regions(
        "ids of others",
        archive(features=np.zeros((2, 2, 3)), image_ids=np.zeros(3, int)),
        "expected features [",
        "features/train.npz",
    ),
    regions(
        "ids that are text",
        archive(features=np.zeros((1, 2, 3)), image_ids=np.array(["9"])),
        "expected features [",
        "features/train.npz",
    ),
    regions(
        "ids twice",
        archive(features=np.zeros((2, 2, 3)), image_ids=np.array([9, 9])),
        "expected each once",
        "features/train.npz",
    ),
    regions(
        "regions below zero",
        archive(features=np.zeros((1, 2, 3)), image_ids=np.array([9]), num_regions=np.array([-1])),
        "num_regions is",
        "features/train.npz",
    ),
    regions(
        "regions that are not there",
        archive(features=np.zeros((1, 2, 3)), image_ids=np.array([9]), num_regions=np.array([10**9])),
        "num_regions is",
        "features/train.npz",
    ),
]


# graphs of one's own, and weights of encoders


def own(**changes: object) -> bytes:
    values = {"y": np.arange(8) % 2, "edge_index": np.array([[0, 1], [1, 2]]), "x": np.eye(8, 3, dtype=np.float32)}
    return archive(**{name: value for name, value in (values | changes).items() if value is not None})


CSR = {"x": None, "x_data": np.ones(8), "x_indices": np.zeros(8, int), "x_indptr": np.arange(9)}
MASK = np.arange(8) < 4
GRAPHS = [
    Case(f"own graph: {name}", lambda root: read_own_graph(root / "mine.npz"), {"mine.npz": content}, "mine.npz", seen)
    for name, content, seen in [
        ("class 10 ** 12", own(y=np.array([10**12, 0, 0, 0, 0, 0, 0, 0])), "the class 1000000000000 among 8 nodes"),
        ("class -2", own(y=np.array([-2, 0, 0, 0, 0, 0, 0, 0])), "the class -2"),
        ("no class", own(y=-np.ones(8, int)), "none of a known class"),
        ("no node", own(y=np.zeros(0, int)), "0 nodes"),
        ("classes that are fractions", own(y=np.zeros(8)), "expected integer"),
        ("edge to no node", own(edge_index=np.array([[0], [8]])), "expected values from 0 to 7"),
        ("edge below zero", own(edge_index=np.array([[0], [-1]])), "expected values from 0 to 7"),
        ("edge of 2 ** 64 - 1", own(edge_index=np.array([[0], [2**64 - 1]], np.uint64)), "expected values from 0 to 7"),
        ("edges in three rows", own(edge_index=np.zeros((3, 2), int)), "3 rows; expected 2"),
        ("features that are text", own(x=np.array([["a"]] * 8)), "expected number"),
        ("features of others", own(x=np.ones((3, 3))), "3 rows; expected 8"),
        ("features twice", own(x_data=np.ones(3)), "both x and x_data"),
        ("no number", own(x=np.full((8, 3), np.nan)), "expected finite"),
        ("10 ** 12 features", own(**CSR, x_shape=np.array([8, 10**12])), "1000000000000 columns"),
        ("10 ** 12 nodes", own(**CSR, x_shape=np.array([10**12, 3])), "expected x_data, x_indices"),
        ("masks of others", own(train_mask=MASK[:3], val_mask=MASK[:3], test_mask=MASK[:3]), "expected [8]"),
        ("masks that overlap", own(train_mask=MASK, val_mask=MASK, test_mask=~MASK), "expected disjoint"),
        ("one mask", own(train_mask=MASK), "missing among"),
        ("masks that are numbers", own(train_mask=MASK + 0, val_mask=~MASK, test_mask=~MASK), "expected bool"),
    ]
]
EXPECTED = {"a": torch.zeros(2)}


def tensors(header: object, content: bytes = bytes(8), *, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + content


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
WEIGHTS = [
    Case(
        f"encoder weights: {name}", lambda root: mobilenet._weights(root / "a.safetensors", EXPECTED),
        {"a.safetensors": content}, "a.safetensors", seen,
    )
    for name, content, seen in [
        ("header of 2 ** 60 bytes", tensors(b"{}", size=2**60), "expected MobileNetV2"),
        ("header that is no JSON", tensors(b"x" * 9), "expected MobileNetV2"),
        ("deep header", tensors(DEEP), "expected MobileNetV2"),
        ("shape of exabytes", tensors({"a": F32 | {"shape": [2**60]}}), "expected MobileNetV2"),
        ("shape that overflows", tensors({"a": F32 | {"shape": [2**32, 2**32]}}), "expected MobileNetV2"),
        ("numbers outside", tensors({"a": F32 | {"data_offsets": [0, 2**40]}}), "expected MobileNetV2"),
        ("numbers over each other", tensors({"a": F32, "b": F32}), "expected MobileNetV2"),
        ("type that there is not", tensors({"a": F32 | {"dtype": "O"}}), "expected MobileNetV2"),
        ("other names", safetensors.torch.save({"b": torch.zeros(2)}), "a is missing instead of [2]"),
        ("other shape", safetensors.torch.save({"a": torch.zeros(3)}), "a is [3] instead of [2]"),
        ("no number", safetensors.torch.save({"a": torch.full((2,), torch.nan)}), "NaN or infinite weights"),
        ("pickle", b"\x80\x02cos\nsystem\n(S'touch canary'\ntR.", "expected MobileNetV2"),
        ("empty", b"", "expected MobileNetV2"),
    ]
]  # fmt: skip
QUESTIONS = [*PAIRS, *EASY, *DAQUAR, *REGIONS, *GRAPHS, *WEIGHTS]
