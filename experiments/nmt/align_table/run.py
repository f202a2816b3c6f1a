"""Train every scheme in both directions, and score its alignments on gold links beside classic aligners.

python -m experiments.nmt align-table --dataset europarl_de_en --data-root DIR
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.nmt import train as nmt
from experiments.nmt.align_table.aligned import BASELINES, Aligned, align_by_baseline, align_by_networks
from experiments.nmt.align_table.certainty import DEFINITIONS
from experiments.nmt.align_table.config import AlignTable
from experiments.nmt.align_table.kept import fingerprint, kept
from experiments.nmt.align_table.report import report_parts, summarised
from experiments.nmt.align_table.results import KINDS, RowResult, row_result
from experiments.nmt.align_table.rows import DIRECTIONS, row_options
from experiments.nmt.align_table.scores import COMBINATIONS
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import check_coverage, load_text
from experiments.report.report import Report
from pyro_attention.analysis import GoldAlignment

__all__ = ["AlignTable", "run"]

_LONGEST = 200  # words of a sentence that the baselines are trained on; Model 2 has a table for every length
_FREE = ("schemes", "ablations", "ablated", "baselines", "baselines_see_test", "seeds", "coverage")


@exclusive
def run(config: AlignTable) -> dict[str, float]:
    """Train what is not trained yet, print the tables, and write pictures and report.html.

    Returns:
        ``"<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: The data have no gold links or are bad, options do not fit, or a baseline is not installed.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    check_coverage(config.coverage, of="words")
    rows = row_options(config)
    sweep = Sweep("experiments.nmt align-table", config, f"align-table/{config.dataset}", free=_FREE).open()
    configs = sweep.configs(TranslationConfig, rows, range(config.seeds))
    train, test, gold = _texts(next(iter(configs.values())))
    print("Training the baselines ...", flush=True)
    found = _baselines(config, sweep.folder / "baselines", train, test, gold)
    print("Training every scheme in both directions:", flush=True)
    trainings = sweep.train(nmt.run, configs, shown="val_ppl")
    print("Scoring ...", flush=True)
    found |= _networks(config, trainings, gold)
    with user_errors(ValueError):
        parts = report_parts(config, found, sweep.pictures, sentences=len(gold), pairs=len(train))
    metrics = {f"{row}/{metric}": value for row, one in found.items() for metric, value in one.metrics.items()}
    title = f"Word alignment: {config.dataset}{', one option changed at a time' if config.ablations else ''}"
    report = Report(title, config.section, parts, summarised(found))
    return sweep.finish(report, trainings, metrics, _definitions(config))


def _texts(config: TranslationConfig) -> tuple[ParallelText, ParallelText, list[GoldAlignment]]:
    """Training text with its long pairs, for the baselines, test text, and the gold links, from source to target."""
    with user_errors(ValueError, OSError):
        train, test = load_text(replace(config, max_words=_LONGEST), "train"), load_text(config, "test")
    if test.gold is None:
        raise UserError(f"the test pairs of {config.dataset} have no gold links; expected a data set that has")
    if len(test) < 2:
        raise UserError(f"{len(test)} gold sentence; expected 2 at least, as half of them choose for the other half")
    return train, test, test.gold


def _baselines(
    config: AlignTable, folder: Path, train: ParallelText, test: ParallelText, gold: Sequence[GoldAlignment]
) -> dict[str, RowResult]:
    found, with_test = {}, config.baselines_see_test
    for name in config.baselines:
        key = fingerprint(name, train, test, with_test=with_test)
        make = partial(align_by_baseline, name, train, test, with_test=with_test)
        aligned = kept(folder / f"{name}.npz", key, test, make)
        found[BASELINES[name]] = row_result([aligned], gold, coverage=config.coverage, network=False)
    return found


def _networks(
    config: AlignTable, trainings: Trainings[TranslationConfig], gold: Sequence[GoldAlignment]
) -> dict[str, RowResult]:
    rows = list(dict.fromkeys(row for row, _ in trainings.rows))
    soft = _aligned(trainings, "soft") if "soft" in rows else None
    found = {}
    for row in rows:
        aligned = soft if row == "soft" and soft is not None else _aligned(trainings, row)
        result = row_result(aligned, gold, coverage=config.coverage, network=True, soft=soft)
        keys = [(row, direction, seed) for direction in DIRECTIONS for seed in trainings.seeds]
        for metric in ("val_ppl", "step_ms"):
            values = [trainings.metrics[key][metric] for key in keys if metric in trainings.metrics[key]]
            if values:
                result.metrics[metric] = fmean(values)
        result.metrics["agreement"] = fmean(one.agreement for one in _aligned(trainings, row, split="val"))
        found[row] = result
    return found


def _aligned(trainings: Trainings[TranslationConfig], row: str, *, split: str = "test") -> list[Aligned]:
    """Alignments of every seed; of the test text also the exact ones."""
    found = []
    for seed in trainings.seeds:
        forward, backward = (trainings.configs[row, direction, seed] for direction in DIRECTIONS)
        found.append(align_by_networks(forward, backward, split=split, exact=split == "test"))
    return found


def _definitions(config: AlignTable) -> Mapping[str, str]:
    how = "mean over seeds"
    texts = {
        f"{kind} aer, {name}": f"alignment error rate of the {kind} weights, {name}; {how}"
        for kind in KINDS
        for name in COMBINATIONS
    }
    chosen = "links in the way (combination, threshold) that was best on the other half of the gold sentences"
    for kind in KINDS:
        texts[f"{kind} aer, chosen"] = f"alignment error rate of the {kind} weights, {chosen}; {how}"
    texts |= {
        "precision": f"precision of the posterior, {chosen}; {how}",
        "recall": f"recall of the posterior, {chosen}; {how}",
        "agreement": f"F1 between the most probable links of both directions on the validation text; {how}",
        "val_ppl": f"perplexity per word piece of the validation text, {how} and directions",
        "step_ms": f"milliseconds a training step, {how} and directions",
    }
    texts |= {name: f"{text}; {how}" for name, text in DEFINITIONS.items()}
    for share in config.coverage:
        texts[f"aer at {share:.0%}"] = (
            f"alignment error rate of the {share:.0%} most certain target words, the others left out with their gold "
            f"links; {how}"
        )
    return texts
