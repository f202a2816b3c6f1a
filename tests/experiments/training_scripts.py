"""Every script that trains, at sizes that take a second, on data that are written into a folder."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from experiments.captioning.config import CaptioningConfig
from experiments.captioning.task import CaptioningTask
from experiments.coverage.config import CoverageConfig
from experiments.coverage.task import CoverageTask
from experiments.data.text import masked_text, parallel
from experiments.data.text.parallel import toy_translation
from experiments.finetune.choices import RaceTask
from experiments.finetune.config import GlueConfig, QaConfig, RaceConfig
from experiments.finetune.glue import GlueTask
from experiments.finetune.questions import QaTask
from experiments.graph.config import GraphConfig
from experiments.graph.task import GraphTask
from experiments.headlines.config import HeadlineConfig
from experiments.headlines.task import HeadlineTask
from experiments.nmt.config import TranslationConfig
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.task import PretrainTask
from experiments.vqa.config import VQAConfig
from experiments.vqa.task import VQATask
from tests.experiments.captioning import tiny_captions
from tests.experiments.finetune.tiny_glue import write_bert, write_glue
from tests.experiments.finetune.tiny_race import write_race
from tests.experiments.finetune.tiny_squad import write_squad
from tests.experiments.graph.tiny_graphs import write_citations
from tests.experiments.headlines import tiny_headlines
from tests.experiments.nmt import tiny_text
from tests.experiments.pretrain.tiny_reviews import write_reviews
from tests.experiments.vqa import tiny_questions

EPOCHS = 3
SIZES = {"batch_size": 8, "num_samples": 2}
QUESTIONS = {"guide": "weibull", "feature_noise": 0.5, "test_noise": (0.0,)}
TEXT = SIZES | {"vocabulary": 270, "width": 8, "heads": 2, "layers": 2}
ENSEMBLE = {"items": 30, "members": 2, "objective": "soft", "num_samples": 2}
REVIEWS = {"guide": "weibull", "normalizer": "hybrid", "finetune_epochs": 1}


@dataclass(frozen=True)
class Script:
    """A script that trains: its options, its function, and what writes its data below a folder and returns options."""

    config_type: Callable[..., Any]
    run: Callable[[Any], dict[str, float]]
    options: Callable[[Path], dict[str, Any]]

    def config(self, root: Path, out: Path, **changes: Any) -> Any:
        """A tiny run in the folder ``out`` on data below ``root``."""
        shared = {"out": out, "max_epochs": EPOCHS, "progress": False}
        return self.config_type(**self.options(root) | shared | changes)


def _graph(root: Path) -> dict[str, Any]:
    if not (root / "planetoid").exists():
        write_citations(root)
    return {"dataset": "cora", "data_root": root, "num_samples": 2, "learning_rate": 0.05, "guide": "weibull"}


def _nmt(root: Path) -> dict[str, Any]:
    return tiny_text.TINY | {"text": tiny_text.write_text(root / "text"), "guide": "weibull"}


def _headlines(root: Path) -> dict[str, Any]:
    data = root if (root / "headline").exists() else tiny_headlines.write_texts(root)
    return tiny_headlines.TINY | {"data_root": data, "guide": "weibull", "normalizer": "hybrid"}


def _model(root: Path) -> dict[str, Any]:
    if not (root / "bert").exists():
        write_bert(root / "bert")
    return SIZES | {"model": str(root / "bert"), "data_root": root, "length": 20, "guide": "weibull"}


def _glue(root: Path) -> dict[str, Any]:
    if not (root / "glue" / "RTE").exists():
        write_glue(root)
    return _model(root) | {"task": "rte"}


def _qa(root: Path) -> dict[str, Any]:
    if not (root / "squad").exists():
        write_squad(root)
    return _model(root) | {"stride": 8, "guide": "weibull"}


def _race(root: Path) -> dict[str, Any]:
    if not (root / "RACE").exists():
        write_race(root)
    return _model(root) | {"guide": "weibull"}


SCRIPTS = {
    "graph": Script(GraphConfig, GraphTask().run, _graph),
    "nmt": Script(TranslationConfig, tiny_text.run, _nmt),
    "captioning": Script(CaptioningConfig, CaptioningTask().run, lambda _: tiny_captions.TINY | {"guide": "weibull"}),
    "headlines": Script(HeadlineConfig, HeadlineTask().run, _headlines),
    "vqa": Script(VQAConfig, VQATask().run, lambda _: tiny_questions.TINY | QUESTIONS),
    "pretrain": Script(
        PretrainConfig,
        PretrainTask().run,
        lambda root: TEXT | REVIEWS | {"data_root": write_reviews(root)},
    ),
    "coverage": Script(CoverageConfig, CoverageTask().run, lambda _: ENSEMBLE),
    "glue": Script(GlueConfig, GlueTask().run, _glue),
    "qa": Script(QaConfig, QaTask().run, _qa),
    "race": Script(RaceConfig, RaceTask().run, _race),
}


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the data that no file holds be few."""
    tiny_captions.small_scenes(monkeypatch)
    tiny_questions.small_scenes(monkeypatch)
    texts = toy_translation(train=24, val=8, test=8)
    monkeypatch.setattr(parallel, "toy_corpus", lambda: texts)
    masked_text.english_side.cache_clear()
    yield
    masked_text.english_side.cache_clear()


class StoppedError(Exception):
    """A run has come to its training; with the network that would be trained."""


def untrained(script: Script, config: Any) -> Any:
    """The network that a run is about to train, where its training begins."""

    def fit(trainer: pl.Trainer, module: nn.Module, *_: Any, **options: Any) -> None:
        raise StoppedError(module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.Trainer, "fit", fit)
        with pytest.raises(StoppedError) as stopped:
            script.run(config)
    return stopped.value.args[0]


@dataclass(frozen=True)
class Left:
    """What a finished run leaves, without what depends on the clock."""

    metrics: dict[str, float]
    history: list[dict[str, str]]
    weights: dict[str, torch.Tensor]


def left(folder: Path, metrics: dict[str, float]) -> Left:
    """What the run in a folder has left."""
    with (folder / "history.csv").open() as file:
        history = [{name: value for name, value in row.items() if name != "step_ms"} for row in csv.DictReader(file)]
    weights = load_file(folder / "checkpoints" / "best.safetensors")
    return Left({name: value for name, value in metrics.items() if name != "step_ms"}, history, weights)


def assert_same(found: Left, expected: Left) -> None:
    """The same numbers; those of the training to the last bit."""
    assert found.history == expected.history
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-6, abs=1e-6)
    assert found.weights.keys() == expected.weights.keys()
    for name, value in found.weights.items():
        torch.testing.assert_close(value, expected.weights[name], rtol=0, atol=0)
