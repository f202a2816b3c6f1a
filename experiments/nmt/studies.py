"""Studies of translation: inference schemes, normalizers, and alignment error rates on gold links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.aligners.ibm import train_ibm1
from experiments.aligners.scores import written_links
from experiments.aligners.task import aligners, pyro_align
from experiments.convergence import convergence
from experiments.nmt.align import SAMPLES, aligned_pairs, alignment_views, write_alignments
from experiments.nmt.calibration import CALIBRATION
from experiments.nmt.config import TranslationConfig
from experiments.nmt.evaluation import MEASURES
from experiments.nmt.task import TranslationTask, load_text, load_trained
from experiments.report.figures import reliability_panels, save
from experiments.report.report import Claim, Part, claims_part
from experiments.report.statistics import Column, Estimate, Runs, beside, columns_of, paired_difference, summary_rows
from experiments.study import Finished, First, Study, run_study
from guides.options import AMORTIZED, WEIGHTS
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
FROM_SOFT = (
    "Soft attention is trained for {first.max_epochs} epochs; every scheme, soft too, continues from there for "
    "{config.max_epochs} at half the learning rate. Inference networks start at q = p."
)
FROM_SCRATCH = (
    "Every scheme is trained from the beginning, for at most {config.max_epochs} epochs. In the first half of them "
    "dirichlet has no inference network, which then starts at q = p."
)
LEGEND = (
    "Perplexity of the test translations per word piece; 1 would be certainty. Alignments are summed out exactly; for "
    "weibull and lognormal it averages over samples of q(W | x, prefix), for dirichlet over samples of its prior. BLEU "
    "and chrF: of the translations of beam search. K-max: only the largest weights of each word are used.\n\n"
    "Entropy: of the mean weights that predict, in nats. Posterior gap: KL in nats from the posterior of an inference "
    "network to the exact posterior; it is the distance of the trained bound from the log evidence of a word piece. "
    "Support: mean number of source pieces with a positive probability, of sparse alignments."
)
GOLD = (
    "AER: alignment error rate against the gold links, in percent. The prior p(z | x, y_<j) does not see the word that "
    "it predicts; the posterior does. The posterior is that of the inference network (categorical, dirichlet) or exact "
    "(marginal, hard). For soft, weibull and lognormal the column of the posterior shows the attention weights; the "
    "prior of weibull and lognormal depends on the source alone and has no links, hence the dash."
)
NORMALIZERS = (
    "Temporal: weights normalized over the previous words, then over the source. Double normalization also sums over "
    "the next words, which a decoder does not have yet; temporal is the part that a decoder can have. Hybrid: a "
    "trained mixture of temporal, with the share shown, and softmax."
)


def scheme_rows(*schemes: str, warm_start: int = 0) -> dict[str, Mapping[str, Any]]:
    """Return the options of inference schemes, a row each, which continue from another network.

    Inference networks start at q = p.

    Args:
        schemes: Names of the schemes.
        warm_start: Number of first epochs in which dirichlet has no inference network, if all schemes are trained from
            the beginning; 0 if they continue from another network.
    """
    options: dict[str, Mapping[str, Any]] = {scheme: {"kl_weight": 0.01} for scheme in WEIGHTS}
    if warm_start:
        options["dirichlet"] = {"warm_start": warm_start, "posterior_from_prior": True}
    else:
        options |= {scheme: {"posterior_from_prior": True} for scheme in AMORTIZED}
    return {scheme: {"guide": scheme, **options.get(scheme, {})} for scheme in schemes}


def row_names(finished: Finished) -> dict[str, tuple[str, str]]:
    """Return (row, level) by a name for both: "row" at the first level, "row-level" at the others."""
    first, *_ = finished.study.levels
    return {
        row if level == first else f"{row}-{level}": (row, level)
        for level in finished.study.levels
        for row in finished.rows
    }


def named_runs(finished: Finished) -> dict[str, Runs]:
    """Return the metrics of all seeds by :func:`row_names`."""
    return {name: finished.runs(row, level) for name, (row, level) in row_names(finished).items()}


def differences_from_soft(finished: Finished) -> Iterator[Part]:
    """Yield a text on the schemes that clearly differ from soft attention; none without soft or of a single seed."""
    runs, sentences = named_runs(finished), list[str]()
    soft = runs.pop("soft", [])
    for column in (PERPLEXITY, ERRORS) if runs and len(soft) > 1 else ():
        rows = {row: metrics for row, metrics in runs.items() if column.values(metrics) and column.values(soft)}
        differences = {row: column.difference(metrics, soft, "soft") for row, metrics in rows.items()}
        clear = [row for row, interval in differences.items() if interval.low > 0 or interval.high < 0]
        unclear = ", ".join(row for row in differences if row not in clear)
        if clear:
            sentences.append(f"{column.name} minus soft: " + "; ".join(f"{row} {differences[row]}" for row in clear))
        if unclear:
            sentences.append(
                f"{column.name}: no clear difference (the 95 % interval contains zero) of {unclear} from soft"
            )
    if sentences:
        yield Part(text=" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences))


def report_parts(finished: Finished) -> list[Part]:
    """Return a page of alignments, claims, the value of uncertainty, other aligners, and the legend of the columns."""
    runs, seed = named_runs(finished), finished.seeds[0]
    configs = {name: finished.configs[row, level, seed] for name, (row, level) in row_names(finished).items()}
    config = next(iter(configs.values()))
    legend = finished.fill(LEGEND) + f"\n\n{GOLD}" * bool(columns_of(runs, [ERRORS]))
    return [
        alignments_page(configs, finished.folder / "alignments.html"),
        *claim_parts(runs, real_text=config.dataset != "toy"),
        *uncertainty_parts(runs, config),
        *aligner_parts(config, finished.folder),
        Part("What the columns are", legend),
    ]  # fmt: skip


# claims of the papers and of this project, which may not hold

SMALL_LOSS = 0.5  # in BLEU
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
"""Claims of the papers: the text, the number, and pairs of rows of which the first should be below the second."""


def claims(runs: Mapping[str, Runs], *, real_text: bool = False) -> list[Claim]:
    """Return the claims whose rows exist; none for a single seed, which has no interval.

    Networks of real text, as in the papers, have ten claims of the papers. Those of the generated text have three
    claims of the first paper, and two of this project, on error rates and on normalizers.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 to 3; Fan et al. (2020), Bayesian
    Attention Modules, table 4.
    """
    if len(next(iter(runs.values()))) == 1:
        return []
    if real_text:
        return [claim for entry in _PAPERS for claim in _claim_below(runs, *entry)] + _claim_small_losses(runs)
    hard = [("hard_enum", row) for row in runs if row != "hard_enum"]
    dirichlet = [(row, "dirichlet") for row in runs if row != "dirichlet"]
    normalized = [(row, row.rpartition("-")[0]) for row in runs if row.endswith(("-temporal", "-hybrid"))]
    text = "normalizing over the previous words lowers the perplexity"
    return [
        *_claim_below(runs, *_PAPERS[0]),
        *_claim_below(runs, "hard_enum has the lowest entropy", _ENTROPY, hard),
        *_claim_below(runs, "dirichlet has the highest entropy", _ENTROPY, dirichlet),
        *_claim_error_rates(runs),
        *(replace(claim, beyond_paper=True) for claim in _claim_below(runs, text, _PPL, normalized)),
    ]


def _claim_below(runs: Mapping[str, Runs], text: str, column: Column, pairs: Iterable[tuple[str, str]]) -> list[Claim]:
    """Return the claim that the first row of each pair is below the second; none if no pair has both rows."""
    differences = {
        f"{low} - {high}": column.difference(runs[low], runs[high], high)
        for low, high in pairs
        if all(row in runs and column.values(runs[row]) for row in (low, high))
    }
    return [Claim(text=text, differences=differences, expected="below")] * bool(differences)


def _claim_error_rates(runs: Mapping[str, Runs]) -> list[Claim]:
    """Return the claim on the alignment error rate of categorical_enum; none without the rows or gold links."""
    categorical, soft = runs.get("categorical_enum", []), runs.get("soft", [])
    if not (PRIOR.values(categorical) and POSTERIOR.values(soft)):
        return []
    text = "the alignment error rate of categorical_enum's posterior is below its own prior's, and below soft's"
    differences = {
        "posterior - prior": POSTERIOR.difference(categorical, categorical, "prior", other=PRIOR),
        "posterior - soft": POSTERIOR.difference(categorical, soft, "soft"),
    }
    return [Claim(text=text, differences=differences, expected="below", beyond_paper=True, percent=True)]


def _claim_small_losses(runs: Mapping[str, Runs]) -> list[Claim]:
    """Return the claim that K-max costs little BLEU; none without rows that were evaluated with it."""
    losses = {}
    for row, seeds in runs.items():
        if "test_bleu_k_max" in seeds[0] and row not in ("soft", "weibull", "lognormal"):
            bounds = [metrics["test_bleu_k_max"] + SMALL_LOSS for metrics in seeds]
            loss = paired_difference(_BLEU.values(seeds), bounds)
            losses[f"{row}: exact - K-max - {SMALL_LOSS}"] = replace(loss, digits=4)
    text = f"translations lose less than {SMALL_LOSS} BLEU when only the largest weights of each word are used (K-max)"
    return [Claim(text=text, differences=losses, expected="below")] * bool(losses)


def claim_parts(runs: Mapping[str, Runs], *, real_text: bool = False) -> list[Part]:
    """Return the tables of the papers' claims and of this project's claims, those that have claims."""
    papers = "papers (Deng et al., 2018; Fan et al., 2020)" if real_text else "paper (Deng et al., 2018)"
    checked = claims(runs, real_text=real_text)
    tables = {
        f"Claims of the {papers}": [claim for claim in checked if not claim.beyond_paper],
        "Claims of ours, not of the paper": [claim for claim in checked if claim.beyond_paper],
    }
    return [claims_part(title, table) for title, table in tables.items() if table]


# further parts of the report


def alignments_page(configs: Mapping[str, TranslationConfig], path: Path) -> Part:
    """Write a page of the alignments of the first test sentences by the networks of all rows, and return its link."""
    text = load_text(next(iter(configs.values())), "test").first(10)
    networks = {row: load_trained(Path(str(config.out)), device=config.device) for row, config in configs.items()}
    schemes = {row: aligned_pairs(network, text, num_samples=SAMPLES) for row, network in networks.items()}
    page = write_alignments(path, alignment_views(schemes, text), title="Sentences and their translations")
    return Part(text=f"Alignments to look at: {page}", published=False)


def aligner_parts(config: TranslationConfig, folder: Path) -> list[Part]:
    """Return the error rates of aligners without a network, trained on the same pairs; none without gold links."""
    train, test = load_text(config, "train"), load_text(config, "test")
    if (gold := test.gold) is None:
        return []
    pairs, test_pairs = train.word_pairs(), test.word_pairs()
    text_pairs = [*pairs, *test_pairs]
    model = train_ibm1(pairs)
    links = {"IBM Model 1": [hard_alignment(model.link_probabilities(*pair)) for pair in test_pairs]}
    links |= {name: align(text_pairs, test_pairs).links for name, align in aligners().items() if "votes" in name}
    aligned = pyro_align(text_pairs, test_pairs, held_out=True)
    links["pyro-align"] = aligned.links
    rates = {name: 100 * alignment_error_rate(alignments, gold).aer for name, alignments in links.items()}
    rows = [{"aligner": name, "AER %": Estimate(rate, digits=1)} for name, rate in rates.items()]
    probabilities, right = written_links(aligned, aligned.links, gold)
    diagram = reliability_panels(
        {"pyro-align": (probabilities.clamp(0, 1), right)},
        confidence="probability of a link",
        right="share of links that are right",
    )
    picture = save(diagram, folder / "figures" / "calibration.png")
    text = (
        "Aligners are trained on the same pairs; the votes of eflomal, if it is installed, also on the test text "
        "without its links, as is its custom. IBM Model 1: one direction, as the networks. pyro-align: the aligner of "
        "this library, both directions, exact posteriors."
    )
    caption = f"Share of correct links among the {len(right)} links of pyro-align, by their probability"
    return [
        Part("Aligners without a network", text, rows, published=False),
        Part("Calibration of pyro-align", picture=picture, caption=caption, published=False),
    ]


def uncertainty_parts(runs: Mapping[str, Runs], config: TranslationConfig) -> list[Part]:
    """Return tables on the value of the uncertainty of translations; none where it was not measured."""
    if not config.selective_pairs:
        return []
    compared, soft = next(iter(MEASURES)), runs.get("soft", [])  # every scheme has the first measure
    measures = "; ".join(f"{name}: {description}" for name, description in MEASURES.items())
    text = (
        f"Measures are larger for less certain translations. {measures}. Beam search here sums over the 5 most "
        f"probable alignments of a word, if they are summed out. Differences from soft attention are those by "
        f"{compared}. Of each text the first {config.selective_pairs} sentence pairs are used."
    )
    parts = [Part("Is the uncertainty of a translation worth something?", text)]
    tables = {  # by title: name of the difference from soft attention, metric, digits, and further columns
        "BLEU of all translations, and of the surest half of them": (
            "BLEU of the surest half", "BLEU at 50%", 1, [Column("all", f"BLEU at 100% by {compared}", 1)]
        ),
        "Rank correlation (Spearman's) of the certainty of a translation with its chrF": (
            "rank correlation", "rank correlation", 3, []
        ),
    } | {
        f"Detection of sentences of {name} among those of the test text, area under the ROC curve": (
            f"{name}: AUROC of text from elsewhere", f"auroc of {name}", 3, []
        )
        for name in config.out_of_domain
    }  # fmt: skip
    for title, (name, metric, digits, more) in tables.items():
        columns = [Column(f"by {measure}", f"{metric} by {measure}", digits, better="higher") for measure in MEASURES]
        rows, column = summary_rows("scheme", runs, [*more, *columns]), replace(columns[0], name=name)
        for row in rows if len(soft) > 1 and column.values(soft) else []:
            scheme, head = row["scheme"], f"{name} minus soft"
            row[head] = "" if scheme == "soft" else "-"  # a correlation of equal numbers does not exist
            if scheme != "soft" and column.paired(runs[scheme], soft, column):
                row[head] = column.difference(runs[scheme], soft, "soft")
        parts.append(Part(text=f"{title}:", rows=rows))
    return parts


TOY = Study(
    name="translation-toy",
    title="Translation: toy",
    about=None,
    text=FROM_SOFT,
    task=TASK,
    rows=scheme_rows(
        "soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "dirichlet", "weibull", "lognormal",
    ),
    heads=("scheme", ""),
    options={
        # the demo trains half of the rows
        "dataset": "toy", "train_pairs": 3000, "test_pairs": 250, "layers": 1, "beam": 1, "k_max": None,
        "max_epochs": 1, "patience": 1, "learning_rate": 5e-3,
        "init_from": First({"guide": "soft", "max_epochs": 6, "patience": 6, "learning_rate": 1e-2}),
    },
    columns=(PERPLEXITY, *beside(*MORE)),
    parts=(differences_from_soft, report_parts),
)  # fmt: skip
NORMALIZED = replace(
    TOY,
    name="translation-toy-normalizers",
    title="Translation: toy, attention normalized over the previous words",
    text=f"{FROM_SOFT} {NORMALIZERS}",
    rows=scheme_rows("soft", "marginal", "weibull"),
    levels={name: {"normalizer": name} for name in ("softmax", "temporal", "hybrid")},
    heads=("scheme", "normalized by"),
    about="text: translation",
)
_REAL: dict[str, Any] = {"vocabulary": 4000, "batch_size": 64, "beam": 5}
MULTI30K = replace(
    TOY,
    name="translation-multi30k",
    title="Translation: multi30k",
    text="Soft attention is trained until its validation loss has not fallen for {first.patience} epochs, at most "
    "{first.max_epochs}; every scheme, soft too, continues from there for {config.max_epochs} epoch, with a learning "
    "rate that rises to half of the first one and falls to zero. Inference networks start at q = p. Translations by a "
    "beam of {config.beam}.",
    rows=scheme_rows(
        "soft", "marginal", "hard_enum", "hard_sample", "categorical_enum", "categorical_sample", "dirichlet",
        "weibull",
    ),
    options={
        **_REAL, "dataset": "multi30k", "hidden": 192, "embedding": 192, "max_epochs": 1, "patience": 1,
        "learning_rate": 1e-3, "schedule": "one-cycle", "precision": "bf16-mixed",
        "init_from": First(
            {"guide": "soft", "max_epochs": 16, "patience": 2, "learning_rate": 2e-3, "schedule": "plateau"}
        ),
    },
    columns=(PERPLEXITY, BLEU, *beside(*MORE)),
    parts=(*TOY.parts, convergence),
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


def _alignment_study(dataset: str, source: str, **options: Any) -> Study:
    """Return the study of alignment error rates on a text with gold links."""
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


EUROPARL = _alignment_study("europarl_de_en", "de")
HANSARDS = _alignment_study("hansards_fr_en", "fr", train_pairs=20000)

_ALL = (NORMALIZED, MULTI30K, MULTI30K_SCRATCH, TED_SCRATCH, EUROPARL, HANSARDS)
STUDIES = {"compare": TOY, CALIBRATION.name: CALIBRATION, **{study.name: study for study in _ALL}}

table = partial(run_study, STUDIES)
