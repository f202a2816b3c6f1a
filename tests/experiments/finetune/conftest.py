"""Tiny data and finished runs of fine-tuning, which many tests read and none changes."""

from functools import cache

import pytest

from experiments.finetune.config import GlueConfig, QaConfig
from experiments.finetune.glue import GlueTask
from experiments.finetune.questions import QaTask
from tests.experiments.finetune.tiny_glue import write_bert, write_glue
from tests.experiments.finetune.tiny_squad import write_squad

TINY = {"length": 20, "batch_size": 8, "max_epochs": 1, "num_samples": 3, "progress": False}
RUNS = {
    "rte": {"guide": "weibull", "concentration": 1.0},
    "stsb": {"guide": "lognormal", "prior": "fixed", "kl_warmup": 0.0, "label_noise": 0.25, "pooling": "pair"},
    "sst2": {"out_of_domain": ("cola", "rte"), "pooling": "pair"},
    "mrpc": {"label_noise": 0.5, "train_share": 0.5, "precision": "bf16-mixed", "keep_weights": False},
    "cola": {"guide": "lognormal", "objective": "evidence", "draws": 2, "learned_width": True},
    "mnli": {"guide": "weibull", "kl_schedule": "sigmoid", "pooling": "pair"},
    "squad": {"train_share": 0.25},
    "squad-2.0": {"guide": "weibull", "concentration": 1.0, "version": "2.0"},
}


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with all data and a pretrained model."""
    root = tmp_path_factory.mktemp("finetune")
    write_bert(root / "some" / "bert")
    write_squad(root)
    return write_glue(root)


@pytest.fixture(scope="session")
def tiny_config(place):
    def make(task, out, **options):
        shared = TINY | {"model": str(place / "some" / "bert"), "data_root": place, "out": out}
        if task.startswith("squad"):
            return QaConfig(**(shared | {"stride": 8} | options))
        return GlueConfig(**(shared | {"task": task} | options))

    return make


@pytest.fixture(scope="session")
def finished(place, tiny_config):
    """Task, configuration and metrics of a finished run, by its name."""

    @cache
    def train(name):
        config = tiny_config(name, place / "runs" / name, **RUNS[name])
        task = QaTask() if name.startswith("squad") else GlueTask()
        return task, config, task.run(config)

    return train
