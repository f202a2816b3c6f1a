"""Folders of runs: configuration, metrics, environment, history, predictions, locks and links."""

import json
from argparse import ArgumentError
from pathlib import Path

import numpy as np
from experiments.report.page import hardware

from experiments.captioning.config import CaptioningConfig
from experiments.files import UserError, read_text
from experiments.finetune import runs
from experiments.harness.folder import open_run, open_training, saved_config
from experiments.harness.option_parser import parse
from experiments.harness.options import TrainingOptions
from experiments.harness.results import read_metrics
from experiments.nmt.config import TranslationConfig
from experiments.pretrain import table
from tests.experiments.datasets.hostile.arrays import npy, npz, objects, telling
from tests.experiments.datasets.hostile.case import Case, Content, anywhere, directory, link_to
from tests.experiments.hostile import formats


def read_config(root: Path) -> object:
    return saved_config(root, TranslationConfig, script="experiments.nmt")


def from_file(root: Path) -> object:
    try:
        return parse(CaptioningConfig, ["--config", str(root / "config.yaml")], name="script")
    except ArgumentError as error:
        raise UserError(str(error)) from error


CHOSEN = [
    ("alias bomb", b"a: &a [x]\nb: [*a, *a]\n", "anchors (&) and aliases (*) are not read"),
    ("anchor", b"seed: &one 1\n", "anchors"),
    ("merge", b"a: &a {seed: 1}\n<<: *a\n", "anchors"),
    ("command", b"seed: !!python/object/apply:os.system ['touch canary']\n", "could not determine a constructor"),
    ("command of a new object", b"!!python/object/new:os.system ['touch canary']\n", "could not determine"),
    ("module", b"seed: !!python/module:antigravity\n", "could not determine"),
    ("name", b"seed: !!python/name:os.system\n", "could not determine"),
    ("own tag", b"seed: !canary 1\n", "could not determine"),
    ("set", b"guide: !!set {soft}\n", "guide"),
    ("bytes", b"guide: !!binary c29mdA==\n", "guide"),
    ("70 000 bytes", b"# " + b"x" * 70_000, "more than 65536 bytes"),
    ("nested lists", b"[" * 60_000, "nests too deeply"),
    ("nested lines", b"- " * 30_000 + b"1", "nests too deeply"),
    ("nested dictionaries", b"a: {" + b"a: {" * 10_000, "nests too deeply"),
    ("number of 5000 digits", b"seed: " + b"1" * 5000 + b"\n", "cannot be read"),
    ("number of 65 bits", b"hidden: 36893488147419103232\n", "has 66 bits"),
    ("size below zero", b"hidden: -1\n", "hidden"),
    ("size of zero", b"hidden: 0\n", "hidden"),
    ("size that is text", b"hidden: wide\n", "hidden"),
    ("size that is a list", b"hidden: [8]\n", "hidden"),
    ("size that is a fraction", b"hidden: 8.5\n", "hidden"),
    ("size that is nothing", b"hidden: null\n", "hidden"),
    ("learning rate that is no number", b"learning_rate: .nan\n", "learning_rate"),
    ("learning rate without end", b"learning_rate: .inf\n", "learning_rate"),
    ("choice that there is not", b"guide: canary\n", "guide"),
    ("path that is a dictionary", b"data_root: {a: b}\n", "data_root"),
    ("path without a name", b"data_root: ''\n", "data_root"),
    ("zero bytes", bytes(99), "cannot be read"),
    ("other encoding", b"\xff\xfea\0", "is not UTF-8 text"),
    ("Latin 1", b"guide: \xe4\n", "is not UTF-8 text"),
    ("empty", b"", "holds no names with values"),
    ("list", b"- 1\n", "holds no names with values"),
    ("number", b"3\n", "holds no names with values"),
    ("names that are numbers", b"1: 2\n", "holds no names with values"),
    ("names that are lists", b"? [1]\n: 2\n", "cannot be read"),
    ("two documents", b"seed: 1\n---\nseed: 2\n", "cannot be read"),
    ("markup", b"<html><script>alert(1)</script>", "holds no names with values"),
    ("signs that move the cursor", b"seed: \x1b[2J\n", "cannot be read"),
    ("cut off", b"seed: [1,\n", "cannot be read"),
]
CONFIGURATIONS = [
    Case(f"configuration: {name}", read_config, {"config.yaml": content}, "config.yaml", seen)
    for name, content, seen in CHOSEN
]
CONFIGURATIONS += [
    Case(f"configuration: {name}", read_config, {"config.yaml": content}, "", "config.yaml")
    for name, content in [(case.name, case.files["a"]) for case in anywhere("", read_config, "a")]
]
ELSEWHERE = ("../elsewhere", "../../elsewhere", "/elsewhere", "a/../../../elsewhere", "data/link/elsewhere")
CONFIGURATIONS += [
    Case(
        f"options from a file: {option} {place}",
        from_file,
        {"config.yaml": f"{option}: {place}\n".encode(), "link": link_to("/")},
        "config.yaml",
        f"{option} is {place}, expected a place inside of",
    )
    for option in ("out", "cache")
    for place in ELSEWHERE
]
CONFIGURATIONS += [
    Case(f"options from a file: {name}", from_file, {"config.yaml": content}, "config.yaml", seen)
    for name, content, seen in [
        ("overwrite", b"overwrite: true\n", "overwrite is not read from a file"),
        ("another file", b"config: other.yaml\n", "no option config"),
        ("an option that there is not", b"canary: 1\n", "no option canary"),
        ("out with a zero byte", b'out: "a\\0b"\n', ""),
        ("command", b"seed: !!python/object/apply:os.system ['touch canary']\n", "could not determine"),
    ]
]


# metrics.json and environment.json


def metrics(**changes: object) -> bytes:
    numbers = {"accuracy": 0.5, "epochs": 3.0} | changes
    return json.dumps(numbers | {"definitions": dict.fromkeys(numbers, "a number")}).encode()


def go_on(root: Path) -> object:
    return open_training(root, TrainingOptions(resume=True, out=root))


METRICS = [
    Case(f"metrics: {name}", lambda root: read_metrics(root), {"metrics.json": content}, "metrics.json", seen)
    for name, content, seen in [
        ("nested lists", b"[" * 10**5, "recursion"),
        ("nested dictionaries", b'{"a":' * 10**5, "recursion"),
        ("number of 5000 digits", b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        ("text", metrics(accuracy="high"), "accuracy is 'high'"),
        ("markup", metrics(accuracy="<script>"), "accuracy is"),
        ("truth", metrics(accuracy=True), "accuracy is True"),
        ("list", metrics(accuracy=[1]), "accuracy is [1]"),
        ("no definitions", b'{"a": 1}', "names and definitions differ"),
        ("other definitions", b'{"a": 1, "definitions": {"b": "x"}}', "names and definitions differ"),
        ("definitions in a list", b'{"a": 1, "definitions": ["a"]}', "names and definitions differ"),
        ("array", b"[1, 2]", "holds list, expected a JSON object"),
        ("nothing", b"null", "holds NoneType, expected a JSON object"),
        ("other encoding", b"\xff\xfe{\0}\0", "can't decode"),
        ("byte order mark", b"\xef\xbb\xbf{}", "BOM"),
        ("zero bytes", bytes(99), "Expecting value"),
        ("empty", b"", "Expecting value"),
        ("cut off", metrics()[:-9], "cannot be read"),
    ]
]
METRICS += [
    Case(f"metrics of a training: {name}", go_on, {"metrics.json": content}, "metrics.json", "no number of epochs")
    for name, content in [
        ("no epochs", b'{"a": 1, "definitions": {"a": "x"}}'),
        ("epochs that are nothing", metrics(epochs=None)),
        ("half an epoch", metrics(epochs=2.5)),
        ("epochs without end", b'{"epochs": 1e999, "definitions": {"epochs": "x"}}'),
    ]
]
ENVIRONMENT = anywhere("environment", lambda root: hardware([root]), "environment.json")
ENVIRONMENT = [case._replace(seen="expected a JSON object") for case in ENVIRONMENT]
ENVIRONMENT += [
    Case(f"environment: {name}", lambda root: hardware([root]), {"environment.json": content}, "environment.json", "; ")
    for name, content in [
        ("packages in a list", b'{"device": "cpu", "cpus": 1, "system": "x", "packages": [1]}'),
        ("no device", b"{}"),
        ("device in a list", b'{"device": ["x"], "system": 1}'),
        ("nested", b'{"device":' * 10**5),
    ]
]


# tables and texts


def summaries(root: Path) -> object:
    return read_text(root / "summaries.txt", "remove its folder to train it again")


HISTORIES = [
    case._replace(seen="expected ") for case in anywhere("history", lambda root: table._history(root), "history.csv")
]
HISTORIES += [case._replace(seen="expected ") for case in anywhere("written sentences", summaries, "summaries.txt")]
HISTORIES += [
    Case(f"history: {name}", lambda root: table._history(root), {"history.csv": content}, "history.csv", "remove ")
    for name, content in [
        ("text for a number", b"epoch,loss\n0,low\n"),
        ("cells too many", b"epoch,loss\n0,1,2\n"),
        ("long cell", b"epoch,loss\n0," + b"1" * 200_000),
        ("other encoding", b"epoch,loss\n0,\xff\n"),
        ("a quote without end", b'epoch,"loss\n' + b"x" * 200_000),
        ("a formula", b"epoch,loss\n0,=cmd|' /C calc'!A0\n"),
    ]
]
HISTORIES.append(
    Case("written sentences: other encoding", summaries, {"summaries.txt": b"\xff"}, "summaries.txt", "can't decode")
)


def read_predictions(root: Path) -> object:
    return runs._read(root / "predictions.npz", "mean")


PREDICTIONS = [
    Case(f"predictions: {name}", read_predictions, {"predictions.npz": content}, "predictions.npz", "expected ")
    for name, content in [
        ("objects", npz(("mean_test.npy", objects()), ("labels_test.npy", npy()))),
        ("header that calls", npz(("mean_test.npy", npy(shape="__import__('os').system('touch canary')")))),
        ("terabytes", npz(("mean_test.npy", npy(shape=f"(1, {10**12}, 2)")))),
        ("bomb that tells its size", telling(npz(("mean_test.npy", bytes(9))), 2**32 - 2)),
        ("outside", npz(("../canary.npy", npy()))),
        ("other kind", formats.npz(attention_test=np.zeros((1, 4, 2), np.float32), labels_test=np.zeros(4, int))),
        ("no samples' dimension", formats.npz(mean_test=np.zeros((4, 2), np.float32), labels_test=np.zeros(4, int))),
        ("a number", formats.npz(mean_test=np.float32(1), labels_test=np.zeros(4, int))),
        ("text", formats.npz(mean_test=np.array([[["a"]]]), labels_test=np.zeros(1, int))),
        ("labels of others", formats.npz(mean_test=np.zeros((1, 4, 2), np.float32), labels_test=np.zeros(5, int))),
        ("no archive", b"no archive"),
        ("empty", b""),
    ]
]
PREDICTIONS += anywhere("predictions", read_predictions, "predictions.npz")


# links and locks


def resume(root: Path) -> object:
    return open_run(root / "run", TrainingOptions(resume=True))


def use(root: Path) -> object:
    return saved_config(root / "run", TranslationConfig, script="experiments.nmt")


RUN: dict[str, Content] = {"run/metrics.json": metrics(), "run/config.yaml": b"seed: 1\n"}
LINKS = [
    Case(
        f"links: {verb} with {name} elsewhere",
        read,
        RUN | {f"run/{name}": link_to("../../outside")},
        f"run/{name}",
        "is a symbolic link",
    )
    for verb, read in (("resume", resume), ("use", use))
    for name in ("checkpoints", "figures")
]
LINKS += [
    Case(
        "links: lock elsewhere",
        resume,
        RUN | {"run/.lock": link_to("../../outside/secret.jpg")},
        "run",
        "cannot be written",
    ),
    Case(
        "links: lock to nothing",
        resume,
        RUN | {"run/.lock": link_to("../../outside/canary")},
        "run",
        "cannot be written",
    ),
    Case("links: lock that is a folder", resume, RUN | {"run/.lock": directory}, "run", "cannot be written"),
    Case(
        "links: folder as a partial file",
        resume,
        RUN | {"run/.metrics.json.a.partial": directory},
        "run",
        "another configuration",
    ),
    Case(
        "links: configuration that is a folder",
        resume,
        {"run/config.yaml": directory},
        "run",
        "holds results but no config.yaml",
    ),
    Case("links: metrics without a configuration", resume, {"run/metrics.json": metrics()}, "run", "no config.yaml"),
]
RUNS = [*CONFIGURATIONS, *METRICS, *ENVIRONMENT, *HISTORIES, *PREDICTIONS, *LINKS]
