"""Pretraining, fine-tuning and their table, end to end on tiny sizes; resuming and bad input."""

import csv
import json
import math
import signal
from dataclasses import replace

import pytest
from safetensors.torch import load_file

import experiments.pretrain.train
from experiments.datasets.text import masked_text
from experiments.datasets.text.readers import toy
from experiments.datasets.text.toy_translation import toy_translation
from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from experiments.pretrain import model as text_model
from experiments.pretrain.evaluation import definitions, key_masses, token_scores
from experiments.pretrain.finetune import FinetuneConfig
from experiments.pretrain.finetune import run as finetune
from experiments.pretrain.finetune import run_and_show as show_finetuned
from experiments.pretrain.model import load_trained
from experiments.pretrain.rows import score_rows
from experiments.pretrain.table import PretrainTableConfig, _history
from experiments.pretrain.table import run as run_table
from experiments.pretrain.train import PretrainConfig, run
from tests.experiments.pretrain.tiny_reviews import write_reviews

TINY = {"vocabulary": 270, "width": 8, "heads": 2, "layers": 2, "batch_size": 8, "max_epochs": 2, "num_samples": 2}


@pytest.fixture(autouse=True)
def tiny_corpus(monkeypatch):
    texts = toy_translation(0, train=24, val=8, test=8)
    monkeypatch.setattr(toy, "toy_corpus", lambda: texts)
    masked_text.english_side.cache_clear()
    yield
    masked_text.english_side.cache_clear()


def tiny_config(tmp_path, **options):
    return PretrainConfig(**(TINY | {"progress": False, "out": tmp_path / "run"} | options))


@pytest.fixture
def pretrained(tmp_path):
    """A finished run."""
    config = tiny_config(tmp_path, normalizer="hybrid", guide="weibull", out=tmp_path / "pretrained")
    run(config)
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
    metrics = run(config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 1000
    assert metrics["updates"] == 2 * 3
    saved = json.loads((config.out / "metrics.json").read_text())
    assert saved["definitions"] == definitions(metrics)
    figures = {path.name for path in (config.out / "figures").iterdir()}
    assert figures == {"loss.png", "key_mass.png"} | ({"hybrid.png"} if normalizer == "hybrid" else set())
    with (config.out / "history.csv").open() as file:
        history = list(csv.DictReader(file))
    columns = [name for name in history[0] if name.startswith("hybrid_")]
    assert len(columns) == (4 if normalizer == "hybrid" else 0)
    for name in columns:
        assert float(history[metrics["best_epoch"]][name]) == pytest.approx(metrics[name])
        assert float(history[0][name]) != 0.5
    # the same numbers from the checkpoint
    trained = load_trained(config.out)
    assert token_scores(trained)["test_ppl"] == pytest.approx(metrics["test_ppl"], rel=1e-5)


@pytest.mark.parametrize("normalizer", ["softmax", "doubly_normalized"])
def test_key_masses(tmp_path, normalizer):
    config = tiny_config(tmp_path, normalizer=normalizer, max_epochs=1)
    metrics = run(config)
    trained = load_trained(config.out)
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


def test_ctrl_c_and_resume_give_the_same_run(tmp_path, monkeypatch):
    options = {"normalizer": "hybrid", "guide": "weibull", "max_epochs": 3}
    whole = run(tiny_config(tmp_path, **options, out=tmp_path / "whole"))
    config, step = tiny_config(tmp_path, **options), text_model.MaskedTraining.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 1:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(text_model.MaskedTraining, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    assert read_metrics(config.out) is None
    monkeypatch.setattr(text_model.MaskedTraining, "training_step", step)
    resumed = run(replace(config, resume=True))
    del whole["step_ms"], resumed["step_ms"]
    assert resumed == pytest.approx(whole, rel=1e-5)
    monkeypatch.setattr(experiments.pretrain.train, "fit_batches", None)
    assert run(replace(config, resume=True)).keys() == whole.keys() | {"step_ms"}
    with pytest.raises(UserError, match="another configuration"):
        run(replace(config, resume=True, dropout=0.5))


def test_command_line(tmp_path, capsys):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in (TINY | {"max_epochs": 1}).items()]
    options += ["--no-progress", f"--out={tmp_path / 'run'}"]
    main = {"name": "experiments.pretrain", "arguments": options}
    assert run_script(PretrainConfig, experiments.pretrain.train.run_and_show, **main) == 0
    assert "test_ppl" in capsys.readouterr().out
    assert run_script(PretrainConfig, experiments.pretrain.train.run_and_show, **main) == 1
    assert "--resume" in capsys.readouterr().err
    main["arguments"] = [*options, "--overwrite", "--normalizer=sparsemax"]
    assert run_script(PretrainConfig, experiments.pretrain.train.run_and_show, **main) == 2
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
        run(tiny_config(tmp_path, **options))


@pytest.mark.parametrize("content", ["epoch,loss\n0,x\n", "epoch,loss\n0,1,2\n"])
def test_damaged_history(tmp_path, content):
    path = tmp_path / "history.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=f"^{path} cannot be read .*; remove {tmp_path} to train it again"):
        _history(tmp_path)


# fine-tuning


def finetune_config(tmp_path, start, **options):
    shared = {"data_root": write_reviews(tmp_path / "data"), "progress": False}
    sizes = {"batch_size": 8, "max_epochs": 2, "num_samples": 2}
    return FinetuneConfig(**(shared | sizes | {"init_from": start, "out": tmp_path / "finetuned"} | options))


@pytest.mark.parametrize("options", [{}, {"pooling": "first", "kl_weight": 0.0}, {"scratch": True}])
def test_finetuning(options, pretrained, tmp_path):
    config = finetune_config(tmp_path, pretrained, **options)
    metrics = finetune(config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 <= metrics["test_accuracy_before"] <= 1
    assert 0 <= metrics["test_accuracy"] <= 1
    assert read_metrics(config.out) == pytest.approx(metrics)
    assert finetune(replace(config, resume=True)) == pytest.approx(metrics)
    assert "hybrid_layers.1_1" in (config.out / "history.csv").read_text()


def test_finetuning_begins_with_the_pretrained_encoder(pretrained, tmp_path):
    changes = {}
    expected = load_trained(pretrained).model.encoder.state_dict()
    for scratch in (False, True):
        config = finetune_config(
            tmp_path, pretrained, scratch=scratch, learning_rate=1e-12, max_epochs=1, out=tmp_path / str(scratch)
        )
        finetune(config)
        state = load_file(config.out / "checkpoints" / "best.safetensors")
        changes[scratch] = max(
            (state[f"objective.model.encoder.{name}"] - value).abs().max().item() for name, value in expected.items()
        )
    assert changes[False] < 1e-6
    assert changes[True] > 1e-3  # the seed is the same, so this is what pretraining has changed


def test_finetuning_from_the_command_line(pretrained, tmp_path, capsys):
    data = write_reviews(tmp_path / "data")
    options = [f"--data-root={data}", "--no-progress", "--max-epochs=1", f"--out={tmp_path / 'finetuned'}"]
    for more, code in (([], 1), ([f"--init-from={pretrained}"], 0)):
        assert (
            run_script(FinetuneConfig, show_finetuned, name="experiments.finetune sst2", arguments=options + more)
            == code
        )
    captured = capsys.readouterr()
    assert captured.err.startswith("error: init_from is missing, expected --init-from RUN")
    assert "test accuracy before fine-tuning" in captured.out


def test_bad_start(pretrained, tmp_path):
    with pytest.raises(UserError, match=r"no finished run \(config\.yaml is missing\)"):
        finetune(finetune_config(tmp_path, tmp_path / "nowhere"))
    (pretrained / "checkpoints" / "best.safetensors").unlink()
    with pytest.raises(UserError, match=r"best\.safetensors is missing"):
        finetune(finetune_config(tmp_path, pretrained))


# the table


COMPARISONS = {
    "softmax, soft": ("", ""),
    "softmax, weibull": ("softmax, soft", "+10.00 [+10.00, +10.00]"),
    "hybrid, soft": ("softmax, soft", "+20.00 [+20.00, +20.00]"),
    "hybrid, weibull": ("softmax, weibull", "+20.00 [+20.00, +20.00]"),
}


@pytest.mark.parametrize("place", range(4), ids=COMPARISONS)
def test_rows_are_compared_under_their_own_guide(place):
    runs = {name: [{"test_ppl": 10.0 * number + seed} for seed in (1, 2)] for number, name in enumerate(COMPARISONS)}
    row = score_rows(runs)[place]
    assert (row["compared with"], row["perplexity: difference"]) == COMPARISONS[row["attention"]]


def test_table(tmp_path, capsys):
    config = PretrainTableConfig(
        dataset="toy", normalizers=("softmax", "hybrid"), guides=("soft",), seeds=2, vocabulary=270, width=8,
        max_epochs=1, finetune_epochs=1, num_samples=2, workers=1, progress=False, out=tmp_path / "out",
        data_root=write_reviews(tmp_path / "data"), results=tmp_path / "RESULTS.md",
    )  # fmt: skip
    means = run_table(config)
    printed, page = capsys.readouterr().out, (tmp_path / "RESULTS.md").read_text()
    for row in ("softmax, soft", "hybrid, soft"):
        assert means[f"{row}/test_ppl"] > 1
        assert f"\n{row}  " in printed
        assert f"| {row} |" in page
    assert "perplexity: difference" in page
    assert "| hybrid, soft | softmax, soft |" in page
    assert "SST-2 %, not pretrained" in page
    assert "python -m experiments.pretrain_table --dataset toy --" in page
    pictures = [path.name for path in (tmp_path / "pictures").iterdir()]
    assert len(pictures) == 4
    assert all(f"(pictures/{name})" in page for name in pictures)
    assert read_metrics(tmp_path / "out") == pytest.approx(means)
    # more rows later; what is there is read
    fewer = replace(config, resume=True, normalizers=("softmax",))
    assert run_table(fewer)["softmax, soft/test_ppl"] == means["softmax, soft/test_ppl"]
    assert "hybrid" not in (tmp_path / "RESULTS.md").read_text()
