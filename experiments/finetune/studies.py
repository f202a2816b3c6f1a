"""Tables and studies of fine-tuned transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.dataset_names import GlueName
from experiments.data.storage import read_arrays
from experiments.finetune.choices import RaceTask
from experiments.finetune.glue import MEASURES, METRICS, RISKS, GlueTask
from experiments.finetune.model import PRIOR_LEARNING_RATE
from experiments.finetune.questions import QaTask
from experiments.report.report import Part
from experiments.report.statistics import Column, Difference, Row, beside, paired_difference, summarize
from experiments.study import Block, Finished, Search, Study, run_search, run_study
from guides.rows import EVIDENCE, LEGEND, rows

RESAMPLES = 2000
DROPOUT = "MC dropout"
GRID: Mapping[str, tuple[dict[str, float], ...]] = {
    **{row: tuple({"kl_weight": weight, "concentration": k} for weight in (0.01, 0.1) for k in (10.0, 2.0))
       for row in ("WF", "WC")},
    **{row: tuple({"kl_weight": weight, "scale": scale} for weight in (0.01, 0.1) for scale in (0.1, 0.5))
       for row in ("LF", "LC")},
}  # fmt: skip
# Scale and concentration of WC and LC are the better ones on the validation part of STS-B with MiniLM; WF and LF have
# them too. The KL weight is small enough for the labels to count most: the KL of a weight begins at some five nats.
ROWS = rows(("soft", "WF", "WC", "LF", "LC", "evidence"), {row: settings[0] for row, settings in GRID.items()})

_ROWS_TEXT = (
    f"{LEGEND} {EVIDENCE} It is in the last layer alone. Probabilities of these rows are means over "
    f"{{config.num_samples}} posterior samples. {DROPOUT}: the networks of soft, with means over as many dropout masks."
)
_TRAINED = (
    "{config.max_epochs} epochs, of which the last counts, AdamW with learning rate {config.learning_rate:g} (prior "
    f"networks {PRIOR_LEARNING_RATE:g}), linear warm-up over a tenth of the steps and linear decay, precision "
    "{config.precision}"
)
_SETTINGS = (
    "KL weight .01, concentration 10, scale .1. Scale and concentration of LC and WC are the better of two on the "
    "validation part of STS-B (one seed, under an earlier weighting of the KL), and LF and WF have the same; the KL "
    "weight, of the mean KL of an attention weight, was not searched."
)
_NAMES = {"f1": "F1", "accuracy": "accuracy", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


def _first_metric(task: GlueName) -> Column:
    """Return the column of the metric that compares rows."""
    name = METRICS[task][0]
    return Column(f"{_NAMES[name]} %", f"test_{{kind}}_{name}", 2, 100, better="higher")


SCORES = (
    Column("validation %", "val_score", 2, 100),
    Column("accuracy %", "test_{kind}_accuracy", 2, 100),
    Column("Spearman %", "test_{kind}_spearman", 2, 100),
    Column("MSE", "test_{kind}_mse"),
    Column("NLL", "test_{kind}_nll"),
    Column("ECE", "test_{kind}_ece"),
    Column("NLL, scaled", "test_{kind}_scaled_nll"),
    Column("ECE, scaled", "test_{kind}_scaled_ece"),
    Column("AURC", "test_{kind}_aurc"),
    *(Column(f"error at {percent} %", f"test_{{kind}}_risk_{percent}", 2, 100) for percent in RISKS),
)
QUALITY = (
    Column("validation score %", "val_score", 2, 100, better="higher"),
    Column("validation loss", "val_loss", 3, better="lower"),
)


def _at_the_mean(*columns: Column) -> Block:
    shown = [replace(column, metric=column.metric.replace("{kind}", "mean")) for column in columns]
    text = f"One pass of the network without samples, so {DROPOUT} equals soft."
    return Block("Attention at its mean", text, shown)


# GLUE


def _of(*tasks: GlueName, **options: Any) -> dict[str, Any]:
    """Return a level for each task, and its column."""
    return {
        "levels": {task: {"task": task, **options} for task in tasks},
        "columns": tuple(replace(_first_metric(task), levels=(task,)) for task in tasks),
    }


GLUE = Study(
    name="glue",
    title="GLUE with {config.model_name}, fine-tuned with latent attention",
    about="text: GLUE",
    text=(
        f"First metric of every task. {_ROWS_TEXT} {_TRAINED}, batches of {{config.batch_size}}, at most "
        f"{{config.length}} tokens, pooling {{config.pooling}}. {_SETTINGS} RTE and CoLA are tested on GLUE's "
        f"development parts, as their test labels are not public, MRPC, STS-B and SST-2 on the test parts of their "
        f"publishers. The paper (Fan et al. 2020, Table 5) fine-tuned ALBERT-base, which is another and larger model, "
        f"and does not name its metrics: compare the differences, not the numbers."
    ),
    task=GlueTask(),
    options={"max_epochs": 3, "num_samples": 5, "precision": "bf16-mixed", "pooling": "pair", "keep_weights": False},
    rows=ROWS,
    readings={
        DROPOUT: ("soft", "mc_dropout"),
        **{row: (row, "attention") for row in ("WF", "WC", "LF", "LC", "evidence")},
    },
    **_of("mrpc", "rte", "cola", "stsb"),
    paper={
        "soft": {"mrpc": "86.5", "cola": "54.5", "rte": "75.8", "sst2": "92.4", "stsb": "90.3"},
        "WC": {"mrpc": "88.5", "cola": "55.8", "rte": "76.2", "sst2": "92.7", "stsb": "91.1"},
    },
    parts=(
        Block(
            "All scores",
            "Validation: the first metric on the validation part, which also chooses the temperature. Error at 80 %: "
            "of the 80 % of the test examples with the most confident predictions. Scaled: after temperature scaling "
            "(grades: with the best standard deviation).",
            SCORES,
        ),
        _at_the_mean(SCORES[0], *(_first_metric(task) for task in METRICS)),
    ),
)


GLUE_LARGE = replace(
    GLUE,
    name="glue-large",
    title="The large tasks of GLUE with {config.model_name}, fine-tuned with latent attention",
    text=(
        f"First metric of every task, on its development part (of MNLI the matched one), as the test labels are not "
        f"public. {_ROWS_TEXT} {_TRAINED}, batches of {{config.batch_size}}, at most {{config.length}} tokens. "
        f"{_SETTINGS} The paper (Fan et al. 2020, Table 5) fine-tuned ALBERT-base: compare the differences."
    ),
    **_of("mnli", "qnli", "qqp"),
    paper={
        "soft": {"mnli": "85.1", "qnli": "90.9", "qqp": "90.8"},
        "WC": {"mnli": "85.6", "qnli": "91.5", "qqp": "90.7"},
    },
)


def _study(
    name: str,
    title: str,
    text: str,
    task: GlueName,
    levels: Mapping[str, Any],
    share: float = 1.0,
    axis: str = "",
    columns: Sequence[Column] | None = None,
) -> Study:
    """Return a study of the rows soft and WC under other conditions than those of the table."""
    trained = "" if share == 1 else " Trained on {config.train_share:.0%} of the examples."
    return replace(
        GLUE, name=f"{name}-{task}", title=f"{title}: {{config.task}} with {{config.model_name}}",
        text=f"{text}{trained} {_ROWS_TEXT} Settings as in the table glue, not searched again.",
        options={**GLUE.options, "task": task} | ({} if share == 1 else {"train_share": share}), levels=levels,
        rows={row: ROWS[row] for row in ("soft", "WC")}, paper={}, parts=(), heads=("row", axis),
        columns=columns or (_first_metric(task), *beside(*SCORES)),
    )  # fmt: skip


# One's own pretraining


_BY_NORMALIZER = {name: {"normalizer": name} for name in ("softmax", "doubly_normalized", "hybrid")}
_OWN_SETTINGS = {
    "precision": "bf16-mixed",
    "num_samples": 2,
    "keep_weights": False,
    "learning_rate": 1e-3,
    "length": 64,
}
_OWN_TEXT = (
    "Rows: encoders of a table of pretraining ({config.model_name}), with soft attention under each normalizer. A seed "
    f"goes on from the pretraining with its seed, or from the only one there is. {_TRAINED}, batches of "
    "{config.batch_size}, at most {config.length} tokens; nothing was searched. The paper (Ding et al. 2020) "
    "fine-tuned encoders of 24 layers and width 1024: compare the differences, not the numbers."
)


def task_mean(finished: Finished) -> list[Part]:
    """Return the mean of the first metrics of all tasks, as in the paper's table 2, and its difference to the baseline.

    It is a mean over the levels of the study; of each seed by itself, so that differences are paired.
    """
    study, rows, means = finished.study, list[Row](), dict[str, list[float]]()
    for row in finished.rows:
        values = [finished.values(row, column, level) for level in study.levels for column in finished.main(level)]
        means[row] = np.mean(values, 0).tolist()
        rows.append({"row": row, "mean %": summarize(means[row], 2)})
        rows[-1]["difference"] = ""
        if row != study.baseline:
            difference = paired_difference(means[row], means[study.baseline])
            rows[-1]["difference"] = replace(difference, digits=2, metric="mean %", against=study.baseline)
        rows[-1]["paper"] = {"softmax": "84.5", "doubly_normalized": "85.2", "hybrid": "84.7"}.get(row, "")
    return [Part("Mean over the tasks", "Of the metrics above; the paper's is over all eight.", rows)]


GLUE_PRETRAINED = replace(
    GLUE,
    name="glue-pretrained",
    title="GLUE from one's own pretraining: {config.model_name}",
    text=f"First metric of every task, on the parts of the tables glue and glue-large. {_OWN_TEXT}",
    options={**_OWN_SETTINGS, "max_epochs": 3},
    rows=_BY_NORMALIZER,
    readings={},
    **_of("mnli", "sst2", "cola", "qnli", "qqp", "rte", "stsb", "mrpc"),
    paper={
        row: dict(zip(("mnli", "sst2", "cola", "qnli", "qqp", "rte", "stsb", "mrpc"), numbers.split(), strict=True))
        for row, numbers in {
            "softmax": "85.5 93.1 60.7 91.1 89.4 76.2 91.1 88.7",
            "doubly_normalized": "86.4 93.1 59.9 91.5 91.2 80.3 91.1 87.7",
            "hybrid": "86.2 93.2 59.4 91.4 91.1 77.8 90.8 87.6",
        }.items()
    },
    parts=(task_mean, *GLUE.parts[:1]),
)


_FOREIGN = (("cola", "CoLA"), ("rte", "RTE"))
_AREAS = {
    measure: [
        Column(f"{title}: AUROC of {measure.replace('_', ' ')}", f"auroc_{{kind}}_{task}_{measure}", better="higher")
        for task, title in _FOREIGN
    ]
    for measure in MEASURES
}

STUDIES = {
    study.name: study
    for study in (
        GLUE,
        GLUE_LARGE,
        GLUE_PRETRAINED,
        replace(
            GLUE, name="glue-sst2", text=f"Trained on {{config.train_share:.0%}} of the examples. {GLUE.text}",
            **_of("sst2", train_share=0.3),
        ),
        _study(
            "label_noise", "Noise in the labels",
            "This share of the training labels is replaced by another class at random (grades: by those of other "
            "examples); the labels of the validation part are not replaced.", "sst2",
            {f"{share:.0%}": {"label_noise": share} for share in (0.0, 0.1, 0.2, 0.3)}, 0.05, axis="labels replaced",
        ),
        _study(
            "train_share", "Fewer training examples",
            "This share of the training examples, drawn by the run's seed, with the same number of epochs.", "stsb",
            {f"{share:.0%}": {"train_share": share} for share in (0.05, 0.1, 0.25, 1.0)}, axis="training examples",
        ),
        _study(
            "out_of_domain", "Sentences from elsewhere",
            "Test sentences of other tasks, which have no class of this task: the area under the ROC curve of "
            "recognizing them by their larger uncertainty. Chance is .5.", "sst2",
            {"": {"out_of_domain": tuple(task for task, _ in _FOREIGN)}}, 0.05,
            columns=(*_AREAS["entropy"], *beside(*_AREAS["mutual_information"], _first_metric("sst2"), *SCORES)),
        ),
    )
}  # fmt: skip


# Questions


OFFICIAL = (
    Column("EM %", "test_{kind}_exact", 2, 100, better="higher"),
    Column("F1 %", "test_{kind}_f1", 2, 100, better="higher"),
)


def over_questions(finished: Finished) -> list[Part]:
    """Return the differences to the baseline with intervals over resampled test questions, the same for both rows.

    The networks are fixed: an interval shows how much the choice of test questions matters, not the training.
    """
    study, rows = finished.study, list[Row]()

    def scores(row: str, column: Column) -> NDArray[np.float64]:
        """Return the mean score of every question over the seeds, ``[questions]``."""
        name = finished.of(row, column).metric.removeprefix("test_")
        configs = [finished.configs[finished.trained_row(row), "", seed] for seed in finished.seeds]
        remedy = "remove its folder, and the same command with --resume makes it again"
        of_seeds = [read_arrays(Path(config.out, "predictions.npz"), remedy)[name] for config in configs]
        return column.factor * np.mean(of_seeds, 0)

    for row in finished.rows[1:]:
        rows.append(Row(row=row))
        for column in [column for column in study.columns if column.compared]:
            differences = scores(row, column) - scores(study.baseline, column)
            resampled = np.random.default_rng(0).multinomial(
                len(differences), np.full(len(differences), 1 / len(differences)), RESAMPLES
            )
            low, high = np.quantile(resampled @ differences / len(differences), (0.025, 0.975)).tolist()
            rows[-1][column.name] = Difference(
                float(differences.mean()), low, high, metric=column.name, against=study.baseline, over="items"
            )
    text = (
        f"Mean differences to {study.baseline}, with 95 % intervals of a bootstrap over the test questions for fixed "
        f"networks. The intervals are not corrected for the number of comparisons."
    )
    return [Part("Differences over test questions", text, rows)] if rows else []


_DOUBTS = (
    Column("AUROC, entropy", "test_{kind}_auroc_entropy"),
    Column("AUROC, mutual information", "test_{kind}_auroc_mutual_information"),
    Column("F1 % on validation", "val_score", 2, 100),
)
_QUESTIONS = Block(
    "Questions of the parts",
    "Left out: questions whose whole answer is in no window.",
    [
        *(Column(part, f"{part}_questions", 0, spread=False) for part in ("train", "val", "test")),
        Column("train, left out", "left_out", 0),
    ],
)
SQUAD = replace(
    GLUE,
    name="squad-v1",
    title="SQuAD 1.1 with {config.model_name}, fine-tuned with latent attention",
    about="text: answers in texts",
    text=(
        f"{_ROWS_TEXT} {_TRAINED}, batches of {{config.batch_size}} windows of at most {{config.length}} tokens "
        f"(stride {{config.stride}}). {_SETTINGS} Trained on {{config.train_share:.0%}} of the training questions, "
        f"drawn by the seed, and tested on those of the development file; all parts have different articles. "
        f"EM and F1 are those of the official evaluation. The paper (Fan et al. 2020, Table 5) fine-tuned "
        f"ALBERT-base, a larger model, on all of SQuAD: compare the differences, not the numbers. AUROC: of "
        f"recognizing answers that are not exactly right by their larger uncertainty. Chance is .5."
    ),
    task=QaTask(),
    options={"max_epochs": 2, "num_samples": 3, "precision": "bf16-mixed", "keep_weights": False},
    levels={"": {}},
    columns=(
        *OFFICIAL,
        *beside(*_DOUBTS),
    ),
    paper={"soft": "80.86, 88.70", "WC": "81.40, 88.82"},
    parts=(
        over_questions,
        _QUESTIONS,
        _at_the_mean(*OFFICIAL),
    ),
)
SQUAD_2 = replace(
    SQUAD,
    name="squad-v2",
    title="SQuAD 2.0 with {config.model_name}, fine-tuned with latent attention",
    text=SQUAD.text.replace(
        " EM and F1",
        " A threshold, that of the best F1 on the validation part, decides whether a question gets no answer. "
        "EM and F1",
        1,
    ),
    options={**SQUAD.options, "version": "2.0"},
    columns=(
        *OFFICIAL,
        *beside(
            Column("HasAns EM %", "test_{kind}_has_answer_exact", 2, 100),
            Column("HasAns F1 %", "test_{kind}_has_answer_f1", 2, 100),
            Column("NoAns %", "test_{kind}_no_answer_accuracy", 2, 100),
            *_DOUBTS,
        ),
    ),
    paper={"soft": "78.80, 82.07", "WC": "78.97, 82.23"},
    parts=(
        over_questions,
        replace(
            _QUESTIONS,
            columns=[
                *_QUESTIONS.columns,
                *(Column(f"{part}, without answer", f"{part}_without_answer", 0) for part in ("train", "val", "test")),
            ],
        ),
        _at_the_mean(*OFFICIAL),
    ),
)  # fmt: skip


def _pretrained(study: Study, paper: Sequence[str]) -> Study:
    """Return a study of questions whose rows are encoders of one's own pretraining, with the paper's EM and F1."""
    return replace(
        study,
        name=f"{study.name}-pretrained",
        title=study.title.replace("with {config.model_name}, fine-tuned with latent attention", "{config.model_name}"),
        text=f"{_OWN_TEXT} EM and F1 are those of the official evaluation, on the questions of the development file.",
        options={**study.options, **_OWN_SETTINGS, "stride": 16},
        rows=_BY_NORMALIZER,
        readings={},
        paper=dict(zip(_BY_NORMALIZER, paper, strict=True)),
    )


QA_STUDIES = {
    study.name: study
    for study in (
        SQUAD,
        SQUAD_2,
        _pretrained(SQUAD, ("85.1, 92.2", "85.8, 92.4", "85.6, 92.2")),
        _pretrained(SQUAD_2, ("80.2, 83.6", "81.0, 84.2", "81.7, 84.8")),
    )
}


# Multiple choice


_ACCURACY = Column("accuracy %", "test_{kind}_accuracy", 2, 100, better="higher")
_DEVELOPMENT = Column("development %", "val_score", 2, 100, better="higher")
RACE = replace(
    GLUE,
    name="race",
    title="RACE with {config.model_name}, fine-tuned with latent attention",
    about="text: multiple choice",
    text=(
        f"Accuracy on the test part. {LEGEND} Probabilities of these rows are means over {{config.num_samples}} "
        f"posterior samples. {DROPOUT}: the networks of soft, with means over as many dropout masks. {_TRAINED}, "
        f"batches of {{config.batch_size}} questions, at most {{config.length}} tokens. {_SETTINGS} Development: "
        f"accuracy on the development part, attention at its mean. Chance is a quarter."
    ),
    task=RaceTask(),
    options={"max_epochs": 3, "num_samples": 3, "precision": "bf16-mixed", "keep_weights": False},
    levels={"": {}},
    rows={row: settings for row, settings in ROWS.items() if row != "evidence"},
    readings={name: of for name, of in GLUE.readings.items() if name != "evidence"},
    columns=(
        _ACCURACY,
        *beside(
            _DEVELOPMENT,
            *(Column(f"{level} %", f"test_{{kind}}_accuracy_{level}", 2, 100) for level in ("middle", "high")),
            Column("NLL", "test_{kind}_nll"),
            Column("ECE", "test_{kind}_ece"),
        ),
    ),
    paper={},
    parts=(_at_the_mean(_ACCURACY),),
)
RACE_PRETRAINED = replace(
    RACE,
    name="race-pretrained",
    title="RACE from one's own pretraining: {config.model_name}",
    text=f"Accuracy on the development part, as in the paper, and on the test part. {_OWN_TEXT} Chance is a quarter.",
    options={**RACE.options, **_OWN_SETTINGS},
    rows=_BY_NORMALIZER,
    readings={},
    columns=(_DEVELOPMENT, _ACCURACY, *RACE.columns[2:]),
    paper={"softmax": "74.2", "doubly_normalized": "74.3", "hybrid": "74.3"},
    parts=(),
)
RACE_STUDIES = {study.name: study for study in (RACE, RACE_PRETRAINED)}

table = partial(run_study, STUDIES)
search = partial(run_search, {study.name: Search(study, GRID, QUALITY) for study in (GLUE, GLUE_LARGE)})
qa_table = partial(run_study, QA_STUDIES, command="qa-table")
race_table = partial(run_study, RACE_STUDIES, command="race-table")
