"""What is reported of the table of captions: scores with paired intervals, where attention is, doubt and diversity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from experiments.captioning.config import CaptioningConfig, TableConfig
from experiments.captioning.diversity import COUNT, WAYS
from experiments.captioning.map_pointing import NOUNS
from experiments.captioning.rows import LEGEND, PAPER, features_text, floor_text
from experiments.captioning.uncertainty import DOUBTS
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.harness.sweep import Key, Trainings
from experiments.report.columns import Column, Row, Runs, columns_of, summary_rows
from experiments.report.report import Part

__all__ = ["table_parts"]

_COLUMNS = (
    *(Column(f"BLEU-{n}", f"test_bleu_{n}", 1) for n in (1, 4)),
    Column("METEOR", "test_nltk_meteor", 1),
    Column("ROUGE-L", "test_rouge_l", 1),
    Column("CIDEr-D", "test_cider_d", 1),
    Column("perplexity", "test_ppl", 2),
    Column("relative entropy", "test_relative_entropy"),
)
_MORE = (
    *(Column(f"BLEU-{n}", f"test_bleu_{n}", 1) for n in (2, 3)),
    Column("change of attention", "test_attention_change"),
    Column("validation perplexity", "val_ppl", 2),
    Column("ms/step", "step_ms", 0),
    Column("parameters", "parameters", 0, spread=False),
)
_MASS = (
    Column("posterior %", "test_map_mass", 1, 100),
    Column("prior %", "test_map_mass_prior", 1, 100),
    Column("uniform %", "test_map_mass_uniform", 1, 100, spread=False),
    Column("centre %", "test_map_mass_centre", 1, 100, spread=False),
    Column("largest, posterior %", "test_map_point", 1, 100),
    Column("largest, prior %", "test_map_point_prior", 1, 100),
)
_FEWEST = 20  # nouns of a class that is shown by itself


def table_parts(
    config: TableConfig,
    trainings: Trainings[CaptioningConfig],
    tried: Trainings[CaptioningConfig],
    best: Collection[Key],
    test: RegionCaptions,
) -> list[Part]:
    """All tables, with the settings that were tried and the best of each row."""
    runs = trainings.by_row()
    parts = [Part(text=_text(config, runs, test), rows=_compared(runs))]
    parts.append(Part("Besides", rows=summary_rows("row", runs, _MORE)))
    parts.append(Part("Settings tried", _TRIED, rows=_tried_rows(tried, best)))
    if columns_of(runs, _MASS):
        parts.append(Part("Where attention is when a noun is said", _POINTING, rows=summary_rows("row", runs, _MASS)))
        parts.append(Part("The same by class", rows=_class_rows(runs)))
    doubt = [
        *(Column(f"rank correlation, {name}", f"test_rank_{name}") for name in DOUBTS),
        Column("CIDEr-D of all", "test_cider_d", 1),
        *(Column(f"of {n} % by {name}", f"test_cider_d_{name}_{n}", 1) for name in DOUBTS for n in (50, 25)),
    ]
    parts.append(Part("Does doubt tell bad captions", _DOUBT, rows=summary_rows("row", runs, doubt)))
    return [*parts, Part(f"{COUNT} captions of a photograph", _DIVERSE, rows=_diverse_rows(runs))]


def _text(config: TableConfig, runs: Mapping[str, Runs], test: RegionCaptions) -> str:
    meteor = columns_of(runs, [column for column in _COLUMNS if column.name == "METEOR"])
    return (
        f"{LEGEND} Soft attention is trained for {config.base_epochs} epochs of one caption a photograph, with Adam, "
        f"learning rate {config.learning_rate:g}, batches of {config.batch_size}, width {config.hidden} and dropout "
        f"{config.dropout:g}; every row, soft too, goes on from there for {config.epochs} at half the learning rate. "
        f"The epoch of the best validation perplexity is kept. Beam of {config.beam}. "
        f"{features_text(test.encoder, test)} {floor_text(runs['soft'][0])}\n\n"
        f"Mean ± standard deviation over {config.seeds} seeds; differences to soft are taken seed by seed, with their "
        f"95 % confidence interval (Student's t), not corrected for the number of comparisons. BLEU by sacrebleu's "
        f"counts, CIDEr-D and ROUGE-L as in coco-caption"
        f"{', METEOR is NLTK-METEOR' if meteor else ''}. {'' if meteor else _NO_METEOR}Perplexity of a word piece: "
        f"alignments summed out exactly; LogNormal and Weibull: predictive, over {config.num_samples} posterior "
        f"samples. Relative entropy: of the mean posterior weights, 1 is uniform. Paper: BLEU-4 / ROUGE-L / CIDEr of "
        f"Table 3 of Bayesian Attention Modules, on COCO with regions of a detector, for the order of the rows alone."
    )


_NO_METEOR = "METEOR is not shown, since NLTK found no WordNet here. "
_TRIED = (
    "Validation perplexity of the first seed, attention at its posterior mean. LF and WF take the setting of LC and WC."
)
_POINTING = (
    "Share of the attention of a noun that is on its class in segmentation maps, which a network has made and are "
    "right in most photographs: persons, dogs and so on, in the first five captions of the test photographs, the same "
    "for all rows. A region's share is spread evenly over its area. Uniform: weights that are the same everywhere; "
    "centre: all weight in the middle. Largest: share of the area of the region with the largest weight. The posterior "
    "of hard has seen the noun; its prior, and the posterior of the others, has not."
)
_DOUBT = (
    "Spearman's rank correlation, over test photographs, of doubt and CIDEr-D of the caption of beam search; negative "
    "where doubt tells bad captions. Then CIDEr-D of the half and the quarter of the captions with the least doubt, "
    "with document frequencies of all. "
    + "; ".join(f"{name}: {text}" for name, text in DOUBTS.items())
    + "; all are means over the word pieces of a caption."
)
_DIVERSE = (
    "; ".join(f"{way.replace('_', ' ')}: {text}" for way, text in WAYS.items())
    + ". Distinct: different words or pairs of words over all of a photograph. Self-BLEU: BLEU-4 of every caption "
    "against the others of its photograph. CIDEr-D is the mean over all captions."
)


def _compared(runs: Mapping[str, Runs]) -> list[Row]:
    """The main numbers with their differences to soft attention, and the paper's."""
    rows, shown = list[Row](), columns_of(runs, _COLUMNS)
    for row, found in runs.items():
        cells: Row = {"row": row}
        for column in shown:
            cells[column.name] = column.cell(found)
            difference = column.difference(found, runs["soft"], "soft")
            cells[f"{column.name}: difference"] = "" if row == "soft" else difference
        rows.append(cells | {"paper": PAPER.get(row, "")})
    return rows


def _tried_rows(tried: Trainings[CaptioningConfig], best: Collection[Key]) -> list[Row]:
    shown = (Column("validation perplexity", "val_ppl"),)
    return [
        {"row": key[0], "setting": key[1]}
        | {column.name: column.cell(tried.runs(*key)) for column in shown}
        | {"best": "best" if key in best else ""}
        for key in tried.rows
    ]


def _class_rows(runs: Mapping[str, Runs]) -> list[Row]:
    """Masses on the classes that many nouns are of."""
    first = next(iter(runs.values()))[0]
    kinds = [kind for kind in NOUNS if first.get(f"test_map_nouns_{kind}", 0) >= _FEWEST]
    return [
        {"class": kind, "nouns": round(first[f"test_map_nouns_{kind}"]), "row": row}
        | {
            column.name: Column(column.name, f"{column.metric}_{kind}", 1, 100, spread=column.spread).cell(found)
            for column in _MASS if "mass" in column.metric
        }
        for kind in kinds
        for row, found in runs.items()
    ]  # fmt: skip


def _diverse_rows(runs: Mapping[str, Runs]) -> list[Row]:
    """A line for every row and way of making captions."""
    scores: Sequence[tuple[str, str, int]] = (
        ("distinct words", "distinct_1", 3), ("distinct pairs", "distinct_2", 3), ("self-BLEU", "self_bleu", 1),
        ("CIDEr-D", "set_cider_d", 1),
    )  # fmt: skip
    rows = list[Row]()
    for row, found in runs.items():
        for way in WAYS:
            columns = [Column(name, f"test_{score}_{way}", digits) for name, score, digits in scores]
            if columns[0].values(found):
                cells = {column.name: column.cell(found) for column in columns}
                rows.append({"row": row, "captions": way.replace("_", " ")} | cells)
    return rows
