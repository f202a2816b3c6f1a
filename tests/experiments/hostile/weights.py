"""Checkpoints of runs, and pretrained models in the format of Hugging Face."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from experiments.harness.checkpoints import read_run, read_weights
from tests.experiments.datasets.hostile.arrays import encrypted, telling
from tests.experiments.datasets.hostile.case import Case, Content, Run, anywhere, later, link_to
from tests.experiments.hostile.formats import run_state, saved


def read_last(root: Path) -> object:
    return read_run(root / "last.ckpt")


def read_best(root: Path) -> object:
    return read_weights(root / "best.ckpt")


def changed(*path: Any, to: object) -> bytes:
    """A last.ckpt with one entry changed."""
    state: Any = run_state()
    part = state
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = to
    return saved(state)


def with_weight(weight: object) -> bytes:
    return changed("state_dict", "objective.weight", to=weight)


def repacked(
    content: bytes,
    change: Callable[[str, bytes], tuple[str, bytes]] = lambda *part: part,
    *,
    method: int = zipfile.ZIP_STORED,
) -> bytes:
    """The parts of a checkpoint, changed or packed in another way."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", method) as new:
        for name in old.namelist():
            new.writestr(*change(name, old.read(name)))
    return file.getvalue()


def renamed(change: Callable[[str], str]) -> bytes:
    """A checkpoint whose parts have other names."""
    return repacked(saved(run_state()), lambda name, part: (change(name), part))


def with_pickle(instructions: bytes) -> bytes:
    """A checkpoint whose objects are made by other instructions."""
    return repacked(saved({}), lambda name, part: (name, instructions if name.endswith("data.pkl") else part))


def bomb() -> bytes:
    """16 MB of zeros, packed."""
    return repacked(saved({"epoch": 0, "state_dict": {"a": torch.zeros(2**22)}}), method=zipfile.ZIP_DEFLATED)


VIEW = torch.zeros(1).expand(10**6, 10**6)
SPARSE = torch.sparse_coo_tensor(
    torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**9, 10**9), check_invariants=True
)
LEGACY = io.BytesIO()
torch.save(run_state(), LEGACY, _use_new_zipfile_serialization=False)
ONE = torch.zeros(2**12)
STORAGE = b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
STORAGE += b"X\x09\x00\x00\x00../canaryX\x03\x00\x00\x00cpuK\x01tQ."
CHECKPOINTS = [
    Case(f"checkpoint: {name}", read_last, {"last.ckpt": content}, "last.ckpt", seen)
    for name, content, seen in [
        ("command", saved({"epoch": 0, "state_dict": Run()}), "cannot be read"),
        ("command among the weights", with_weight(Run()), "cannot be read"),
        ("command in a state", changed("loops", "a", to=Run()), "cannot be read"),
        ("command, written by hand", with_pickle(b"cos\nsystem\n(S'touch canary'\ntR."), "cannot be read"),
        ("evaluates", with_pickle(b"c__builtin__\neval\n(S\"open('canary', 'w')\"\ntR."), "cannot be read"),
        ("makes an instance", with_pickle(b"(S'touch canary'\nios\nsystem\n."), "cannot be read"),
        ("dots", with_pickle(b"\x80\x04\x8c\x05torch\x8c\x0bhub.os.path\x93."), "cannot be read"),
        ("extension", with_pickle(b"\x80\x02\x82\x01."), "cannot be read"),
        ("object of elsewhere", with_pickle(b"Pcanary\n."), "cannot be read"),
        ("part of elsewhere", with_pickle(STORAGE), "cannot be read"),
        ("no objects", with_pickle(b"\x80\x02."), "cannot be read"),
        ("plain pickle", pickle.dumps(Run()), "cannot be read"),
        ("pickle without a command", pickle.dumps(run_state()), "cannot be read"),
        ("of before the archives", LEGACY.getvalue(), "cannot be read"),
        ("packed", repacked(saved(run_state()), method=zipfile.ZIP_DEFLATED), "its parts are packed"),
        ("bzip2", repacked(saved(run_state()), method=zipfile.ZIP_BZIP2), "its parts are packed"),
        ("bomb", later(bomb), "its parts are packed"),
        ("size of 4 GB", telling(saved(run_state()), 2**32 - 2), "larger than the"),
        ("encrypted", encrypted(saved(run_state())), "cannot be read"),
        ("names outside", renamed("../{}".format), "cannot be read"),
        ("names from the root", renamed("/canary/{}".format), "cannot be read"),
        ("no objects' part", renamed(lambda name: name.replace("data.pkl", "x")), "cannot be read"),
        ("parts cut off", repacked(saved(run_state()), lambda name, part: (name, part[:3])), "cannot be read"),
        ("view of terabytes", with_weight(VIEW), "not stored number by number"),
        ("view in the moments", changed("optimizer_states", 0, "state", 0, "exp_avg", to=VIEW), "not stored number"),
        ("sparse of exabytes", with_weight(SPARSE), "cannot be read"),
        ("of no device", with_weight(torch.empty(10**9, device="meta")), "not stored number by number"),
        (
            "the same a thousand times",
            changed("state_dict", to={str(n): ONE[:] for n in range(1000)}),
            "bytes in a file of",
        ),
        ("weights that are numbers", with_weight(1.0), "is a float, expected Tensor"),
        ("weights in a list", changed("state_dict", to=[torch.zeros(3)]), "is a list, expected dict"),
        ("epoch that is text", changed("epoch", to="1"), "is a str, expected int"),
        ("epoch that is a fraction", changed("epoch", to=1.5), "is a float, expected int"),
        ("epoch that is a tensor", changed("epoch", to=torch.zeros(2)), "is a Tensor, expected int"),
        ("version in a list", changed("pytorch-lightning_version", to=["2"]), "is a list, expected str"),
        ("loops in a list", changed("loops", to=[]), "is a list, expected dict"),
        ("no optimizer", changed("optimizer_states", to=[]), "optimizer_states are empty"),
        ("optimizer that is text", changed("optimizer_states", to=["a"]), "is a str, expected dict"),
        (
            "moments that are text",
            changed("optimizer_states", 0, "state", 0, "exp_avg", to="a"),
            "is a str, expected Tensor",
        ),
        (
            "other best weights",
            changed("callbacks", "EarlyStopping", "weights", to={"x": torch.zeros(1)}),
            "other names",
        ),
        ("a tensor", saved(torch.zeros(3)), "is a Tensor, expected dict"),
        ("nothing", saved(None), "is a NoneType, expected dict"),
        ("zero bytes", bytes(9999), "cannot be read"),
        ("empty archive", b"PK\x05\x06" + bytes(18), "cannot be read"),
        ("web page", b"<html>not found</html>", "cannot be read"),
        ("empty", b"", "cannot be read"),
    ]
]
CHECKPOINTS += [case._replace(seen="cannot be read") for case in anywhere("checkpoint", read_last, "last.ckpt")]
CHECKPOINTS += [
    Case(f"weights: {name}", read_best, {"best.ckpt": content}, "best.ckpt", seen)
    for name, content, seen in [
        ("command", saved({"epoch": 0, "state_dict": {"a": Run()}}), "cannot be read"),
        ("bomb", later(bomb), "its parts are packed"),
        ("view of terabytes", saved({"epoch": 0, "state_dict": {"a": VIEW}}), "not stored number by number"),
        ("no weights", saved({"epoch": 0}), "has no state_dict"),
        ("other encoding", b"\xff\xfe", "cannot be read"),
    ]
]
CHECKPOINTS += [case._replace(seen="cannot be read") for case in anywhere("weights", read_best, "best.ckpt")]


# safetensors


def safetensors(header: object, content: bytes = b"", *, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + content


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
SAFETENSORS = {
    "header of 2 ** 60 bytes": safetensors(b"{}", size=2**60),
    "header that is no JSON": safetensors(b"x" * 99),
    "header that is a list": safetensors([1]),
    "numbers that are not there": safetensors({"a": F32}),
    "numbers over each other": safetensors({"a": F32, "b": F32}, bytes(8)),
    "shape of exabytes": safetensors({"a": F32 | {"shape": [2**60]}}, bytes(8)),
    "shape that overflows": safetensors({"a": F32 | {"shape": [2**32, 2**32]}}, bytes(8)),
    "shape below zero": safetensors({"a": F32 | {"shape": [-2]}}, bytes(8)),
    "type that there is not": safetensors({"a": F32 | {"dtype": "O"}}, bytes(8)),
    "weights of another network": safetensors({"a": F32}, bytes(8)),
    "empty weights": b"",
    "weights cut off": bytes(7),
}


def read_best_safetensors(root: Path) -> object:
    return read_weights(root / "best.safetensors")


CHECKPOINTS += [
    Case(f"best weights: {name}", read_best_safetensors, {"best.safetensors": content}, "best.safetensors", seen)
    for content, name, seen in [
        *((content, name, "cannot be read") for name, content in SAFETENSORS.items()),
        (pickle.dumps(Run()), "command", "cannot be read"),
        (saved({"epoch": 0, "state_dict": {}}), "of an earlier release", "cannot be read"),
        (safetensors({"__metadata__": {"crc32": "0"}, "a": F32}, bytes(8)), "another checksum", "the checksum"),
    ]
]
CHECKPOINTS += [
    case._replace(seen="cannot be read") for case in anywhere("best weights", read_best_safetensors, "best.safetensors")
]


# folders of Hugging Face


@cache
def bert() -> dict[str, bytes]:
    """The files of a tiny model."""
    from tests.experiments.finetune.tiny_glue import write_bert  # it imports transformers, which takes seconds

    with TemporaryDirectory() as folder:
        return {path.name: path.read_bytes() for path in write_bert(Path(folder)).iterdir()}


def read_bert(root: Path) -> object:
    from transformers import AutoModelForSequenceClassification

    from experiments.finetune.pretrained import load_network

    return load_network(str(root / "bert"), AutoModelForSequenceClassification)


def read_tokenizer(root: Path) -> object:
    from experiments.finetune.pretrained import load_tokenizer

    return load_tokenizer(str(root / "bert"))


Changes = dict[str, bytes | Callable[[], bytes] | None]


def config(**changes: object) -> Changes:
    """A configuration with changes."""
    return {"config.json": lambda: json.dumps(json.loads(bert()["config.json"]) | changes).encode()}


def model_folder(changes: Changes) -> Content:
    """A folder of a model, of which some files are others; None removes one."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for name, content in (bert() | changes).items():
            if content is not None:
                (folder / name).write_bytes(content() if callable(content) else content)

    return make


CODE = b"open('canary', 'w')\nfrom transformers import BertForSequenceClassification as Model, BertConfig as Config\n"
REMOTE = config(
    auto_map={"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model"}, model_type="mine"
)
SHARDS = json.dumps({"metadata": {}, "weight_map": {"a": "../../outside/x.safetensors"}}).encode()
TOKENIZER = json.dumps({"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Mine"}).encode()
MODELS = [
    (read_bert, "code beside the weights", REMOTE | {"code.py": CODE}),
    (read_bert, "pickled weights", {"model.safetensors": None, "pytorch_model.bin": pickle.dumps(Run())}),
    (read_bert, "shards elsewhere", {"model.safetensors": None, "model.safetensors.index.json": SHARDS}),
    (read_bert, "attention of a hub", config(attn_implementation="canary/kernel")),
    (read_bert, "10 ** 6 wide", config(hidden_size=2**20, intermediate_size=2**20)),
    (read_bert, "10 ** 12 words", config(vocab_size=10**12)),
    (read_bert, "10 ** 9 places", config(max_position_embeddings=2 * 10**9)),
    (read_bert, "size below zero", config(hidden_size=-16)),
    (read_bert, "size of zero", config(hidden_size=0)),
    (read_bert, "no heads", config(num_attention_heads=0)),
    (read_bert, "size that is text", config(hidden_size="wide")),
    (read_bert, "kind that there is not", config(model_type="canary")),
    (read_bert, "kind in a list", config(model_type=["bert"])),
    (read_bert, "activation that there is not", config(hidden_act="canary")),
    (read_bert, "configuration that is a list", {"config.json": b"[1]"}),
    (read_bert, "nested configuration", {"config.json": b"[" * 10**5}),
    (read_bert, "empty configuration", {"config.json": b""}),
    (read_bert, "configuration in another encoding", {"config.json": b"\xff\xfe{}"}),
    (read_bert, "no configuration", {"config.json": None}),
    *((read_bert, name, {"model.safetensors": content}) for name, content in SAFETENSORS.items()),
    (read_tokenizer, "tokenizer that is a list", {"tokenizer.json": b"[1]"}),
    (read_tokenizer, "nested tokenizer", {"tokenizer.json": b"[" * 10**5}),
    (read_tokenizer, "empty tokenizer", {"tokenizer.json": b""}),
    (read_tokenizer, "tokenizer in another encoding", {"tokenizer.json": b"\xff\xfe"}),
    (read_tokenizer, "code beside the tokenizer", {"tokenizer_config.json": TOKENIZER, "code.py": CODE} | REMOTE),
]
PRETRAINED = [
    Case(f"pretrained: {name}", read, {"bert": model_folder(changes)}, "bert", "model ")
    for read, name, changes in MODELS
]
PRETRAINED.append(
    Case("pretrained: folder that is not there", read_bert, {"bert": link_to("nowhere")}, "bert", "model ")
)
