"""Normalisers of the encoder's attention, deterministic and Bayesian, by the headlines that are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.datasets.text.headlines import HeadlineText
from experiments.files import UserError, read_text, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.options import RunOptions, options_of
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.headlines import train as headlines
from experiments.headlines.config import HeadlineConfig, HeadlineOptions, HeadlineTableConfig
from experiments.headlines.data import load_texts
from experiments.headlines.scores import lead_baseline, rouge
from experiments.report.attention_rows import compared_rows, hybrid_rows
from experiments.report.columns import Column, Row
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.report.statistics import Estimate, paired_difference

__all__ = ["HeadlineTableConfig", "run"]

SCORES = (
    Column("ROUGE-1", "test_rouge_1", 2),
    Column("ROUGE-2", "test_rouge_2", 2),
    Column("ROUGE-L", "test_rouge_l", 2),
)
COMPARED = (*SCORES, Column("perplexity", "test_ppl", 2))
COLUMNS = (*COMPARED, Column("words", "test_words", 1), Column("ms/step", "step_ms", 0))
PAPER = {
    "softmax, soft": "38.02 / 18.93 / 35.25",
    "doubly_normalized, soft": "38.19 / 19.09 / 35.52",
    "hybrid, soft": "38.27 / 19.30 / 35.56",
}
"""ROUGE-1, 2 and L of Ding et al. (2020), Attention that does not Explain Away, table 3."""


@exclusive
def run(config: HeadlineTableConfig) -> dict[str, float]:
    """Train what is not trained yet, print the table, and write results/.

    Returns:
        ``"<normaliser>, <guide>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    if not config.normalizers or not config.guides:
        raise UserError("normalizers or guides is empty, expected one at least of each")
    with user_errors(ValueError, OSError):
        test = load_texts(config)["test"]
    sweep = Sweep(
        "experiments.headlines table", config, "table/headlines", RESULTS, free=("normalizers", "guides", "seeds"),
        always=("seeds", "max_epochs", "train_file", "val_file", "test_file"),
    ).open()  # fmt: skip
    where = {field.name for field in fields(RunOptions)} | {"seed"}
    shared = {name: value for name, value in options_of(config, HeadlineOptions).items() if name not in where}
    rows: dict[Key, dict[str, Any]] = {
        (f"{normalizer}, {guide}",): shared | {"normalizer": normalizer, "guide": guide}
        for normalizer in config.normalizers
        for guide in config.guides
    }
    seeds = range(config.seed, config.seed + config.seeds)
    trainings = sweep.train(headlines.run, sweep.configs(HeadlineConfig, rows, seeds), shown="test_rouge_1")
    runs = trainings.by_row()
    parts = [Part(text=_text(config, trainings, test)), Part(rows=_rows(config, trainings, test))]
    if hybrid := hybrid_rows(runs):
        text = (
            "Share of doubly normalised attention that hybrid attention ends with, by layer of the encoder, mean over"
        )
        parts.append(Part(text=f"{text} heads (range of all heads and seeds):", rows=hybrid))
    return sweep.finish(
        Report("Headlines with normalisers of attention", "headlines", parts), trainings,
        definitions="mean over seeds; see metrics.json of the runs",
    )  # fmt: skip


def _rows(config: HeadlineTableConfig, trainings: Trainings[HeadlineConfig], test: HeadlineText) -> list[Row]:
    """The first words of the texts, and then every row, compared with these too."""
    baseline, runs = lead_baseline(test, config.lead_words), trainings.by_row()
    rows = compared_rows(runs, COLUMNS, COMPARED)
    for row in rows:
        by_text = _scores_by_text(trainings, row["attention"], test)
        for column in SCORES:
            name = column.metric.removeprefix("test_")
            row[f"{column.name}: beyond the first words"] = paired_difference(by_text[name], baseline[name])
        row["paper"] = PAPER.get(row["attention"], "")
    first: Row = dict.fromkeys(rows[0], "") | {"attention": f"the first {config.lead_words} words"}
    for column in SCORES:
        first[column.name] = _interval(baseline[column.metric.removeprefix("test_")])
    return [first, *rows]


def _interval(values: list[float]) -> Estimate:
    """Mean over texts with its 95 % interval."""
    found = paired_difference(values, [0.0] * len(values))
    return Estimate(found.mean, low=found.low, high=found.high)


def _scores_by_text(trainings: Trainings[HeadlineConfig], row: str, test: HeadlineText) -> Mapping[str, list[float]]:
    """ROUGE of every test text, mean over the seeds of a row.

    Raises:
        UserError: The headlines of a run cannot be read.
    """
    found = []
    for seed in trainings.seeds:
        path = Path(str(trainings.configs[row, seed].out)) / headlines.SUMMARIES
        lines = read_text(path, "remove its folder to train it again").split("\n")[:-1]
        if len(lines) != len(test):
            raise UserError(f"{path} has {len(lines)} lines, expected {len(test)}; remove its folder to train it again")
        found.append(rouge(lines, test.headlines))
    return {name: [fmean(one) for one in zip(*(scores[name] for scores in found), strict=True)] for name in found[0]}


def _text(config: HeadlineTableConfig, trainings: Trainings[HeadlineConfig], test: HeadlineText) -> str:
    one, seeds = next(iter(trainings.configs.values())), len(trainings.seeds)
    comparisons = len(COMPARED) * (len(trainings.rows) - 1) + len(SCORES) * len(trainings.rows)
    return (
        f"Transformer of {one.layers} + {one.layers} layers of {one.heads} heads, width {one.width}, at most "
        f"{one.vocabulary} word pieces, and no copying of words; {one.max_epochs} epochs, in the first "
        f"{one.lead_epochs} of which the decoder learns to say the first {one.lead_words} words of a text. The decoder "
        f"has {one.decoder} attention, normalised by softmax. Weibull: concentration {one.concentration:g}, "
        f"{one.prior} prior, KL weight {one.kl_weight:g}; hybrid begins with a share of {one.hybrid_share:g}. Beam "
        f"search with {one.beam} hypotheses, attention at its mean; perplexity of weibull over {one.num_samples} "
        f"posterior samples. ROUGE is the F-measure of torchmetrics on {len(test)} test texts. The paper's numbers are "
        f"of 3.8 million training texts and 12 layers of width 768, and stand here for the order of the rows alone.\n\n"
        f"Mean ± standard deviation over {seeds} seeds, and differences seed by seed with their 95 % confidence "
        f"intervals (Student's t). Beyond the first words: mean difference over the test texts to a headline of their "
        f"first {config.lead_words} words, each text's score being its mean over seeds; its interval, and that of the "
        f"first words themselves, is over texts. No interval is corrected for the number of comparisons, {comparisons}."
    )
