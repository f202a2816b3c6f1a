"""Compare inference schemes for the alignment of a translation model: a table, claims, pictures and a report.

python -m experiments.compare
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.files import UserError
from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.sweep import Sweep, Trainings
from experiments.nmt import train as nmt
from experiments.nmt.claims import claim_parts
from experiments.nmt.config import SCHEMES, CompareTranslations, NormalizerName, TranslationConfig, TranslationOptions
from experiments.nmt.evaluation import DEFINITIONS
from experiments.nmt.figures import ibm_error_rates, picture_parts
from experiments.nmt.selective_table import selective_parts, selective_runs
from experiments.nmt.summary import summarised
from experiments.report.columns import Column, Runs, best_cells, columns_of, summary_rows
from experiments.report.plots import column_plots
from experiments.report.report import Part, Report
from experiments.sequence.compare import protocol, scheme_config, train_schemes
from guides.schemes import build_scheme

__all__ = ["SCHEMES", "CompareTranslations", "run"]

PERPLEXITY = Column("perplexity", "test_ppl", better="lower")
ERRORS = Column("AER posterior %", "test_posterior_aer", 1, 100, better="lower")
COLUMNS = (
    PERPLEXITY,
    Column("K-max ppl", "test_ppl_k_max", better="lower"),
    Column("BLEU", "test_bleu", 1, better="higher"),
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
LEGEND = (
    "Perplexity: how well the network predicts the words of the test translations, 1 would be certainty. Alignments "
    "are summed out exactly; for weibull and lognormal it averages over samples of q(W | x, prefix), for dirichlet "
    "over samples of its prior. BLEU and chrF are those of beam search.",
    "Entropy of the mean weights that predict, in nats. Posterior gap: KL in nats from the "
    "posterior of an inference network to the exact one; so far is the bound that it trains below the log evidence of "
    "a word piece. Support, of sparse alignments: mean number of source pieces with a positive probability.",
)
GOLD = (
    "AER: alignment error rate against the gold links, in per cent. The prior p(z | x, y_<j) does not see the word "
    "that it is to predict, the posterior does: it is that of the inference network (categorical, dirichlet), else "
    "exact (marginal, hard). Soft, weibull and lognormal have attention weights alone, which stand in the column of "
    "the posterior; the prior of weibull and lognormal sees the source alone and aligns nothing, hence the dash."
)
PRIOR_FIRST = "Inference networks start at q = p."
WARM_START = "First, for half of the epochs, dirichlet has no inference network, which starts at q = p after that."
NORMALIZERS = (
    "Rows temporal: weights normalised over the words before, then over the source. Double normalisation sums over the "
    "words to come as well, which a decoder does not have yet; this is the rest of it. Rows hybrid: a trained mixture "
    "of that, with the share shown, and the softmax."
)
TOY_PAIRS = {"train_pairs": 3000, "test_pairs": 250}  # the demo is to take four minutes at most


@exclusive
def run(config: CompareTranslations) -> dict[str, float]:
    """Train all rows, print table and claims, write pictures and report.html; ``"<scheme>/<metric>"`` to its mean."""
    for name in ("out_of_domain", "selective_pairs"):
        if getattr(config, name) and not config.selective:
            option = name.replace("_", "-")
            raise UserError(f"{name} is for selective; pass --selective too, or leave --{option} out")
    name = f"translation-{config.dataset}{'' if config.base_epochs else '-from-scratch'}"
    free = ("schemes", "seeds", "ibm", "selective", "selective_pairs", "out_of_domain")
    sweep = Sweep("experiments.compare", config, f"compare/{name}", free=free).open()
    trainings = _train(config, sweep)
    runs, normalised = trainings.by_row(), config.normalizers != ("softmax",)
    table = Part(rows=summary_rows("scheme", runs, COLUMNS), best=best_cells(runs, COLUMNS))
    texts = [protocol(config), *LEGEND, *[GOLD] * bool(columns_of(runs, [ERRORS]))]
    started = [PRIOR_FIRST] if config.base_epochs else [WARM_START] * ("dirichlet" in config.schemes)
    texts += [*started, *[NORMALIZERS] * normalised]
    legend = Part("What the columns are", "\n\n".join(texts))
    print("Drawing the pictures ...", flush=True)
    first, folder = {row: trainings.first(row) for row in runs}, sweep.folder / "figures"
    parts = [
        table,
        _plots(runs),
        *picture_parts(first, folder),
        *claim_parts(runs, from_scratch=not config.base_epochs),
    ]
    if config.selective:
        parts += selective_parts(selective_runs(config, sweep, trainings).by_row(), config)
    baselines = ibm_error_rates(next(iter(first.values())), models=range(1, config.ibm + 1)) if config.ibm else []
    if baselines:
        how = "NLTK's, trained on the same pairs."
        parts.append(Part("IBM Models as baselines", how, rows=baselines, published=False))
    report = Report(
        f"Translation: {config.dataset}{'' if config.base_epochs else ', every scheme from the beginning'}"
        f"{', normalised over the words before' if normalised else ''}",
        f"{name}{'-normalizers' if normalised else ''}",
        [*parts, legend],
        summarised(runs, perplexity=PERPLEXITY, errors=ERRORS),
    )
    meanings = {name: f"{text}; mean over seeds" for name, text in DEFINITIONS.items()}
    return sweep.finish(report, trainings, definitions=meanings)


def _plots(runs: Mapping[str, Runs]) -> Part:
    text = (
        "In the table the best mean of a column is in bold. Below are the means over the seeds with 95 % confidence "
        "intervals by Student's t, which are wide with few seeds: where two of them overlap by far, the order of the "
        "rows says little."
    )
    plots = column_plots(runs, COLUMNS)
    return Part("How far do the rows differ?", text, plots=plots, terminal=False, published=False)


def _train(config: CompareTranslations, sweep: Sweep) -> Trainings[TranslationConfig]:
    shared = options_of(config, TranslationOptions)
    if config.dataset == "toy":
        shared |= {name: shared[name] or pairs for name, pairs in TOY_PAIRS.items()}
    bases = {
        (_name("base", normalizer), seed): TranslationConfig(
            **config.for_runs(), **shared, guide="soft", normalizer=normalizer, embedding=config.hidden, seed=seed,
            dropout=config.dropout, schedule=config.schedule, max_epochs=config.base_epochs or config.epochs,
            patience=config.base_epochs or config.patience,
            out=sweep.folder / "runs" / f"{_name('base', normalizer)}-{seed}",
        )
        for normalizer in config.normalizers
        for seed in range(config.seeds)
    }  # fmt: skip
    configs = {}
    for scheme in config.schemes:
        if config.base_epochs:
            changes = {"patience": config.epochs, "posterior_from_prior": build_scheme(scheme).amortised}
        else:
            changes = {"warm_start": config.epochs // 2}
        for (_, seed), base in bases.items():
            name = _name(scheme, base.normalizer)
            configs[name, seed] = scheme_config(config, base, name, scheme, **changes)
    return train_schemes(sweep, nmt.run, bases if config.base_epochs else {}, configs)


def _name(scheme: str, normalizer: NormalizerName) -> str:
    return scheme if normalizer == "softmax" else f"{scheme}-{normalizer}"
