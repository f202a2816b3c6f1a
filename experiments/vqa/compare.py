"""Compare posteriors of the attention of MCAN: a table, pictures and a report.

python -m experiments.compare --task vqa
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.files import UserError
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.report.columns import Column, summary_rows
from experiments.report.report import Part, Report
from experiments.vqa import train as vqa
from experiments.vqa.ask import draw_questions
from experiments.vqa.config import CompareQuestions, VQAConfig
from experiments.vqa.rows import ACCURACY, NLL, in_noise
from experiments.vqa.table import prepare, shared_options

__all__ = ["run"]

_COLUMNS = (
    ACCURACY,
    in_noise(ACCURACY, "noise .5"),
    NLL,
    Column("ECE", "test_ece/mean"),
    Column("mass on relevant %", "relevant_mass", 1, 100),
    Column("uniform %", "uniform_mass", 1, 100, spread=False),
    Column("AUROC dropout", "test_auroc_entropy/mc_dropout"),
    Column("AUROC attention", "test_auroc_entropy/attention"),
    Column("ms/step", "step_ms", 0),
)
_LEGEND = (
    "MCAN on a small number of questions; attention at its posterior mean, noise of half a standard deviation of the "
    "features at test time alone. Mass: of the attention that the answer is read from, on the regions that one has to "
    "look at, beside uniform attention. AUROC: of the entropy of the answer over samples, for wrong answers."
)


@exclusive
def run(config: CompareQuestions) -> dict[str, float]:
    """Train all rows, print the table, and write pictures and report.html; ``"<scheme>/<metric>"`` to its mean."""
    if not config.schemes:
        raise UserError("schemes is empty, expected some of soft, weibull, lognormal, gamma")
    name, free = f"vqa-{config.dataset}", ("schemes", "seeds", "pictures")
    sweep = Sweep("experiments.compare", config, f"compare/{name}", free=free, always=("task",)).open()
    prepare(config)
    shared = shared_options(config) | {"kl_weight": config.kl_weight, "test_noise": (0.0, 0.5)}
    rows: dict[Key, dict[str, Any]] = {(scheme,): shared | {"guide": scheme} for scheme in config.schemes}
    seeds = range(config.seed, config.seed + config.seeds)
    trainings = sweep.train(vqa.run, sweep.configs(VQAConfig, rows, seeds))
    text = f"Over {config.seeds} seeds: mean ± standard deviation. {_LEGEND}"
    table = Part(text=text, rows=summary_rows("attention", trainings.by_row(), _COLUMNS))
    parts = [table, *_pictures(config, trainings, sweep.folder / "figures")]
    report = Report(f"Questions about photographs: {config.dataset}", name, parts)
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _pictures(config: CompareQuestions, trainings: Trainings[VQAConfig], folder: Path) -> list[Part]:
    """Where the network of the first seed looks at some test questions, for every scheme."""
    if not config.pictures:
        return []
    print("Drawing the pictures ...", flush=True)
    parts = []
    for scheme in config.schemes:
        run_folder = vqa.run_folder(trainings.first(scheme))
        paths = draw_questions(run_folder, config.pictures, device=config.device, out=folder, name=scheme)
        parts += [Part(f"Where {scheme} attention looks", picture=path, published=False) for path in paths]
    return parts
