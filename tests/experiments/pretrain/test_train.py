"""Pretraining, fine-tuning and their table, end to end on tiny sizes; resuming and bad input."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from experiments.datasets.text import masked_text, parallel
from experiments.datasets.text.toy_translation import toy_translation
from experiments.files import UserError
from experiments.harness.cli import run_commands
from experiments.harness.options import StudyOptions
from experiments.harness.results import read_metrics
from experiments.pretrain import model as text_model
from experiments.pretrain.config import COMMANDS, FinetuneConfig, PretrainConfig
from experiments.pretrain.evaluation import definitions, key_masses, token_scores
from experiments.pretrain.finetune import SST2Task
from experiments.pretrain.studies import STUDIES, table
from experiments.pretrain.train import PretrainTask, figures
from experiments.report.results import read_results
from experiments.run import load_trained, run
from tests.experiments.pretrain.tiny_reviews import write_reviews

TASK = PretrainTask()
TINY = {"vocabulary": 270, "width": 8, "heads": 2, "layers": 2, "batch_size": 8, "max_epochs": 2, "num_samples": 2}


@pytest.fixture(autouse=True)
def tiny_corpus(monkeypatch):
    texts = toy_translation(0, train=24, val=8, test=8)
    monkeypatch.setattr(parallel, "toy_corpus", lambda: texts)
    masked_text.english_side.cache_clear()
    yield
    masked_text.english_side.cache_clear()


def tiny_config(tmp_path, **options):
    return PretrainConfig(**(TINY | {"progress": False, "out": tmp_path / "run"} | options))


@pytest.fixture
def pretrained(tmp_path):
    """A finished run."""
    config = tiny_config(tmp_path, normalizer="hybrid", guide="weibull", out=tmp_path / "pretrained")
    run(TASK, config)
    return config.out


@pytest.mark.parametrize(
    ("normalizer", "guide"),
    [
        ("softmax", "soft"),
        ("doubly_normalized", "soft"),
        ("hybrid", "soft"),
        ("hybrid", "weibull"),
        ("softmax", "gamma"),
    ],
)
def test_pretraining(normalizer, guide, tmp_path):
    config = tiny_config(tmp_path, normalizer=normalizer, guide=guide)
    metrics = run(TASK, config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 1000
    assert metrics["updates"] == 2 * 3
    saved = json.loads((config.out / "metrics.json").read_text())
    assert saved["definitions"] == definitions(metrics)
    with (config.out / "history.csv").open() as file:
        history = list(csv.DictReader(file))
    columns = [name for name in history[0] if name.startswith("hybrid_")]
    assert len(columns) == (4 if normalizer == "hybrid" else 0)
    for name in columns:
        assert float(history[metrics["best_epoch"]][name]) == pytest.approx(metrics[name])
        assert float(history[0][name]) != 0.5
    # the same numbers from the checkpoint
    trained = load_trained(TASK, config)
    assert token_scores(trained)["test_ppl"] == pytest.approx(metrics["test_ppl"], rel=1e-5)
    assert list(figures({f"{normalizer}, {guide}": [config]})) == ["loss", "mass", "hybrid"][: 2 + bool(columns)]


@pytest.mark.parametrize("normalizer", ["softmax", "doubly_normalized"])
def test_key_masses(tmp_path, normalizer):
    config = tiny_config(tmp_path, normalizer=normalizer, max_epochs=1)
    metrics = run(TASK, config)
    trained = load_trained(TASK, config)
    masses = key_masses(trained)
    assert list(masses) == ["layers.0", "layers.1"]
    texts = masked_text.load_english("toy")["test"]
    pieces = [min(len(trained.vocabulary.encode(text)) + 2, config.length) for text in texts]
    for mass in masses.values():
        assert mass.shape == (2, sum(pieces))
        # every query gives away a mass of one
        assert mass.sum(1).tolist() == pytest.approx([sum(pieces)] * 2, rel=1e-4)
        assert normalizer == "softmax" or mass.min() > 1 / max(pieces) - 1e-6
    assert metrics["explained_away"] == 0
    assert metrics["key_mass_1_percent"] < metrics["key_mass_1_percent_layers.0_0"] + 1


def test_initial_weights_depend_on_the_seed_alone(tmp_path):
    vocabulary = text_model.load_vocabulary(tiny_config(tmp_path), tmp_path)
    models = [
        text_model.build(tiny_config(tmp_path, normalizer=normalizer, guide=guide, seed=seed), vocabulary).model
        for normalizer, guide, seed in [("softmax", "soft", 0), ("hybrid", "weibull", 0), ("softmax", "soft", 1)]
    ]
    first, second, other = (dict(model.named_parameters()) for model in models)
    assert all(second[name].equal(value) for name, value in first.items() if ".prior." not in name)
    assert not other["encoder.tokens.weight"].equal(first["encoder.tokens.weight"])


def command_line(*arguments: object) -> int:
    return run_commands(COMMANDS, name="experiments.pretrain", arguments=[str(word) for word in arguments])


def test_command_line(tmp_path, capsys):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in (TINY | {"max_epochs": 1}).items()]
    arguments = ["train", *options, "--no-progress", f"--out={tmp_path / 'run'}", "--normalizer=hybrid"]
    assert command_line(*arguments) == 0
    assert "test_ppl" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "run" / "figures").iterdir()} == {"loss.png", "mass.png", "hybrid.png"}
    assert command_line(*arguments) == 1
    assert "--resume" in capsys.readouterr().err
    assert command_line(*arguments, "--overwrite", "--normalizer=sparsemax") == 2
    assert "normalizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"heads": 3}, "num_heads 3"),
        ({"length": 2}, "length is 2"),
        ({"masked": 1.0}, '"masked"'),
        ({"hybrid_share": 1.0, "normalizer": "hybrid"}, "initial is 1.0"),
        ({"vocabulary": 10}, "size is 10"),
    ],
)
def test_bad_options(options, part, tmp_path):
    with pytest.raises(UserError, match=part):
        run(TASK, tiny_config(tmp_path, **options))


@pytest.mark.parametrize("content", ["epoch,loss\n0,x\n", "epoch,loss\n0,1,2\n"])
def test_damaged_history(tmp_path, content):
    config = PretrainConfig(out=tmp_path)
    (tmp_path / "history.csv").write_text(content)
    with pytest.raises(UserError, match=f"history.csv cannot be read .*; remove {tmp_path} to train it again"):
        figures({"softmax, soft": [config]})


# fine-tuning


def finetune_config(tmp_path, start, **options):
    shared = {"data_root": write_reviews(tmp_path / "data"), "progress": False}
    sizes = {"batch_size": 8, "max_epochs": 2, "num_samples": 2}
    return FinetuneConfig(**(shared | sizes | {"run": start, "out": tmp_path / "finetuned"} | options))


@pytest.mark.parametrize("options", [{}, {"pooling": "first", "kl_weight": 0.0}, {"scratch": True}])
def test_finetuning(options, pretrained, tmp_path):
    config = finetune_config(tmp_path, pretrained, **options)
    metrics = run(SST2Task(), config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 <= metrics["test_accuracy_before"] <= 1
    assert 0 <= metrics["test_accuracy"] <= 1
    assert read_metrics(config.out) == pytest.approx(metrics)
    assert run(SST2Task(), replace(config, resume=True)) == pytest.approx(metrics)
    assert "hybrid_layers.1_1" in (config.out / "history.csv").read_text()


def test_finetuning_begins_with_the_pretrained_encoder(pretrained, tmp_path):
    changes = {}
    expected = load_trained(
        TASK, PretrainConfig(**TINY, normalizer="hybrid", guide="weibull", out=pretrained)
    ).model.encoder.state_dict()
    for scratch in (False, True):
        config = finetune_config(
            tmp_path, pretrained, scratch=scratch, learning_rate=1e-12, max_epochs=1, out=tmp_path / str(scratch)
        )
        run(SST2Task(), config)
        state = load_file(config.out / "checkpoints" / "best.safetensors")
        changes[scratch] = max(
            (state[f"objective.model.encoder.{name}"] - value).abs().max().item() for name, value in expected.items()
        )
    assert changes[False] < 1e-6
    assert changes[True] > 1e-3  # the seed is the same, so this is what pretraining has changed


def test_finetuning_from_the_command_line(pretrained, tmp_path, capsys):
    data = write_reviews(tmp_path / "data")
    options = [f"--data-root={data}", "--no-progress", "--max-epochs=1", f"--out={tmp_path / 'finetuned'}"]
    assert command_line("sst2", pretrained, *options) == 0
    assert "test accuracy before fine-tuning" in capsys.readouterr().out


def test_bad_start(pretrained, tmp_path):
    with pytest.raises(UserError, match=r"config\.yaml is missing.*python -m experiments\.pretrain train"):
        run(SST2Task(), finetune_config(tmp_path, tmp_path / "nowhere"))
    for name in ("checkpoints/best.safetensors", "vocabulary.json"):
        (pretrained / name).unlink()
        with pytest.raises(UserError, match=f"{Path(name).name} is missing"):
            run(SST2Task(), finetune_config(tmp_path, pretrained))


# the table


def test_every_study_declares_options_and_rows_that_there_are() -> None:
    for name, study in STUDIES.items():
        assert study.name == name
        for row in study.rows.values():
            PretrainConfig(**{**study.options, **row})
        assert {*study.against, *study.against.values()} <= study.rows.keys()


def test_table(tmp_path: Path) -> None:
    data, results = write_reviews(tmp_path / "data"), tmp_path / "results"
    tiny = {name: TINY[name] for name in ("vocabulary", "width", "num_samples")}
    changes: dict[str, Any] = tiny | {"dataset": "toy", "max_epochs": 1, "finetune_epochs": 1}
    options = StudyOptions(
        name="pretraining-english", rows=("softmax, soft", "hybrid, soft"), seeds=2, workers=1, progress=False,
        changes=changes, out=tmp_path / "out", data_root=data, results=results,
    )  # fmt: skip
    means = table(options)
    report, source = read_results(next(results.glob("*.json")))
    assert source.command.startswith("python -m experiments.pretrain table pretraining-english --seeds 2 --rows")
    first, second = report.parts[0].rows
    assert (first["compared with"], second["compared with"]) == ("", "softmax, soft")
    for column, metric, factor in (
        ("perplexity", "test_ppl", 1), ("hidden pieces %", "test_accuracy", 100), ("SST-2 %", "sst2_accuracy", 100),
    ):  # fmt: skip
        expected = [factor * means[f"{row}, soft/{metric}"] for row in ("softmax", "hybrid")]
        assert [first[column].mean, second[column].mean] == pytest.approx(expected)
        assert second[f"{column}: difference"].mean == pytest.approx(expected[1] - expected[0])
    assert second["SST-2 %, not pretrained"].mean == pytest.approx(100 * means["hybrid, soft/scratch_accuracy"])
    # the fine-tunings are those of the command
    start = tmp_path / "out" / "runs" / "hybrid-soft-1"
    pretraining = read_metrics(start)
    for name, scratch in (("sst2", False), ("scratch", True)):
        config = FinetuneConfig(
            run=start, scratch=scratch, seed=1, max_epochs=1, num_samples=2, data_root=data, progress=False,
            out=tmp_path / name,
        )  # fmt: skip
        assert run(SST2Task(), config)["test_accuracy"] == pytest.approx(pretraining[f"{name}_accuracy"])
    assert [row["attention"] for part in report.parts if part.title == "Hybrid attention" for row in part.rows] == [
        "hybrid, soft"
    ]
    pictures = [part.picture for part in report.parts if part.picture is not None]
    assert len(pictures) == 4
    assert all(picture.is_file() for picture in pictures)
    assert table(replace(options, resume=True)) == pytest.approx(means)


def test_missing_reviews_are_found_before_the_pretraining(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SST-2"):
        run(TASK, tiny_config(tmp_path, finetune_epochs=1, data_root=tmp_path))
    assert not (tmp_path / "run").exists()
