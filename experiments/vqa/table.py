"""Train the rows of the papers' tables on questions about photographs, and write results/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from experiments.datasets.questions.data import Questions
from experiments.files import UserError, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.options import RunOptions, options_of
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.harness.words import expected_one_of
from experiments.report.columns import Column, Row, Runs, columns_of, summary_rows
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.vqa import train as vqa
from experiments.vqa.baselines import baselines
from experiments.vqa.claims import claim_parts
from experiments.vqa.config import BlockName, TableConfig, VQAConfig, VQAOptions
from experiments.vqa.data import load_questions
from experiments.vqa.rows import BLOCKS, IMAGES, Block, scores

__all__ = ["prepare", "run", "shared_options"]

_KINDS = {
    "mean": "Confidence before and after temperature scaling (attention at its posterior mean, no dropout)",
    "attention": "Samples of the attention alone",
    "mc_dropout": "Samples of dropout alone (attention at its posterior mean)",
    "both": "Samples of attention and dropout",
}


def shared_options(config: VQAOptions) -> dict[str, Any]:
    """What all trainings of a sweep have in common: their options but the seed, and where they are."""
    own = {field.name for field in fields(RunOptions)} | {"seed"}
    return {name: value for name, value in options_of(config, VQAOptions).items() if name not in own}


def prepare(config: VQAOptions) -> None:
    """Make the features of photographs, so that several workers do not make them at the same time.

    Raises:
        UserError: The data are missing or bad.
    """
    if config.dataset != "digits":
        _questions(config)


def _questions(config: VQAOptions) -> dict[str, Questions]:
    options = {name: getattr(config, name) for name in ("data_root", "device", "progress")}
    with user_errors(ValueError, OSError):
        return load_questions(VQAConfig(**shared_options(config), **options, model="mcan"))


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is not trained yet, print the table and the claims, and write results/.

    Returns:
        ``"<block>/<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    if not config.blocks:
        raise UserError(f"blocks is empty, expected some of {', '.join(BLOCKS)}")
    names = _names(config)
    if "dn" in config.blocks and config.dataset != "digits":
        raise UserError(f"{config.dataset} has one view of a photograph, and block dn needs several; leave it out")
    name = f"vqa-{config.dataset}"
    sweep = Sweep(
        "experiments.vqa table", config, f"table/{name}", RESULTS, free=("blocks", "rows", "seeds", "max_epochs"),
        always=("dataset", "seeds"),
    ).open()  # fmt: skip
    guesses = baselines(_questions(config))  # the features are made before several workers would make them
    shared = shared_options(config)
    rows: dict[Key, dict[str, Any]] = {
        (block, row): {**shared, **BLOCKS[block].rows[row]} for block, found in names.items() for row in found
    }
    seeds = range(config.seed, config.seed + config.seeds)
    trainings = sweep.train(vqa.run, sweep.configs(VQAConfig, rows, seeds))
    found: dict[BlockName, dict[str, Runs]] = {
        block: {row: trainings.runs(block, row) for row in found} for block, found in names.items()
    }
    parts = [Part(text=_text(trainings, guesses)), *claim_parts(found)]
    for block, runs in found.items():
        parts += _block_parts(BLOCKS[block], runs)
    report = Report(f"Questions about photographs: {config.dataset}", name, parts)
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _names(config: TableConfig) -> dict[BlockName, list[str]]:
    """The rows of every block.

    Raises:
        UserError: A row is unknown, a block has none, or one is missing that others are compared with.
    """
    found = dict[BlockName, list[str]]()
    known = [row for block in config.blocks for row in BLOCKS[block].rows]
    for row in config.rows or ():
        if row not in known:
            raise UserError(f"rows '{row}': {expected_one_of(known, row)}")
    for block in config.blocks:
        found[block] = [row for row in BLOCKS[block].rows if config.rows is None or row in config.rows]
        if not found[block]:
            raise UserError(f"block {block} has none of these rows; leave the block out")
        if lacking := {BLOCKS[block].reference(row) for row in found[block]} - set(found[block]):
            raise UserError(f"rows of block {block} are compared with '{lacking.pop()}', which has to be among them")
    return found


def _text(trainings: Trainings[VQAConfig], guesses: Mapping[str, float]) -> str:
    one = next(iter(trainings.configs.values()))
    questions = sorted({round(found["train_questions"]) for found in trainings.metrics.values()})
    return (
        f"{' or '.join(map(str, questions))} training questions; width {one.hidden}, depth {one.layers}, "
        f"{one.heads} heads, dropout {one.dropout:g}, Adam with learning rate "
        f"{one.learning_rate:g}, halved on a plateau, batches of {one.batch_size}, at most "
        f"{one.max_epochs} epochs, patience {one.patience} on the validation loss. "
        f"{_settings(trainings)}Test scores over {one.num_samples} samples. The papers' numbers are of another data "
        f"set and network, and stand here for the order of the rows alone.\n\n"
        f"Without a look at any photograph, the most frequent answer of the training is right for "
        f"{guesses['majority']:.1%} of the test questions, and the most frequent one to questions that begin with the "
        f"same two words for {guesses['form']:.1%}.\n\n"
        f"Mean ± standard deviation over {len(trainings.seeds)} seeds. Differences are taken seed by seed, with their "
        f"95 % confidence interval (Student's t), not corrected for the number of comparisons."
    )


def _settings(trainings: Trainings[VQAConfig]) -> str:
    """KL weights and noise of the rows with random weights."""
    guides = {config.guide: config for config in trainings.configs.values()}
    noise = {"lognormal": "scale", "weibull": "concentration"}
    found = [
        f"KL weight {guides[guide].kl_weight:g} and {name} {getattr(guides[guide], name):g} of {guide} posteriors"
        for guide, name in noise.items()
        if guide in guides
    ]
    chosen = "chosen on validation questions about digits (experiments.vqa search)"
    return f"{'; '.join(found)}: {chosen}. The KL of an alignment has weight 1. " if found else ""


def _block_parts(block: Block, runs: Mapping[str, Runs]) -> list[Part]:
    parts = [Part(block.title, f"{block.text} Paper: {block.source}.", rows=_rows(block, runs))]
    more = [column for column in block.more if columns_of(runs, [column])]
    parts.append(Part("Where it looks, and what training took", rows=summary_rows("row", runs, more)))
    if kinds := _by_question(runs):
        parts.append(Part("Accuracy % by kind of question", rows=summary_rows("row", runs, kinds), terminal=False))
    if block is BLOCKS["bam"]:
        noisy = {title: _noisy_rows(runs, kind) for kind, title in _KINDS.items()}
        parts += [Part(title, rows=rows, terminal=False) for title, rows in noisy.items() if rows]
    return parts


def _rows(block: Block, runs: Mapping[str, Runs]) -> list[Row]:
    """The main numbers with their differences, and the paper's."""
    rows = list[Row]()
    for row, found in runs.items():
        reference, cells = block.reference(row), Row(row=row)
        for column in block.columns:
            cells[column.name] = column.cell(found)
            same = row == reference
            cells[f"{column.name}: difference"] = "" if same else column.difference(found, runs[reference], reference)
        cells["compared with"] = "" if row == reference else reference
        rows.append(cells | {"paper": block.paper.get(row, "")})
    return rows


def _by_question(runs: Mapping[str, Runs]) -> list[Column]:
    """A column for every kind of question."""
    first = next(iter(runs.values()))[0]
    kinds = [name.split("/")[2] for name in first if name.startswith("test_accuracy/mean/")]
    return [Column(kind, f"test_accuracy/mean/{kind}", 1, 100) for kind in kinds if not kind.startswith("noise_")]


def _noisy_rows(runs: Mapping[str, Runs], kind: str) -> list[Row]:
    """Scores of one kind of prediction: a row of the table for each sort of images, as far as there are any."""
    rows, shown = list[Row](), columns_of(runs, scores(kind))
    for images, end in IMAGES.items():
        for row, found in runs.items():
            columns = [Column(one.name, one.metric + end, one.digits, one.factor) for one in shown]
            if columns and columns[0].values(found):
                rows.append({"images": images, "row": row} | {column.name: column.cell(found) for column in columns})
    return rows
