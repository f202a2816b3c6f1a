"""Train the rows of the paper's table of captions on photographs, and write results/."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.captioning import train as captioning
from experiments.captioning.config import CaptioningConfig, RowName, TableConfig
from experiments.captioning.data import load_images, load_maps
from experiments.captioning.figures import caption_sections
from experiments.captioning.model import load_trained
from experiments.captioning.rows import FROM, GRIDS, ROWS, base_config
from experiments.captioning.table_report import table_parts
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.files import UserError, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, Trainings, best_settings
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.sequence.compare import train_schemes

__all__ = ["run"]

_DRAWN: tuple[RowName, ...] = ("WC", "hard")

Setting = Mapping[str, float]


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is not trained yet, print the table and the pictures, and write results/.

    Returns:
        ``"<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    rows: tuple[RowName, ...] = tuple(ROWS) if config.rows is None else config.rows
    if "soft" not in rows:
        raise UserError("rows lack soft, which the others are compared with; add it")
    name, free = f"captioning-{config.dataset}-{config.encoder}", ("rows", "seeds", "pictures")
    always = ("dataset", "seeds", "encoder_weights")
    sweep = Sweep("experiments.captioning table", config, f"table/{name}", RESULTS, free=free, always=always)
    bases = {seed: base_config(config, sweep.folder, seed) for seed in range(config.seeds)}
    data = _prepare(config, bases)
    sweep.open()
    print("Training soft attention, once a seed:", flush=True)
    sweep.train(captioning.run, {("base", seed): base for seed, base in bases.items()}, shown="val_ppl")
    tried = _tried(config, sweep, bases[0], rows)
    best = best_settings({key: -tried.runs(*key)[0]["val_ppl"] for key in tried.rows})
    configs: dict[Key, CaptioningConfig] = {
        (row, seed): _going_on(config, base, row, _chosen(row, best)) for seed, base in bases.items() for row in rows
    }
    trainings = train_schemes(sweep, captioning.run, {}, configs)
    parts = [*table_parts(config, trainings, tried, best, data), *_pictures(config, trainings, data, sweep.folder)]
    report = Report(f"Captions of photographs: {config.dataset}, {config.encoder}", name, parts)
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _prepare(config: TableConfig, bases: Mapping[int, CaptioningConfig]) -> RegionCaptions:
    """Make the features here, so that several workers do not make them at the same time: the test photographs."""
    with user_errors(ValueError, OSError, ImportError):
        load_maps(bases[0])
        for seed in bases if config.encoder == "own" else (0,):
            data = load_images(bases[seed], progress=config.progress)
    return data["test"]


def _tried(
    config: TableConfig, sweep: Sweep, base: CaptioningConfig, rows: Iterable[RowName]
) -> Trainings[CaptioningConfig]:
    """All settings of the rows that have several, on the first seed."""
    sources = [source for source in dict.fromkeys(FROM.get(row, row) for row in rows) if source in GRIDS]
    configs: dict[Key, CaptioningConfig] = {
        (row, _text(setting), base.seed): _going_on(config, base, row, setting)
        for row in sources
        for setting in GRIDS[row]
    }
    print("Trying settings on the first seed:", flush=True)
    return sweep.train(captioning.run, configs, shown="val_ppl")


def _chosen(row: RowName, best: Collection[Key]) -> Setting:
    """The best setting of a row, none where it has nothing to choose."""
    source = FROM.get(row, row)
    return next((setting for setting in GRIDS.get(source, ()) if (source, _text(setting)) in best), {})


def _going_on(config: TableConfig, base: CaptioningConfig, row: RowName, setting: Setting) -> CaptioningConfig:
    """A row with a setting, from soft attention's network."""
    options: dict[str, Any] = {**ROWS[row], **setting}
    name = "-".join([row, *(f"{option}-{value:g}" for option, value in setting.items()), str(base.seed)])
    return replace(
        base, **options, init_from=base.out, learning_rate=base.learning_rate / 2, max_epochs=config.epochs,
        patience=config.epochs, out=Path(str(base.out)).with_name(name),
    )  # fmt: skip


def _text(setting: Setting) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def _pictures(
    config: TableConfig, trainings: Trainings[CaptioningConfig], data: RegionCaptions, folder: Path
) -> list[Part]:
    """Attention and uncertainty of the captions that the first seed made of the first test photographs."""
    parts = []
    for row in _DRAWN:
        if (row,) in trainings.rows:
            out = Path(str(trainings.first(row).out))
            trained = load_trained(out, data.regions.size(2), device=config.device)
            captions, places = (out / "captions.txt").read_text().splitlines(), range(min(config.pictures, len(data)))
            parts += caption_sections(trained, data, captions, places, folder / "figures", name=row)
    return parts
