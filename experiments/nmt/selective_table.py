"""Part of the comparison of translations: what the uncertainty of every scheme's translations is worth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_environment, write_metrics
from experiments.harness.sweep import Sweep, Trainings
from experiments.nmt.config import CompareTranslations, TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.model import load_trained
from experiments.nmt.selective import MEASURES, measured
from experiments.nmt.selective_config import SelectiveRun
from experiments.report.columns import Column, Row, Runs, summary_rows
from experiments.report.report import Part

__all__ = ["measure_run", "selective_parts", "selective_runs"]

_TITLE = "Is the uncertainty of a translation worth something?"
_COMPARED = "log probability"  # every scheme has it


def selective_runs(
    config: CompareTranslations, sweep: Sweep, trainings: Trainings[TranslationConfig]
) -> Trainings[SelectiveRun]:
    """Measure every network that is not measured yet, in folders beside those of the trainings."""
    configs = {
        (row, seed): SelectiveRun(
            **config.for_runs(), run=Path(str(training.out)), seed=seed, pairs=config.selective_pairs,
            out_of_domain=config.out_of_domain, out=sweep.folder / "selective" / f"{row}-{seed}",
        )
        for (row, seed), training in trainings.configs.items()
    }  # fmt: skip
    print("Measuring what uncertainty is worth:", flush=True)
    return sweep.train(measure_run, configs, shown=f"rank correlation by {_COMPARED}")


@exclusive
def measure_run(config: SelectiveRun) -> dict[str, float]:
    """Measure one network; what is in the folder already is not computed again when resuming."""
    folder = Path(str(config.out))
    open_run(folder, config)
    if (metrics := read_metrics(folder)) is not None:
        return metrics
    trained = load_trained(config.run, device=config.device)
    found = measured(trained, load_text(trained.config, "test"), config)
    write_environment(folder, trained.device)
    write_metrics(folder, found.numbers, found.definitions)
    return found.numbers


def selective_parts(runs: Mapping[str, Runs], config: CompareTranslations) -> list[Part]:
    """Tables of what the uncertainty of the translations is worth, a row a scheme."""
    quality = {measure: f"BLEU at 50% by {measure}" for measure in MEASURES}
    whole = [Column("all", f"BLEU at 100% by {_COMPARED}", 1)]
    half = [*whole, *(Column(f"by {measure}", metric, 1) for measure, metric in quality.items())]
    ranks = [Column(f"by {measure}", f"rank correlation by {measure}") for measure in MEASURES]
    areas = [
        (text, [Column(f"by {measure}", f"auroc of {text} by {measure}") for measure in MEASURES])
        for text in config.out_of_domain
    ]
    words = "; ".join(f"{name}: {text}" for name, text in MEASURES.items())
    about = (
        "Beam search here sums over the 5 most probable alignments of a word where they are summed out. Differences to "
        f"soft attention are those by {_COMPARED}."
    )
    if config.selective_pairs is not None:
        about += f" Of each text the first {config.selective_pairs} sentence pairs."
    parts = [Part(_TITLE, f"Measures, larger where a translation is more doubtful. {words}. {about}")]
    told = "told from those of the test text, area under the ROC curve"
    tables = [
        ("BLEU of all translations, and of the surest half of them", "BLEU of the surest half", half),
        ("Rank correlation (Spearman's) of the certainty of a translation with its chrF", "rank correlation", ranks),
        *((f"Sentences of {text} {told}", f"{text}: AUROC of text from elsewhere", columns) for text, columns in areas),
    ]
    for title, metric, columns in tables:
        parts.append(Part(text=f"{title}:", rows=_rows(runs, columns, metric)))
    return parts


def _rows(runs: Mapping[str, Runs], columns: list[Column], metric: str) -> list[Row]:
    """A row a scheme, and its difference to soft attention, by log probability, where there are seeds of both."""
    rows, compared, soft = summary_rows("scheme", runs, columns), f"by {_COMPARED}", runs.get("soft", [])
    one = next(column for column in columns if column.name == compared)
    if len(soft) > 1 and one.values(soft):
        for row in rows:
            other = row["scheme"] != "soft"
            row[f"{metric} minus soft"] = one.difference(runs[str(row["scheme"])], soft, "soft") if other else ""
    return rows
