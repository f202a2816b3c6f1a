"""Headlines end to end: ROUGE, every attention, the first words at first, what is written, the table, bad input."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from experiments.cli import run_commands
from experiments.data.text.word_rules import join_words
from experiments.headlines.config import COMMANDS, HeadlineConfig
from experiments.headlines.studies import table
from experiments.headlines.task import (
    HeadlineTask,
    LeadSampler,
    TrainingPairs,
    build,
    first_headlines,
    lead_baseline,
    load_texts,
    load_vocabulary,
    perplexity,
    rouge,
    summaries,
    write_headlines,
)
from experiments.options import StudyOptions
from experiments.report.report import read_results
from experiments.report.statistics import paired_difference
from experiments.run import load_trained
from experiments.sequence import evaluation
from tests.experiments.headlines.conftest import RUNS
from tests.experiments.headlines.tiny_headlines import SIZES, TINY

TASK = HeadlineTask()


@pytest.mark.parametrize("name", RUNS)
def test_every_attention_trains_and_evaluates(name, finished):
    config, metrics = finished(name)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["updates"] == 2 * SIZES["train"] / TINY["batch_size"]
    assert sum(name.startswith("hybrid_layers.") for name in metrics) == (4 if config.normalizer == "hybrid" else 0)
    # the same numbers from the checkpoint
    trained, test = load_trained(TASK, config), load_texts(config)["test"]
    assert perplexity(trained, test) == pytest.approx(metrics["test_ppl"], rel=1e-5)
    assert [one.text for one in write_headlines(trained, test.texts)] == summaries(config.out)
    val = load_texts(config)["val"]
    longest = rouge([one.text for one in write_headlines(trained, val.texts)], val.headlines)["rouge_l"]
    assert metrics["val_rouge_l"] == pytest.approx(fmean(longest))
    # the prior trains where the attention is random
    before = dict(build(config, trained.vocabulary).model.named_parameters())
    after = {name: value for name, value in trained.model.named_parameters() if ".prior." in name}
    assert bool(after) == (name == "hybrid")
    assert any(site.startswith(("decoder", "layers.")) for site in after) == (name == "hybrid")
    assert not any(value.equal(before[site]) for site, value in after.items())


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


def test_long_texts_and_headlines_are_cut(finished, tmp_path):
    config, _ = finished("fixed")
    data = load_texts(config)["train"]
    pairs = first_headlines(data, load_vocabulary(config, tmp_path, data), config)
    assert {length for length, _ in pairs.lengths} == {5}
    assert max(length for _, length in pairs.lengths) == 3


def test_neither_padding_nor_the_order_changes_headlines(tiny_config, tmp_path, monkeypatch):
    """Of a network of random weights, whose headlines differ."""
    config = tiny_config(normalizer="hybrid", beam=3)
    data = load_texts(config)
    trained = build(config, load_vocabulary(config, tmp_path, data["train"]))
    for parameter in trained.model.parameters():
        torch.nn.init.normal_(parameter)
    texts = [*data["train"].texts[:12], f"{data['test'].texts[0]} more words", "two words"]
    expected = write_headlines(trained, texts)
    assert len({one.text for one in expected}) > 2
    monkeypatch.setattr(evaluation, "BATCH", 3)
    assert write_headlines(trained, texts[::-1]) == expected[::-1]
    trained.model.bias.data[2] = -100.0  # the end
    assert all(one.cut for one in write_headlines(trained, texts))
    trained.model.bias.data[2] = 100.0
    assert write_headlines(trained, texts) == [("", False)] * len(texts)


# the commands

TEXTS = ["Police met officials in Rome, they said.", 'The president left town on June 12 ("today").']
AS_IN_TRAINING = [
    "police met officials in rome , they said .",
    "the president left town on june ## ( `` today '' ) .",
]


def test_headlines_of_a_file(finished, tmp_path, capsys):
    """Bad lines become empty ones; the files that are there stay."""

    def command_line(*arguments):
        words = ["summarize", str(finished("softmax")[0].out), *map(str, arguments)]
        return run_commands(COMMANDS, name="experiments.headlines", arguments=words)

    file, out = tmp_path / "news.txt", tmp_path / "news.headlines"
    lines = [TEXTS[0].encode(), b"", b"word " * 1001, b"gr\xfcn", TEXTS[1].encode()]
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert command_line(file) == 0
    shown = capsys.readouterr()
    assert f"2 headlines, in lower case, with # for digits: {out}" in shown.out
    assert "news.txt: line 3 has 1001 words; expected 1000 at most" in shown.err
    trained = load_trained(HeadlineTask(), finished("softmax")[0])
    first, last = (join_words(one.text, "nltk") for one in write_headlines(trained, AS_IN_TRAINING))
    assert out.read_text() == f"{first}\n\n\n\n{last}\n"
    assert command_line(file, "--overwrite", "--tokenize", "none") == 0
    assert out.read_text() != f"{first}\n\n\n\n{last}\n"


def test_table(texts: Path, tmp_path: Path) -> None:
    changes = TINY | {"lead_words": 3, "max_epochs": 1, "precision": "32", "beam": 1, "train_texts": 8}
    del changes["progress"]
    options = StudyOptions(
        name="headlines", rows=("softmax, soft", "hybrid, soft"), seeds=2, workers=1,
        progress=False, data_root=texts, out=tmp_path / "out", results=tmp_path / "results", changes=changes,
    )  # fmt: skip
    means = table(options)
    # what a row has written: in one seed what people wrote, in the other one nothing of it
    test, runs = load_texts(HeadlineConfig(data_root=texts))["test"], tmp_path / "out" / "runs"
    for seed, headlines in enumerate(([people[0] for people in test.headlines], ["#"] * len(test))):
        (runs / f"hybrid-soft-{seed}" / "summaries.txt").write_text("".join(f"{line}\n" for line in headlines))
    assert table(replace(options, resume=True)) == pytest.approx(means)
    report, source = read_results(next((tmp_path / "results").glob("*.json")))
    assert source.command.startswith("python -m experiments.headlines table headlines --seeds 2 --rows")
    rows = {row["attention"]: row for row in report.parts[0].rows}
    assert [row["compared with"] for row in rows.values()] == ["", "softmax, soft"]
    assert rows["hybrid, soft"]["perplexity: difference"].mean == pytest.approx(
        means["hybrid, soft/test_ppl"] - means["softmax, soft/test_ppl"]
    )
    # the first words, text by text
    beyond = report.parts[1]
    baseline = lead_baseline(test, 3)["rouge_1"]
    assert beyond.rows[0]["ROUGE-1"].mean == pytest.approx(sum(baseline) / len(baseline))
    found, expected = beyond.rows[-1]["ROUGE-1"], paired_difference([50.0] * len(test), baseline)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
