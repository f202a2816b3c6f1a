"""What the names on the page of results mean: which numbers are good, what a kind of attention is, what a section asks.

An unknown name is an error, so that nobody takes a worse perplexity for a better one without a word.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from experiments.files import UserError
from experiments.reporting.comparisons import Comparison
from guides.names import AblationSchemeName, AlignmentSchemeName, WeightsSchemeName

__all__ = [
    "FAMILIES",
    "GROUPS",
    "QUESTIONS",
    "REPEATED_CLAIMS",
    "ROWS",
    "Meaning",
    "Task",
    "group_of",
    "meaning_of",
    "task_of",
]

QUESTIONS = {
    "accuracy": "Is it more accurate?",
    "calibration": "Are its probabilities better?",
    "noise": "Is it more robust to noise?",
    "labels": "Does it need fewer examples?",
    "doubt": "Does it know what it does not know?",
    "alignment": "Does it align better?",
    "translation": "Does it translate better?",
    "captions": "Does it describe pictures better?",
    "headlines": "Does it write better headlines?",
    "pretraining": "Does it help pretraining?",
}
FAMILIES = ("graphs", "text", "pictures")


class Task(NamedTuple):
    """A task: its sections, by a pattern of their names whose group, if there is one, is the data set."""

    pattern: str
    name: str
    family: str
    question: str
    data: str = ""


TASKS = (
    Task("(?:bam1|normalizers|heterophilous).*", "node classification", "graphs", "accuracy"),
    Task("label_rate-(.+)", "node classification", "graphs", "labels"),
    Task("(?:feature|edge)_noise-(.+)", "node classification", "graphs", "noise"),
    Task("translation-([^-]+).*", "translation", "text", "translation"),
    Task("alignment-(.+)", "word alignment", "text", "alignment"),
    Task("headlines", "headlines", "text", "headlines"),
    Task("pretraining-([^-]+).*", "masked language model", "text", "pretraining"),
    Task("glue-.+", "GLUE", "text", "accuracy"),  # a part of the section has the name of its data set
    Task("label_noise-([^-]+)-.+", "GLUE", "text", "noise"),
    Task("train_share-([^-]+)-.+", "GLUE", "text", "labels"),
    Task("out_of_domain-([^-]+)-.+", "GLUE", "text", "doubt"),
    Task("squad-([^-]+)-.+", "answers in texts", "text", "accuracy"),
    Task("caption(?:s|ing)-(.+)", "captions", "pictures", "captions"),
    Task("vqa-studies-(.+)", "questions about pictures", "pictures", "labels"),
    Task("vqa-(.+)", "questions about pictures", "pictures", "accuracy"),
)

Better = Literal["higher", "lower"]
_PERCENT = ("accuracy", "EM", "ROC AUC", "F1", "Matthews", "Pearson", "Spearman")
_WAYS = ("links in the chosen way", "grow-diag-final-and", "geometric, mbr")
# Which numbers are better, and the question that a metric answers whatever its section asks. None: neither are.
_METRICS: dict[str, tuple[Better | None, str]] = {
    **{name: ("higher", "") for metric in _PERCENT for name in (metric, f"{metric} %")},
    **dict.fromkeys(("hidden pieces %", "SST-2 %"), ("higher", "")),
    **dict.fromkeys(("ROUGE-1", "ROUGE-2", "ROUGE-L", "METEOR", "CIDEr-D"), ("higher", "")),
    **dict.fromkeys(("BLEU", *(f"BLEU-{order}" for order in range(1, 5))), ("higher", "")),
    **dict.fromkeys(("perplexity", "MSE"), ("lower", "")),
    **dict.fromkeys(("NLL", "NLL, scaled", "ECE", "ECE, scaled", "Brier"), ("lower", "calibration")),
    **dict.fromkeys(("AER", *(f"AER, {way}" for way in _WAYS)), ("lower", "alignment")),
    **dict.fromkeys(("PAvPU", "AUROC of entropy", "AUROC of mutual information"), ("higher", "doubt")),
    **dict.fromkeys(
        ("BLEU of the surest half", "rank correlation", "AUROC of text from elsewhere"), ("higher", "doubt")
    ),
    "accuracy lost to noise": ("lower", "noise"),
    **dict.fromkeys(("entropy", "relative entropy"), (None, "")),
}
_CLAIMS = {
    "the exact marginal perplexity is below soft attention's": "perplexity",
    "the alignment error rate of categorical_enum's posterior is below its own prior's, and below soft's": "AER",
    **dict.fromkeys(
        (
            "the perplexities of variational alignments are below the exact marginal one",
            "enumeration has a lower perplexity than sampling",
            "soft attention has a lower perplexity than hard attention",
        ),
        "perplexity",
    ),
    **dict.fromkeys(
        (
            "soft attention has less BLEU than exact marginal alignments",
            "soft attention has less BLEU than variational alignments",
            "hard attention has less BLEU than soft attention",
            "soft attention has less BLEU than weibull",
        ),
        "BLEU",
    ),
    "entropy falls from soft attention over marginal and variational alignments to hard ones": "entropy",
    "hard_enum has the lowest entropy": "entropy",
    "dirichlet has the highest entropy": "entropy",
    "normalising over the words before lowers the perplexity": "perplexity",
    "WC loses less accuracy than soft to noise on the regions": "accuracy lost to noise",
    "WC has a larger PAvPU (level .05) than soft with dropout": "PAvPU",
}
REPEATED_CLAIMS = {
    "translations lose less than 0.5 BLEU where each word keeps its largest weights alone (K-max)",
    "the marginal likelihood has a smaller NLL than soft attention",
    "doubly normalised attention between views is more accurate",
    "hybrid attention moves from its beginning, .5, towards doubly normalised attention, 1",
}
"""Claims on differences that stand in a table too, or that are not between two kinds of attention."""

ROWS = {"posterior": "categorical_enum's posterior", "prior": "its prior"}
"""What the rows of claims are called elsewhere."""

_WEIGHTS = {*get_args(WeightsSchemeName), *get_args(AblationSchemeName), "no KL", "LF", "LC", "WF", "WC"} - {"soft"}
GROUPS = {
    "random weights": _WEIGHTS,
    "latent alignments": {*get_args(AlignmentSchemeName), "hard", "posterior", "categorical_enum posterior"},
    "other normalisation": {"doubly", "doubly_normalized", "hybrid", "temporal"},
    "": {"soft", "in noise", "question only", "MC dropout"},  # no kind of attention
}


class Meaning(NamedTuple):
    """What a metric is called, which numbers are better, the question it answers, and under which condition."""

    name: str
    better: Better | None
    question: str
    condition: str


def task_of(section: str) -> Task | None:
    """The task of a section, with its data set where there is one alone; None where no task has such sections.

    Example:
        >>> task_of("label_rate-cora").data, task_of("benchmarks")
        ('cora', None)
    """
    for task in TASKS:
        if found := re.fullmatch(task.pattern, section):
            return task._replace(data=next(iter(found.groups()), ""))
    return None


def meaning_of(metric: str) -> Meaning:
    """What a column or a claim on differences is about.

    Raises:
        UserError: Nothing is known of it.

    Example:
        >>> meaning_of("NLL, clean")
        Meaning(name='NLL', better='lower', question='calibration', condition='clean')
    """
    name = _CLAIMS.get(metric, metric)
    before, _, after = name.partition(", ")
    first, _, last = name.rpartition(": ")
    for known, condition in ((name, ""), (before, after), (last, first)):
        if known in _METRICS:
            better, question = _METRICS[known]
            return Meaning(known, better, question, condition)
    raise UserError(f"metric '{metric}': nobody says whether higher or lower is better; add it in {__name__}")


def group_of(comparison: Comparison) -> str:
    """What the row has that the other one has not: random weights and so on; "" where that is no kind of attention.

    Raises:
        UserError: It is not known.
    """
    words, others = (re.split(r"[,:]? |-", name) for name in (comparison.row, comparison.against))
    phrase = " ".join(word for word in words if word not in others)
    found = next((group for group, kinds in GROUPS.items() if phrase in kinds), None)
    if found is None:
        raise UserError(
            f"'{comparison.row}' against '{comparison.against}' in section {comparison.section.name}: '{phrase}' is no "
            f"kind of attention that is known; add it to GROUPS in {__name__}"
        )
    return found
