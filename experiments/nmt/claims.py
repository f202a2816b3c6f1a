"""Claims about latent alignments, each checked against the runs; they may well not hold."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.reporting.claims import Claim, claims_part
from experiments.reporting.columns import Runs
from experiments.reporting.report import Part
from experiments.reporting.statistics import paired_difference

__all__ = ["claim_parts", "claims", "table_claims"]

SMALL_LOSS = 0.5  # BLEU
_TABLE: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("the exact marginal perplexity is below soft attention's", "test_ppl", (("marginal", "soft"),)),
    (
        "the perplexities of variational alignments are below the exact marginal one", "test_ppl",
        (("categorical_enum", "marginal"), ("categorical_sample", "marginal")),
    ),
    ("enumeration has a lower perplexity than sampling", "test_ppl", (("categorical_enum", "categorical_sample"),)),
    (
        "soft attention has a lower perplexity than hard attention", "test_ppl",
        (("soft", "hard_enum"), ("soft", "hard_sample")),
    ),
    ("soft attention has less BLEU than exact marginal alignments", "test_bleu", (("soft", "marginal"),)),
    (
        "soft attention has less BLEU than variational alignments", "test_bleu",
        (("soft", "categorical_enum"), ("soft", "categorical_sample")),
    ),
    (
        "hard attention has less BLEU than soft attention", "test_bleu",
        (("hard_enum", "soft"), ("hard_sample", "soft")),
    ),
    ("soft attention has less BLEU than weibull", "test_bleu", (("soft", "weibull"),)),
    (
        "entropy falls from soft attention over marginal and variational alignments to hard ones", "test_entropy",
        (("hard_enum", "categorical_enum"), ("categorical_enum", "marginal"), ("marginal", "soft")),
    ),
)  # fmt: skip
"""Claims of the papers, the metric, and rows of which the first is said to be below the second."""


def claims(runs: Mapping[str, Runs]) -> list[Claim]:
    """The paper's three claims, and two of ours: on error rates, which it does not report, and on normalising.

    A claim on schemes or metrics that are missing is left out; so are all for a single seed, which has no interval.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 and 3.
    """
    if len(next(iter(runs.values()))) == 1:
        return []
    found: list[Claim] = []

    def add(
        text: str, *pairs: tuple[str, tuple[str, str], tuple[str, str]], ours: bool = False, percent: bool = False
    ) -> None:
        if pairs and all(row in runs and metric in runs[row][0] for _, *both in pairs for row, metric in both):
            factor = 100 if percent else 1
            values = {
                name: [[factor * metrics[metric] for metrics in runs[row]] for row, metric in both]
                for name, *both in pairs
            }
            differences = {name: paired_difference(*both) for name, both in values.items()}
            found.append(Claim(text=text, differences=differences, expected="below", ours=ours, percent=percent))

    posterior = ("categorical_enum", "test_posterior_aer")
    ppl = ("marginal - soft", ("marginal", "test_ppl"), ("soft", "test_ppl"))
    add("the exact marginal perplexity is below soft attention's", ppl)
    add(
        "the alignment error rate of categorical_enum's posterior is below its own prior's, and below soft's",
        ("posterior - prior", posterior, ("categorical_enum", "test_prior_aer")),
        ("posterior - soft", posterior, ("soft", "test_posterior_aer")),
        ours=True, percent=True,
    )  # fmt: skip
    hard, dirichlet = ("hard_enum", "test_entropy"), ("dirichlet", "test_entropy")
    below = [(f"hard_enum - {row}", hard, (row, hard[1])) for row in runs if row != hard[0]]
    above = [(f"{row} - dirichlet", (row, hard[1]), dirichlet) for row in runs if row != dirichlet[0]]
    add("hard_enum has the lowest entropy", *below)
    add("dirichlet has the highest entropy", *above)
    normalised = [(row, row.rpartition("-")[0]) for row in runs if row.endswith(("-temporal", "-hybrid"))]
    lower = [(f"{row} - {plain}", (row, "test_ppl"), (plain, "test_ppl")) for row, plain in normalised]
    add("normalising over the words before lowers the perplexity", *lower, ours=True)
    return found


def table_claims(runs: Mapping[str, Runs]) -> list[Claim]:
    """Ten claims on schemes that were all trained from the beginning, as those of the papers were.

    A claim is checked on the rows that there are, and left out without any; so are all for a single seed.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 to 3; Fan et al. (2020), Bayesian
    Attention Modules, table 4.
    """
    if len(next(iter(runs.values()))) == 1:
        return []

    def values(row: str, metric: str) -> list[float]:
        return [metrics[metric] for metrics in runs[row]]

    found = []
    for text, metric, pairs in _TABLE:
        both = [pair for pair in pairs if all(row in runs and metric in runs[row][0] for row in pair)]
        differences = {
            f"{one} - {other}": paired_difference(values(one, metric), values(other, metric)) for one, other in both
        }
        found += [Claim(text=text, differences=differences, expected="below")] * bool(differences)
    losses = {
        f"{row}: exact - K-max - {SMALL_LOSS}": paired_difference(
            values(row, "test_bleu"), [loss + SMALL_LOSS for loss in values(row, "test_bleu_k_max")]
        )
        for row in runs
        if "test_bleu_k_max" in runs[row][0] and row not in ("soft", "weibull", "lognormal")
    }
    text = f"translations lose less than {SMALL_LOSS} BLEU where each word keeps its largest weights alone (K-max)"
    return found + [Claim(text=text, differences=losses, expected="below")] * bool(losses)


def claim_parts(runs: Mapping[str, Runs], *, from_scratch: bool = False) -> list[Part]:
    """Parts of a report: the paper's claims, and apart from them ours; none without claims.

    Args:
        runs: The metrics of every row.
        from_scratch: Whether every scheme was trained from the beginning: then there are the ten claims alone.
    """
    if from_scratch:
        found = table_claims(runs)
        return [claims_part("Claims of the papers (Deng et al., 2018; Fan et al., 2020)", found)] if found else []
    titles = {False: "Claims of the paper (Deng et al., 2018)", True: "Claims of ours, not of the paper"}
    checked = claims(runs)
    chosen = {title: [claim for claim in checked if claim.ours == ours] for ours, title in titles.items()}
    return [claims_part(title, some) for title, some in chosen.items() if some]
