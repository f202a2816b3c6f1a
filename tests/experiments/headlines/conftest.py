"""Finished runs on tiny texts, which several tests read and none changes."""

from functools import cache

import pytest

from experiments.headlines.config import HeadlineConfig
from experiments.headlines.task import HeadlineTask
from tests.experiments.headlines.tiny_headlines import TINY, write_texts

RUNS = {
    "softmax": {},
    "hybrid": {"normalizer": "hybrid", "guide": "weibull", "decoder": "latent"},
    "fixed": {"guide": "lognormal", "decoder": "latent", "prior": "fixed", "length": 5, "headline_length": 3},
}


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Folder of the data."""
    return write_texts(tmp_path_factory.mktemp("headlines"))


@pytest.fixture
def tiny_config(texts, tmp_path):
    def make(**options):
        return HeadlineConfig(**(TINY | {"data_root": texts, "out": tmp_path / "run"} | options))

    return make


@pytest.fixture(scope="session")
def finished(texts):
    """Configuration and metrics of a finished run, by its name."""

    @cache
    def train(name):
        config = HeadlineConfig(**(TINY | {"data_root": texts, "out": texts / "runs" / name} | RUNS[name]))
        return config, HeadlineTask().run(config)

    return train
