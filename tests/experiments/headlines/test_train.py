"""The script on headlines end to end: every attention, the first words at first, resuming, and bad input."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.datasets.text.headlines import plain_words
from experiments.files import UserError
from experiments.harness.cli import run_commands
from experiments.headlines import evaluation
from experiments.headlines.config import COMMANDS, HeadlineConfig
from experiments.headlines.data import LeadSampler, TrainingPairs, first_headlines, load_texts
from experiments.headlines.evaluation import definitions, perplexity, write_headlines
from experiments.headlines.model import build, load_vocabulary
from experiments.headlines.train import HeadlineTask
from experiments.run import load_trained, run
from pyro_attention import Soft
from tests.experiments.headlines.tiny_headlines import FILES, SIZES, TINY, entries, write_entries, write_texts

TASK = HeadlineTask()


@pytest.fixture
def root(tmp_path):
    return write_texts(tmp_path / "data")


@pytest.fixture
def tiny_config(root, tmp_path):
    def make(**options):
        return HeadlineConfig(**(TINY | {"data_root": root, "out": tmp_path / "run"} | options))

    return make


@pytest.mark.parametrize("guide", ["soft", "weibull"])
@pytest.mark.parametrize("normalizer", ["softmax", "doubly_normalized", "hybrid"])
def test_every_attention_trains_and_evaluates(guide, normalizer, tiny_config):
    config = tiny_config(guide=guide, normalizer=normalizer)
    metrics = run(TASK, config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 1000
    assert metrics["updates"] == 2 * SIZES["train"] / TINY["batch_size"]
    saved = json.loads((config.out / "metrics.json").read_text())
    assert saved["definitions"] == definitions(metrics)
    assert len((config.out / "summaries.txt").read_text().split("\n")[:-1]) == SIZES["test"]
    assert sum(name.startswith("hybrid_layers.") for name in metrics) == (4 if normalizer == "hybrid" else 0)
    # the same numbers from the checkpoint
    trained, test = load_trained(TASK, config), load_texts(config)["test"]
    assert perplexity(trained, test) == pytest.approx(metrics["test_ppl"], rel=1e-5)
    written = [one.text for one in write_headlines(trained, test.texts)]
    assert written == (config.out / "summaries.txt").read_text().split("\n")[:-1]


@pytest.mark.parametrize(
    ("options", "trained", "families"),
    [
        ({"guide": "soft"}, False, ("Soft", "Soft")),
        ({"guide": "weibull"}, True, ("Weibull", "Soft")),
        ({"guide": "weibull", "decoder": "latent"}, True, ("Weibull", "Weibull")),
        ({"guide": "lognormal", "decoder": "latent", "prior": "fixed"}, False, ("LogNormal", "LogNormal")),
    ],
)
def test_the_prior_trains_where_the_attention_is_random(options, trained, families, tiny_config):
    config = tiny_config(**options)
    run(TASK, config)
    writer = load_trained(TASK, config)
    sites = "layers.1", "decoder.1.text"
    assert tuple(type(writer.guide.family(site)).__name__ for site in sites) == families
    before = dict(build(config, writer.vocabulary).model.named_parameters())
    after = {name: value for name, value in writer.model.named_parameters() if ".prior." in name}
    assert bool(after) == trained
    assert (
        any("decoder" in name or name.startswith("layers.") for name in after) == (config.decoder == "latent") & trained
    )
    for name, value in after.items():
        assert not value.equal(before[name]), name
    assert writer.is_random != isinstance(writer.guide.family("layers.0"), Soft)
    with (config.out / "history.csv").open() as file:
        kls = [name for name in next(csv.DictReader(file)) if name.startswith("kl_") and name != "kl_weight"]
    assert len(kls) == {"Soft": 0, "Weibull": 2, "LogNormal": 6}[families[0]] + 4 * (families == ("Weibull",) * 2)


def test_initial_weights_depend_on_the_seed_alone(tiny_config, tmp_path):
    config = tiny_config()
    vocabulary = load_vocabulary(config, tmp_path, load_texts(config)["train"])
    options = ({}, {"normalizer": "hybrid", "guide": "weibull", "decoder": "latent"}, {"seed": 1})
    first, second, other = (dict(build(replace(config, **one), vocabulary).model.named_parameters()) for one in options)
    assert all(second[name].equal(value) for name, value in first.items())
    assert not other["encoder.tokens.weight"].equal(first["encoder.tokens.weight"])


# the order of training


def test_the_first_epochs_have_the_first_words(tiny_config, tmp_path):
    config = tiny_config(lead_words=2, length=80, headline_length=40)
    data = load_texts(config)["train"]
    vocabulary = load_vocabulary(config, tmp_path, data)
    pairs = TrainingPairs(data, vocabulary, config)
    sampler = LeadSampler(pairs, lead_epochs=2, sentences=4, seed=1)
    every = {(text, headline) for text, some in zip(data.texts, data.headlines, strict=True) for headline in some}
    leads = {(text, " ".join(text.split()[:2])) for text in data.texts}
    orders, seen = [], set()
    for epoch in range(12):
        order = sampler.batches(epoch)
        said = []
        for places in order:
            batch = pairs[places]
            sides = (batch.source, batch.target_out)
            said += zip(*([vocabulary.decode(row) for row in side.tolist()] for side in sides), strict=True)
        assert sorted(text for text, _ in said) == sorted(data.texts)
        assert set(said) <= (leads if epoch < 2 else every)
        seen |= set(said)
        assert sampler.batches(epoch) == order
        orders.append(order)
    assert orders[0] != orders[1]
    assert seen == leads | every


def test_long_texts_and_headlines_are_cut(tiny_config, tmp_path):
    config = tiny_config(length=5, headline_length=3)
    data = load_texts(config)["train"]
    pairs = first_headlines(data, load_vocabulary(config, tmp_path, data), config)
    assert {length for length, _ in pairs.lengths} == {5}
    assert max(length for _, length in pairs.lengths) == 3
    assert math.isfinite(run(TASK, config)["test_rouge_1"])


# headlines


@pytest.fixture
def random_writer(tiny_config, tmp_path):
    """A network of random weights, whose headlines differ, and texts of different lengths."""
    config = tiny_config(normalizer="hybrid", beam=3)
    data = load_texts(config)
    trained = build(config, load_vocabulary(config, tmp_path, data["train"]))
    for parameter in trained.model.parameters():
        torch.nn.init.normal_(parameter)
    return trained, [*data["train"].texts, f"{data['test'].texts[0]} more words", "two words"]


@pytest.mark.parametrize("size", [1, 3])
def test_neither_padding_nor_the_order_changes_headlines(size, random_writer, monkeypatch):
    trained, texts = random_writer
    expected = write_headlines(trained, texts)
    assert len({one.text for one in expected}) > 2
    assert write_headlines(trained, texts[::-1]) == expected[::-1]
    monkeypatch.setattr(evaluation, "BATCH", size)
    assert write_headlines(trained, texts) == expected


def test_a_cut_headline(random_writer):
    trained, texts = random_writer
    trained.model.bias.data[2] = -100.0  # the end
    assert all(one.cut for one in write_headlines(trained, texts, max_length=4))
    trained.model.bias.data[2] = 100.0
    assert [(one.text, one.cut) for one in write_headlines(trained, texts)] == [("", False)] * len(texts)


# bad input


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"heads": 3}, "num_heads 3"),
        ({"normalizer": "hybrid", "hybrid_share": 1.0}, "initial is 1.0"),
        ({"vocabulary": 10}, "size is 10"),
        ({"guide": "marginal"}, '"guide"'),
        ({"test_texts": 0}, '"test_texts"'),
        ({"train_file": Path("nowhere.jsonl")}, "nowhere.jsonl is missing"),
        ({"data_root": Path("nowhere")}, "gigaword.*is missing; expected"),
    ],
)
def test_bad_options(options, part, tiny_config):
    with pytest.raises(UserError, match=part):
        run(TASK, tiny_config(**options))


@pytest.mark.parametrize("split", FILES)
def test_bad_data_is_found_before_anything_is_written(split, root, tiny_config):
    write_entries(root / FILES[split], [entries()[0], {"text": "a"}])
    with pytest.raises(UserError, match=f"{root / FILES[split]}: line 2 cannot be read"):
        run(TASK, tiny_config())
    assert not tiny_config().out.exists()


def test_the_command_line(root, tmp_path, capsys):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "progress"]
    options += ["--no-progress", f"--data-root={root}", f"--out={tmp_path / 'run'}", "--max-epochs=1"]

    def command_line(*more):
        return run_commands(COMMANDS, name="experiments.headlines", arguments=["train", *options, *more])

    assert command_line() == 0
    shown = capsys.readouterr().out
    for part in ("test_rouge_1", "lead_rouge_l", plain_words(entries()[30]["text"]), "people:"):
        assert part in shown
    assert command_line() == 1
    assert "--resume" in capsys.readouterr().err
    assert command_line("--overwrite", "--normalizer=sparsemax") == 2
    assert "normalizer" in capsys.readouterr().err
    (tmp_path / "run" / "mine.txt").touch()
    assert command_line("--overwrite") == 0
    assert {"mine.txt", "summaries.txt"} <= {path.name for path in (tmp_path / "run").iterdir()}
