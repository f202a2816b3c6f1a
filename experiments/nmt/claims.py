"""Claims of papers and of ours on latent alignments, which may well not hold, checked on the rows of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from experiments.report.claims import Claim, claims_part
from experiments.report.columns import Column, Runs
from experiments.report.report import Part
from experiments.report.statistics import paired_difference

SMALL_LOSS = 0.5  # BLEU
PERPLEXITY = Column("perplexity", "test_ppl", 4, better="lower")
BLEU = Column("BLEU", "test_bleu", 4, better="higher")
ENTROPY = Column("entropy", "test_entropy", 4)
POSTERIOR, PRIOR = (Column("AER", f"test_{kind}_aer", 2, 100, better="lower") for kind in ("posterior", "prior"))
_PAPERS: tuple[tuple[str, Column, tuple[tuple[str, str], ...]], ...] = (
    ("the exact marginal perplexity is below soft attention's", PERPLEXITY, (("marginal", "soft"),)),
    (
        "the perplexities of variational alignments are below the exact marginal one", PERPLEXITY,
        (("categorical_enum", "marginal"), ("categorical_sample", "marginal")),
    ),
    ("enumeration has a lower perplexity than sampling", PERPLEXITY, (("categorical_enum", "categorical_sample"),)),
    (
        "soft attention has a lower perplexity than hard attention", PERPLEXITY,
        (("soft", "hard_enum"), ("soft", "hard_sample")),
    ),
    ("soft attention has less BLEU than exact marginal alignments", BLEU, (("soft", "marginal"),)),
    (
        "soft attention has less BLEU than variational alignments", BLEU,
        (("soft", "categorical_enum"), ("soft", "categorical_sample")),
    ),
    ("hard attention has less BLEU than soft attention", BLEU, (("hard_enum", "soft"), ("hard_sample", "soft"))),
    ("soft attention has less BLEU than weibull", BLEU, (("soft", "weibull"),)),
    (
        "entropy falls from soft attention over marginal and variational alignments to hard ones", ENTROPY,
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
        *_below(runs, "hard_enum has the lowest entropy", ENTROPY, hard),
        *_below(runs, "dirichlet has the highest entropy", ENTROPY, dirichlet),
        *_links(runs),
        *(replace(claim, ours=True) for claim in _below(runs, text, PERPLEXITY, normalized)),
    ]


def _below(runs: Mapping[str, Runs], text: str, column: Column, pairs: Iterable[tuple[str, str]]) -> list[Claim]:
    """The claim that the first row of each pair is below the second, on the pairs that there are; none without any."""
    there = [pair for pair in pairs if all(row in runs and column.values(runs[row]) for row in pair)]
    differences = {f"{one} - {other}": column.difference(runs[one], runs[other], other) for one, other in there}
    return [Claim(text=text, differences=differences, expected="below")] * bool(there)


def _links(runs: Mapping[str, Runs]) -> list[Claim]:
    """The claim on the links of the inference network; none where there are no gold links or rows."""
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
            paired_difference(BLEU.values(metrics), [one["test_bleu_k_max"] + SMALL_LOSS for one in metrics]), digits=4
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
