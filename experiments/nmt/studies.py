"""Comparisons of inference schemes on translation, and of aligners on gold links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from experiments.harness.options import StudyOptions
from experiments.nmt.aligner_tables import DIRECTIONS, aligner_parts
from experiments.nmt.claims import claim_parts, summarised
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text, word_pairs
from experiments.nmt.em_aligners import train_em
from experiments.nmt.figures import picture_parts
from experiments.nmt.selective import MEASURES
from experiments.nmt.train import TranslationTask
from experiments.report.columns import Column, Row, Runs, columns_of, summary_rows
from experiments.report.plots import column_plots
from experiments.report.report import Part
from experiments.sequence.rows import scheme_rows
from experiments.study import Finished, Study, run_study
from guides.names import WeightsSchemeName
from pyro_attention.analysis import alignment_error_rate, hard_alignment

__all__ = ["STUDIES", "table"]

TASK = TranslationTask()
PERPLEXITY = Column("perplexity", "test_ppl", better="lower")
BLEU = Column("BLEU", "test_bleu", 1, better="higher")
ERRORS = Column("AER posterior %", "test_posterior_aer", 1, 100, better="lower")
MORE = (
    Column("K-max ppl", "test_ppl_k_max", better="lower"),
    BLEU,
    Column("chrF", "test_chrf", 1, better="higher"),
    Column("K-max BLEU", "test_bleu_k_max", 1, better="higher"),
    Column("AER prior %", "test_prior_aer", 1, 100, better="lower"),
    ERRORS,
    Column("entropy", "test_entropy"),
    Column("posterior gap", "test_posterior_gap"),
    Column("support", "test_support", 1),
    Column("temporal share", "temporal_share", 2),
    Column("ms/step", "step_ms", 0),
    Column("parameters", "parameters", 0, spread=False),
)
GOING_ON = (
    "Soft attention is trained for {base.max_epochs} epochs; every scheme, soft too, goes on from there for "
    "{config.max_epochs} at half the learning rate. Inference networks start at q = p."
)
FROM_SCRATCH = (
    "Every scheme is trained from the beginning, for {config.max_epochs} epochs at most. For half of them dirichlet "
    "has no inference network at first, which starts at q = p after that."
)
LEGEND = (
    "Perplexity: how well the network predicts the words of the test translations, 1 would be certainty. Alignments "
    "are summed out exactly; for weibull and lognormal it averages over samples of q(W | x, prefix), for dirichlet "
    "over samples of its prior. BLEU and chrF are those of beam search. K-max: with the largest weights of "
    "each word alone.\n\n"
    "Entropy of the mean weights that predict, in nats. Posterior gap: KL in nats from the posterior of an inference "
    "network to the exact one; so far is the bound that it trains below the log evidence of a word piece. Support, of "
    "sparse alignments: mean number of source pieces with a positive probability."
)
GOLD = (
    "AER: alignment error rate against the gold links, in per cent. The prior p(z | x, y_<j) does not see the word "
    "that it is to predict, the posterior does: it is that of the inference network (categorical, dirichlet), else "
    "exact (marginal, hard). Soft, weibull and lognormal have attention weights alone, which stand in the column of "
    "the posterior; the prior of weibull and lognormal sees the source alone and aligns nothing, hence the dash."
)
NORMALIZERS = (
    "Temporal: weights normalised over the words before, then over the source. Double normalisation sums over the "
    "words to come as well, which a decoder does not have yet; this is the rest of it. Hybrid: a trained mixture of "
    "that, with the share shown, and the softmax."
)


def _named(finished: Finished) -> dict[str, tuple[str, str]]:
    """Rows and levels by one name: that of the row, and of the level behind it unless that is the first."""
    first = next(iter(finished.study.levels))
    return {
        row if level == first else f"{row}-{level}": (row, level)
        for level in finished.study.levels
        for row in finished.rows
    }


def _runs(finished: Finished) -> dict[str, Runs]:
    return {name: finished.runs(*place) for name, place in _named(finished).items()}


def _summary(finished: Finished) -> str:
    return summarised(_runs(finished), perplexity=PERPLEXITY, errors=ERRORS)


def _parts(finished: Finished) -> list[Part]:
    """Pictures, claims, what uncertainty is worth, the IBM models, and what the columns are."""
    runs, columns = _runs(finished), [*finished.study.columns, *finished.study.more]
    print("Drawing the pictures ...", flush=True)
    first = {name: finished.configs[*place, finished.seeds[0]] for name, place in _named(finished).items()}
    legend = finished.fill(LEGEND) + f"\n\n{GOLD}" * bool(columns_of(runs, [ERRORS]))
    return [
        Part(
            "How far do the rows differ?",
            "In the table the best mean of a column is in bold. Below are the means over the seeds with 95 % "
            "confidence intervals by Student's t, which are wide with few seeds: where two of them overlap by far, the "
            "order of the rows says little.",
            plots=column_plots(runs, columns), terminal=False, published=False,
        ),
        *picture_parts(first, finished.folder / "figures"),
        *claim_parts(runs, from_scratch=not finished.study.base),
        *_selective_parts(runs, next(iter(first.values()))),
        *_ibm_part(next(iter(first.values()))),
        Part("What the columns are", legend),
    ]  # fmt: skip


def _ibm_part(config: TranslationConfig) -> list[Part]:
    """The alignment error rate of IBM Model 1, trained on the same pairs; none without gold links."""
    train, test = load_text(config, "train"), load_text(config, "test")
    if test.gold is None:
        return []
    aligner = train_em(word_pairs(train), model="ibm1")
    found = [hard_alignment(aligner.link_probabilities(*pair)) for pair in word_pairs(test)]
    rows = [{"model": "IBM Model 1", "AER %": 100 * alignment_error_rate(found, test.gold).aer}]
    return [Part("IBM Models as baselines", "Trained on the same pairs.", rows, published=False)]


_COMPARED = "log probability"  # every scheme has it


def _selective_parts(runs: Mapping[str, Runs], config: TranslationConfig) -> list[Part]:
    """Tables of what the uncertainty of the translations is worth, where it was measured."""
    if not config.selective_pairs:
        return []

    def columns(metric: str, digits: int) -> list[Column]:
        return [Column(f"by {measure}", f"{metric} by {measure}", digits, better="higher") for measure in MEASURES]

    told = "told from those of the test text, area under the ROC curve"
    whole = Column("all", f"BLEU at 100% by {_COMPARED}", 1)
    tables = [
        ("BLEU of all translations, and of the surest half of them", "BLEU of the surest half",
         [whole, *columns("BLEU at 50%", 1)]),
        ("Rank correlation (Spearman's) of the certainty of a translation with its chrF", "rank correlation",
         columns("rank correlation", 3)),
        *((f"Sentences of {name} {told}", f"{name}: AUROC of text from elsewhere", columns(f"auroc of {name}", 3))
          for name in config.out_of_domain),
    ]  # fmt: skip
    about = "; ".join(f"{name}: {text}" for name, text in MEASURES.items())
    text = (
        f"Measures, larger where a translation is more doubtful. {about}. Beam search here sums over the 5 most "
        f"probable alignments of a word where they are summed out. Differences to soft attention are those by "
        f"{_COMPARED}. Of each text the first {config.selective_pairs} sentence pairs."
    )
    parts = [Part("Is the uncertainty of a translation worth something?", text)]
    return parts + [Part(text=f"{title}:", rows=_selective_rows(runs, shown, name)) for title, name, shown in tables]


def _selective_rows(runs: Mapping[str, Runs], columns: Sequence[Column], metric: str) -> list[Row]:
    """A row a scheme, and its difference to soft attention, by log probability, where there are seeds of both."""
    rows, soft = summary_rows("scheme", runs, columns), runs.get("soft", [])
    compared = replace(next(column for column in columns if column.name == f"by {_COMPARED}"), name=metric)
    if len(soft) > 1 and compared.values(soft):
        for row in rows:
            name = row["scheme"]
            row[f"{metric} minus soft"] = "" if name == "soft" else compared.difference(runs[name], soft, "soft")
    return rows


SCHEMES = (
    "soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "dirichlet", "weibull", "lognormal",
)  # fmt: skip
TOY = Study(
    name="translation-toy",
    title="Translation: toy",
    about="text: translation",
    text=GOING_ON,
    task=TASK,
    rows=scheme_rows(SCHEMES, going_on=True),
    row="scheme",
    options={
        # the demo is to take four minutes at most
        "dataset": "toy", "train_pairs": 3000, "test_pairs": 250, "layers": 1, "beam": 1, "k_max": None,
        "max_epochs": 1, "patience": 1, "learning_rate": 5e-3,
    },
    base={"guide": "soft", "max_epochs": 6, "patience": 6, "learning_rate": 1e-2},
    columns=(PERPLEXITY,),
    more=MORE,
    parts=_parts,
    summary=_summary,
    published=False,
)  # fmt: skip
NORMALIZED = replace(
    TOY,
    name="translation-toy-normalizers",
    title="Translation: toy, normalised over the words before",
    text=f"{GOING_ON} {NORMALIZERS}",
    rows=scheme_rows(("soft", "marginal", "weibull"), going_on=True),
    levels={name: {"normalizer": name} for name in ("softmax", "temporal", "hybrid")},
    axis="normalised by",
    published=True,
)
_REAL: dict[str, Any] = {"vocabulary": 4000, "batch_size": 64, "beam": 5}
MULTI30K = replace(
    TOY,
    name="translation-multi30k",
    title="Translation: multi30k",
    text=f"{GOING_ON} Translations by a beam of {{config.beam}}.",
    rows=scheme_rows(
        ("soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "weibull"), going_on=True
    ),
    options={
        **_REAL, "dataset": "multi30k", "hidden": 192, "embedding": 192, "max_epochs": 1, "patience": 1,
        "learning_rate": 1e-3,
    },
    base={"guide": "soft", "max_epochs": 9, "patience": 9, "learning_rate": 2e-3},
    columns=(PERPLEXITY, BLEU),
    seeds=1,
    published=True,
)  # fmt: skip
_SCRATCH: dict[str, Any] = {
    **_REAL, "max_epochs": 6, "patience": 3, "learning_rate": 5e-3, "precision": "bf16-mixed",
    "schedule": "one-cycle", "dropout": 0.15,
}  # fmt: skip
MULTI30K_SCRATCH = replace(
    MULTI30K,
    name="translation-multi30k-from-scratch",
    title="Translation: multi30k, every scheme from the beginning",
    text=FROM_SCRATCH,
    rows=scheme_rows(
        ("soft", "marginal", "hard_sample", "hard_enum", "categorical_enum", "categorical_sample", "weibull",
         "dirichlet", "sparse_marginal"), warm_start=3,
    ),
    options={
        **_SCRATCH, "dataset": "multi30k", "hidden": 192, "embedding": 192, "selective_pairs": 500,
        "out_of_domain": ("tatoeba", "europarl_de_en"),
    },
    base={},
    seeds=3,
)  # fmt: skip
TED_SCRATCH = replace(
    MULTI30K_SCRATCH,
    name="translation-ted-from-scratch",
    title="Translation: ted, every scheme from the beginning",
    rows=scheme_rows(
        ("soft", "weibull", "hard_sample", "categorical_sample", "dirichlet", "marginal", "categorical_enum",
         "hard_enum"), warm_start=3,
    ),
    options={
        **_SCRATCH, "dataset": "ted", "hidden": 128, "embedding": 128, "layers": 1, "test_pairs": 1000, "max_words": 25,
    },
)  # fmt: skip

_NO_ALIGNMENT = {"prior_from": "words", "jumps": False}  # such weights would be the same for all words
_SCHEMES = ("soft", "hard_enum", "categorical_enum", "categorical_sample", "weibull", "dirichlet")
ALIGNERS = {
    name: {**row, **(_NO_ALIGNMENT if name in get_args(WeightsSchemeName) else {})}
    for name, row in scheme_rows(("marginal", *_SCHEMES), warm_start=2).items()
}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    f"marginal, {name} {value}": {**ALIGNERS["marginal"], name: value}
    for name, value in {"jumps": False, "prior_from": "words", "null_word": False}.items()
}


def _aligners(dataset: str, source: str, target: str, **options: Any) -> Study:
    return Study(
        name=f"alignment-{dataset}",
        title=f"Word alignment: {dataset}",
        about="text: word alignment",
        text=(
            "Every scheme is trained from the beginning, once for each direction, on the pairs that have at most "
            "{config.max_words} words."
        ),
        task=TASK,
        rows={"marginal": ALIGNERS["marginal"]},
        row="aligner",
        levels={
            direction: {"source": pair[0], "target": pair[1]}
            for direction, pair in zip(DIRECTIONS, ((source, target), (target, source)), strict=True)
        },
        axis="direction",
        options={
            "dataset": dataset, "input_feed": "none", "diagonal": True, "null_word": True, "words_from": "context",
            "encoder": "words", "prior_from": "place", "jumps": True, "embedding": 128, "hidden": 128, "dropout": 0.1,
            "max_words": 40, "max_epochs": 8, "patience": 3, "vocabulary": 4000, "batch_size": 64,
            "learning_rate": 1e-2, "layers": 1, "k_max": None, "beam": 1, "precision": "bf16-mixed", **options,
        },
        columns=(),
        more=(Column("perplexity", "val_ppl", 2), Column("ms/step", "step_ms", 0), Column("epochs", "epochs", 0)),
        parts=aligner_parts,
    )  # fmt: skip


def _ablations(study: Study, *names: str) -> Study:
    rows = {name: ABLATIONS[name] for name in names or ABLATIONS}
    parts: Callable[[Finished], Sequence[Part]] = partial(aligner_parts, ablated="marginal")
    return replace(
        study,
        name=f"{study.name}-ablations",
        title=f"{study.title}, one option changed at a time",
        about="",
        rows={**ALIGNERS, **rows},
        parts=parts,
        seeds=1,
    )


EUROPARL = _aligners("europarl_de_en", "de", "en")
HANSARDS = _aligners("hansards_fr_en", "fr", "en", train_pairs=20000)

STUDIES = {
    "compare": TOY,
    **{
        study.name: study
        for study in (
            NORMALIZED,
            MULTI30K,
            MULTI30K_SCRATCH,
            TED_SCRATCH,
            EUROPARL,
            _ablations(EUROPARL),
            HANSARDS,
            _ablations(HANSARDS, "marginal, jumps False"),
        )
    },
}


def table(options: StudyOptions) -> dict[str, float]:
    """Train the rows of a study and publish its tables."""
    return run_study(STUDIES, options)
