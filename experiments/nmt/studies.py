"""Comparisons of inference schemes on translation, and of aligners on gold links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.aligners.ibm import train_ibm1
from experiments.aligners.scores import written_links
from experiments.aligners.task import aligners, pyro_align
from experiments.nmt.align import SAMPLES, aligned_pairs, alignment_views, write_alignments
from experiments.nmt.calibration import CALIBRATION
from experiments.nmt.config import TranslationConfig
from experiments.nmt.evaluation import MEASURES
from experiments.nmt.task import TranslationTask, load_text, load_trained
from experiments.nmt.texts import word_pairs
from experiments.report.figures import reliability_panels, save
from experiments.report.report import Claim, Part, claims_part
from experiments.report.statistics import Column, Estimate, Runs, beside, columns_of, paired_difference, summary_rows
from experiments.study import Finished, First, Study, run_study
from guides.options import AMORTISED, WEIGHTS
from pyro_attention.analysis import alignment_error_rate, hard_alignment

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
    "Soft attention is trained for {first.max_epochs} epochs; every scheme, soft too, goes on from there for "
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


def scheme_rows(*schemes: str, warm_start: int = 0) -> dict[str, Mapping[str, Any]]:
    """Options of inference schemes that go on from another network, where inference networks start at q = p.

    With a ``warm_start`` they are trained from the beginning, dirichlet for so many epochs without its inference
    network, which is untrained and starts at q = p afterwards.
    """
    options: dict[str, Mapping[str, Any]] = {scheme: {"kl_weight": 0.01} for scheme in WEIGHTS}
    if warm_start:
        options["dirichlet"] = {"warm_start": warm_start, "posterior_from_prior": True}
    else:
        options |= {scheme: {"posterior_from_prior": True} for scheme in AMORTISED}
    return {scheme: {"guide": scheme, **options.get(scheme, {})} for scheme in schemes}


def _named(finished: Finished) -> dict[str, tuple[str, str]]:
    """Rows and levels by a name that says both; the rows of the first level have their own."""
    first, *_ = finished.study.levels
    return {
        row if level == first else f"{row}-{level}": (row, level)
        for level in finished.study.levels
        for row in finished.rows
    }


def _runs(finished: Finished) -> dict[str, Runs]:
    return {name: finished.runs(*place) for name, place in _named(finished).items()}


def _summary(finished: Finished) -> Iterator[Part]:
    """Name the schemes that differ from soft attention; nothing without it, or of a single seed."""
    runs, sentences = _runs(finished), list[str]()
    soft = runs.pop("soft", [])
    for column in (PERPLEXITY, ERRORS) if runs and len(soft) > 1 else ():
        rows = {row: of_row for row, of_row in runs.items() if column.values(of_row) and column.values(soft)}
        differences = {row: column.difference(of_row, soft, "soft") for row, of_row in rows.items()}
        clear = [row for row, interval in differences.items() if interval.low > 0 or interval.high < 0]
        rest = ", ".join(row for row in differences if row not in clear)
        if clear:
            sentences.append(f"{column.name} minus soft: " + "; ".join(f"{row} {differences[row]}" for row in clear))
        if rest:
            sentences.append(f"In {column.name} there is no clear difference of {rest} from soft")
    if sentences:
        yield Part(text=" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences))


def _parts(finished: Finished) -> list[Part]:
    """Alignments to look at, claims, what uncertainty is worth, other aligners, and what the columns are."""
    runs = _runs(finished)
    first = {name: finished.configs[*place, finished.seeds[0]] for name, place in _named(finished).items()}
    legend = finished.fill(LEGEND) + f"\n\n{GOLD}" * bool(columns_of(runs, [ERRORS]))
    return [
        _viewer_part(first, finished.folder / "alignments.html"),
        *claim_parts(runs, from_scratch=not finished.firsts),
        *_selective_parts(runs, next(iter(first.values()))),
        *_aligners_part(next(iter(first.values())), finished.folder),
        Part("What the columns are", legend),
    ]  # fmt: skip


# Claims of papers and of ours, which may well not hold

SMALL_LOSS = 0.5  # BLEU
_PPL, _BLEU = replace(PERPLEXITY, digits=4), replace(BLEU, digits=4)
_ENTROPY = Column("entropy", "test_entropy", 4)
POSTERIOR, PRIOR = (Column("AER", f"test_{kind}_aer", 2, 100, better="lower") for kind in ("posterior", "prior"))
_PAPERS: tuple[tuple[str, Column, tuple[tuple[str, str], ...]], ...] = (
    ("the exact marginal perplexity is below soft attention's", _PPL, (("marginal", "soft"),)),
    (
        "the perplexities of variational alignments are below the exact marginal one", _PPL,
        (("categorical_enum", "marginal"), ("categorical_sample", "marginal")),
    ),
    ("enumeration has a lower perplexity than sampling", _PPL, (("categorical_enum", "categorical_sample"),)),
    (
        "soft attention has a lower perplexity than hard attention", _PPL,
        (("soft", "hard_enum"), ("soft", "hard_sample")),
    ),
    ("soft attention has less BLEU than exact marginal alignments", _BLEU, (("soft", "marginal"),)),
    (
        "soft attention has less BLEU than variational alignments", _BLEU,
        (("soft", "categorical_enum"), ("soft", "categorical_sample")),
    ),
    ("hard attention has less BLEU than soft attention", _BLEU, (("hard_enum", "soft"), ("hard_sample", "soft"))),
    ("soft attention has less BLEU than weibull", _BLEU, (("soft", "weibull"),)),
    (
        "entropy falls from soft attention over marginal and variational alignments to hard ones", _ENTROPY,
        (("hard_enum", "categorical_enum"), ("categorical_enum", "marginal"), ("marginal", "soft")),
    ),
)  # fmt: skip
"""Claims of the papers, the number, and rows of which the first is said to be below the second."""


def claims(runs: Mapping[str, Runs], *, from_scratch: bool = False) -> list[Claim]:
    """Claims on the rows that there are; none for a single seed, which has no interval.

    Of schemes that were trained ``from_scratch``, as those of the papers were, ten of the papers; else three of the
    first paper, and two of ours, on error rates and on normalising.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 to 3; Fan et al. (2020), Bayesian
    Attention Modules, table 4.
    """
    if len(next(iter(runs.values()))) == 1:
        return []
    if from_scratch:
        return [claim for entry in _PAPERS for claim in _below(runs, *entry)] + _small_losses(runs)
    hard = [("hard_enum", row) for row in runs if row != "hard_enum"]
    dirichlet = [(row, "dirichlet") for row in runs if row != "dirichlet"]
    normalized = [(row, row.rpartition("-")[0]) for row in runs if row.endswith(("-temporal", "-hybrid"))]
    text = "normalising over the words before lowers the perplexity"
    return [
        *_below(runs, *_PAPERS[0]),
        *_below(runs, "hard_enum has the lowest entropy", _ENTROPY, hard),
        *_below(runs, "dirichlet has the highest entropy", _ENTROPY, dirichlet),
        *_links(runs),
        *(replace(claim, ours=True) for claim in _below(runs, text, _PPL, normalized)),
    ]


def _below(runs: Mapping[str, Runs], text: str, column: Column, pairs: Iterable[tuple[str, str]]) -> list[Claim]:
    """The claim that the first row of each pair is below the second, on the pairs that there are; none without any."""
    there = [pair for pair in pairs if all(row in runs and column.values(runs[row]) for row in pair)]
    differences = {f"{one} - {other}": column.difference(runs[one], runs[other], other) for one, other in there}
    return [Claim(text=text, differences=differences, expected="below")] * bool(there)


def _links(runs: Mapping[str, Runs]) -> list[Claim]:
    ours, soft = runs.get("categorical_enum", []), runs.get("soft", [])
    if not (PRIOR.values(ours) and POSTERIOR.values(soft)):
        return []
    text = "the alignment error rate of categorical_enum's posterior is below its own prior's, and below soft's"
    differences = {
        "posterior - prior": POSTERIOR.difference(ours, ours, "prior", other=PRIOR),
        "posterior - soft": POSTERIOR.difference(ours, soft, "soft"),
    }
    return [Claim(text=text, differences=differences, expected="below", ours=True, percent=True)]


def _small_losses(runs: Mapping[str, Runs]) -> list[Claim]:
    losses = {
        f"{row}: exact - K-max - {SMALL_LOSS}": replace(
            paired_difference(_BLEU.values(metrics), [one["test_bleu_k_max"] + SMALL_LOSS for one in metrics]), digits=4
        )
        for row, metrics in runs.items()
        if "test_bleu_k_max" in metrics[0] and row not in ("soft", "weibull", "lognormal")
    }
    text = f"translations lose less than {SMALL_LOSS} BLEU where each word keeps its largest weights alone (K-max)"
    return [Claim(text=text, differences=losses, expected="below")] * bool(losses)


def claim_parts(runs: Mapping[str, Runs], *, from_scratch: bool = False) -> list[Part]:
    """Parts of a report: the papers' claims, and apart from them ours; none without claims."""
    papers = "papers (Deng et al., 2018; Fan et al., 2020)" if from_scratch else "paper (Deng et al., 2018)"
    titles = {f"Claims of the {papers}": False, "Claims of ours, not of the paper": True}
    checked = claims(runs, from_scratch=from_scratch)
    chosen = {title: [claim for claim in checked if claim.ours == ours] for title, ours in titles.items()}
    return [claims_part(title, some) for title, some in chosen.items() if some]


# Parts of the report


def _viewer_part(runs: Mapping[str, TranslationConfig], path: Path) -> Part:
    """The first test sentences, with the network of every row, on a page of their own."""
    text = load_text(next(iter(runs.values())), "test").first(10)
    networks = {row: load_trained(Path(str(config.out)), device=config.device) for row, config in runs.items()}
    schemes = {row: aligned_pairs(network, text, num_samples=SAMPLES) for row, network in networks.items()}
    page = write_alignments(path, alignment_views(schemes, text), title="Sentences and their translations")
    return Part(text=f"Alignments to look at: {page}", published=False)


def _aligners_part(config: TranslationConfig, folder: Path) -> list[Part]:
    """Error rates of aligners without a network, trained on the same pairs; none without gold links."""
    train, test = load_text(config, "train"), load_text(config, "test")
    if (gold := test.gold) is None:
        return []
    pairs, own = word_pairs(train), word_pairs(test)
    model = train_ibm1(pairs)
    links = {"IBM Model 1": [hard_alignment(model.link_probabilities(*pair)) for pair in own]}
    links |= {name: align([*pairs, *own], own).links for name, align in aligners().items() if "votes" in name}
    aligned = pyro_align([*pairs, *own], own, held_out=True)
    links["pyro-align"] = aligned.links
    rates = {name: 100 * alignment_error_rate(written, gold).aer for name, written in links.items()}
    rows = [{"aligner": name, "AER %": Estimate(rate, digits=1)} for name, rate in rates.items()]
    probabilities, right = written_links(aligned, aligned.links, gold)
    diagram = reliability_panels(
        {"pyro-align": (probabilities.clamp(0, 1), right)}, confidence="probability of a link", right="right"
    )
    picture = save(diagram, folder / "figures" / "calibration.png")
    text = (
        "Trained on the same pairs; the votes of eflomal, where it is installed, also on the test text without its "
        "links, as is its custom. IBM Model 1: one direction, as the networks. pyro-align is the aligner of this "
        "library: both directions, exact posteriors."
    )
    caption = f"How often the {len(right)} links of pyro-align are right, by their probability"
    return [
        Part("Aligners without a network", text, rows, published=False),
        Part("Calibration of pyro-align", picture=picture, caption=caption, published=False),
    ]


def _selective_parts(runs: Mapping[str, Runs], config: TranslationConfig) -> list[Part]:
    if not config.selective_pairs:
        return []
    compared, soft = next(iter(MEASURES)), runs.get("soft", [])  # every scheme has the first measure
    about = "; ".join(f"{name}: {text}" for name, text in MEASURES.items())
    text = (
        f"Measures, larger where a translation is more doubtful. {about}. Beam search here sums over the 5 most "
        f"probable alignments of a word where they are summed out. Differences to soft attention are those by "
        f"{compared}. Of each text the first {config.selective_pairs} sentence pairs."
    )
    parts = [Part("Is the uncertainty of a translation worth something?", text)]
    tables = {  # what is compared with soft attention, the metric, its digits, and other columns, by the title
        "BLEU of all translations, and of the surest half of them": (
            "BLEU of the surest half", "BLEU at 50%", 1, [Column("all", f"BLEU at 100% by {compared}", 1)]
        ),
        "Rank correlation (Spearman's) of the certainty of a translation with its chrF": (
            "rank correlation", "rank correlation", 3, []
        ),
    } | {
        f"Sentences of {name} told from those of the test text, area under the ROC curve": (
            f"{name}: AUROC of text from elsewhere", f"auroc of {name}", 3, []
        )
        for name in config.out_of_domain
    }  # fmt: skip
    for title, (name, metric, digits, more) in tables.items():
        columns = [Column(f"by {measure}", f"{metric} by {measure}", digits, better="higher") for measure in MEASURES]
        rows, column = summary_rows("scheme", runs, [*more, *columns]), replace(columns[0], name=name)
        for row in rows if len(soft) > 1 and column.values(soft) else []:
            own = row["scheme"] == "soft"
            row[f"{name} minus soft"] = "" if own else column.difference(runs[row["scheme"]], soft, "soft")
        parts.append(Part(text=f"{title}:", rows=rows))
    return parts


TOY = Study(
    name="translation-toy",
    title="Translation: toy",
    about=None,
    text=GOING_ON,
    task=TASK,
    rows=scheme_rows(
        "soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "dirichlet", "weibull", "lognormal",
    ),
    heads=("scheme", ""),
    options={
        # half of it is the demo
        "dataset": "toy", "train_pairs": 3000, "test_pairs": 250, "layers": 1, "beam": 1, "k_max": None,
        "max_epochs": 1, "patience": 1, "learning_rate": 5e-3,
        "init_from": First({"guide": "soft", "max_epochs": 6, "patience": 6, "learning_rate": 1e-2}),
    },
    columns=(PERPLEXITY, *beside(*MORE)),
    parts=(_summary, _parts),
)  # fmt: skip
NORMALIZED = replace(
    TOY,
    name="translation-toy-normalizers",
    title="Translation: toy, normalised over the words before",
    text=f"{GOING_ON} {NORMALIZERS}",
    rows=scheme_rows("soft", "marginal", "weibull"),
    levels={name: {"normalizer": name} for name in ("softmax", "temporal", "hybrid")},
    heads=("scheme", "normalised by"),
    about="text: translation",
)
_REAL: dict[str, Any] = {"vocabulary": 4000, "batch_size": 64, "beam": 5}
MULTI30K = replace(
    TOY,
    name="translation-multi30k",
    title="Translation: multi30k",
    text=f"{GOING_ON} Translations by a beam of {{config.beam}}.",
    rows=scheme_rows("soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "weibull"),
    options={
        **_REAL, "dataset": "multi30k", "hidden": 192, "embedding": 192, "max_epochs": 1, "patience": 1,
        "learning_rate": 1e-3,
        "init_from": First({"guide": "soft", "max_epochs": 9, "patience": 9, "learning_rate": 2e-3}),
    },
    columns=(PERPLEXITY, BLEU, *beside(*MORE)),
    seeds=1,
    about="text: translation",
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
        "soft", "marginal", "hard_sample", "hard_enum", "categorical_enum", "categorical_sample", "weibull",
        "dirichlet", "sparse_marginal", warm_start=3,
    ),
    options={
        **_SCRATCH, "dataset": "multi30k", "hidden": 192, "embedding": 192, "selective_pairs": 500,
        "out_of_domain": ("tatoeba", "europarl_de_en"),
    },
    seeds=3,
)  # fmt: skip
TED_SCRATCH = replace(
    MULTI30K_SCRATCH,
    name="translation-ted-from-scratch",
    title="Translation: ted, every scheme from the beginning",
    rows=scheme_rows(
        "soft", "weibull", "hard_sample", "categorical_sample", "dirichlet", "marginal", "categorical_enum",
        "hard_enum", warm_start=3,
    ),
    options={
        **_SCRATCH, "dataset": "ted", "hidden": 128, "embedding": 128, "layers": 1, "test_pairs": 1000, "max_words": 25,
    },
)  # fmt: skip


def _alignment(dataset: str, source: str, **options: Any) -> Study:
    return replace(
        MULTI30K_SCRATCH,
        name=f"alignment-{dataset}",
        title=f"Word alignment by translation networks: {dataset}",
        about="text: word alignment",
        rows=scheme_rows(
            "soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "weibull", "dirichlet",
            warm_start=3,
        ),
        options={
            **_SCRATCH, "dataset": dataset, "source": source, "hidden": 128, "embedding": 128, "layers": 1,
            "max_words": 40, "beam": 1, "k_max": None, **options,
        },
        columns=(PERPLEXITY, ERRORS, *beside(*MORE)),
        seeds=1,
    )  # fmt: skip


EUROPARL = _alignment("europarl_de_en", "de")
HANSARDS = _alignment("hansards_fr_en", "fr", train_pairs=20000)

_ALL = (NORMALIZED, MULTI30K, MULTI30K_SCRATCH, TED_SCRATCH, EUROPARL, HANSARDS)
STUDIES = {"compare": TOY, CALIBRATION.name: CALIBRATION, **{study.name: study for study in _ALL}}

table = partial(run_study, STUDIES)
