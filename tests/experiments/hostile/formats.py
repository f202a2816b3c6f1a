"""Files of every kind that are read, whole ones, to be damaged; and what reads them."""

import gzip
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import safetensors.torch
import torch
import yaml
from scipy.sparse import csr_matrix

from experiments.datasets.graphs.masked import read_own_graph
from experiments.datasets.graphs.safe_pickle import read_pickle
from experiments.datasets.images import mobilenet
from experiments.datasets.images.image_files import open_photograph
from experiments.datasets.images.karpathy import read_karpathy
from experiments.datasets.questions.entries import read_json_file
from experiments.datasets.questions.readers.vqa_v2 import read_pairs
from experiments.datasets.text.headlines import read_headlines
from experiments.datasets.text.squad import read_squad
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.finetune import runs
from experiments.harness.checkpoints import read_run, read_weights
from experiments.harness.folder import saved_options
from experiments.harness.results import read_metrics
from experiments.harness.weights import weights_file, write_weights
from experiments.nmt.gold import read_gold
from experiments.pretrain import table
from pyro_attention.analysis import read_naacl, read_pharaoh
from tests.experiments.datasets.hostile import arrays, lists, pictures
from tests.experiments.datasets.hostile.case import Content
from tests.experiments.finetune.tiny_squad import article
from tests.experiments.headlines.tiny_headlines import entries


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        file: its name.
        make: makes a whole one.
        read: reads it, given its path.
        others: what is beside it.
    """

    file: str
    make: Callable[[], bytes]
    read: Callable[[Path], object]
    others: dict[str, Content] = field(default_factory=dict)


def npz(**values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **values)
    return file.getvalue()


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def run_state() -> dict[str, object]:
    """What last.ckpt holds, in the smallest form."""
    weights = {"objective.weight": torch.arange(12.0), "objective.bias": torch.zeros(3)}
    moments = {
        place: {"step": torch.tensor(3.0), "exp_avg": value, "exp_avg_sq": value}
        for place, value in enumerate(weights.values())
    }
    row = {"epoch": 0, "loss": 1.0, "step_ms": 1.0}
    stopping = {"best": {"val_loss": 1.0}, "waited": 0, "best_epoch": 0, "weights": weights}
    return {
        "epoch": 0,
        "global_step": 3,
        "pytorch-lightning_version": "2.0.0",
        "loops": {"fit_loop": {}},
        "state_dict": weights,
        "callbacks": {"EarlyStopping": stopping, "History": {"rows": [row]}, "RandomState": {}},
        "optimizer_states": [{"state": moments, "param_groups": []}],
        "lr_schedulers": [],
    }


def metrics() -> bytes:
    numbers = {"accuracy": 0.5, "loss": None, "epochs": 3}
    return json.dumps(numbers | {"definitions": dict.fromkeys(numbers, "a number")}).encode()


def predictions() -> bytes:
    return npz(mean_test=np.zeros((1, 4, 2), np.float32), labels_test=np.arange(4) % 2)


def questions() -> bytes:
    rows = [{"image_id": 9, "question": "Is there a cat?", "question_id": number} for number in range(3)]
    return json.dumps({"questions": rows}).encode()


def read_asked(path: Path) -> object:
    rows = [{"image_id": 9, "answers": [{"answer": "yes"}], "question_id": number} for number in range(3)]
    answers = path.with_name("annotations.json")
    answers.write_text(json.dumps({"annotations": rows}))
    try:
        return read_pairs(path, answers)
    finally:
        answers.unlink()


def squad() -> bytes:
    generator = torch.Generator().manual_seed(0)
    return json.dumps({"data": [article("a", 3, generator, impossible=True)]}).encode()


@cache
def vocabulary() -> bytes:
    return train_tokenizer(["one two three four", "one two"] * 3, size=270).text.encode()


def own_graph() -> bytes:
    ring = np.stack([np.arange(8), (np.arange(8) + 1) % 8])
    return npz(y=np.arange(8) % 2, edge_index=ring, x=np.eye(8, 5, dtype=np.float32))


def best_weights() -> bytes:
    with TemporaryDirectory() as folder:
        write_weights(Path(folder), WEIGHTS, epoch=0)
        return weights_file(Path(folder)).read_bytes()


WEIGHTS = {"features.weight": torch.arange(6.0).reshape(2, 3), "features.bias": torch.zeros(2)}
OPTIONS = {"guide": "weibull", "hidden": 8, "out": "runs/a", "test_noise": [0.0, 0.5]}

FORMATS = {
    "graph archive": Format("cora.npz", arrays.arrays, partial(arrays.read_graph_archive, name="cora", num_classes=7)),
    "graph of one's own": Format("mine.npz", own_graph, read_own_graph),
    "old graph": Format("ind.cora.x", lambda: pickle.dumps(csr_matrix(np.eye(4)), 2), read_pickle),
    "JPEG": Format("a.jpg", pictures.picture, open_photograph),
    "PNG": Format("a.png", lambda: pictures.picture("PNG"), open_photograph),
    "tar of pictures": Format("a.tar", pictures.tar, pictures.tar_images),
    "caption list": Format(
        "list.json",
        lists.listing,
        lambda path: read_karpathy(path, path.parent / "pictures", "val"),
        {"pictures/a.jpg": pictures.picture()},
    ),
    "questions": Format("questions.json", questions, read_asked),
    "packed JSON": Format("a.json.gz", lambda: gzip.compress(questions(), mtime=0), read_json_file),
    "SQuAD": Format("squad.json", squad, read_squad),
    "headlines": Format(
        "a.jsonl", lambda: b"".join(json.dumps(one).encode() + b"\n" for one in entries()[:6]), read_headlines
    ),
    "Pharaoh links": Format("gold.txt", lambda: b"0-0 1p1 2-1\n1-0\n0-0 3p2\n", read_pharaoh),
    "NAACL links": Format("gold.wa", lambda: b"0001 1 1 S\n0001 2 1 P\n0002 1 1\n", read_naacl),
    "gold links": Format("gold.txt", lambda: b"0-0 1p1\n1-0\n", lambda path: read_gold(path, [(3, 3), (3, 3)])),
    "encoder weights": Format(
        "net.safetensors", lambda: safetensors.torch.save(WEIGHTS), lambda path: mobilenet._weights(path, WEIGHTS)
    ),
    "vocabulary": Format("vocabulary.json", vocabulary, Vocabulary.load),
    "configuration": Format(
        "config.yaml", lambda: yaml.safe_dump(OPTIONS).encode(), lambda path: saved_options(path.parent)
    ),
    "metrics": Format("metrics.json", metrics, lambda path: read_metrics(path.parent)),
    "history": Format("history.csv", lambda: b"epoch,loss\n0,1.5\n1,0.5\n", lambda path: table._history(path.parent)),
    "predictions": Format("predictions.npz", predictions, lambda path: runs._read(path, "mean")),
    "last checkpoint": Format("last.ckpt", lambda: saved(run_state()), read_run),
    "best weights": Format("best.safetensors", best_weights, read_weights),
    "older best weights": Format("best.ckpt", lambda: saved({"epoch": 0, "state_dict": WEIGHTS}), read_weights),
}
