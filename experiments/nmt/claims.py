"""Claims about latent alignments, each checked against the runs; they may well not hold."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.reporting.claims import Claim, claims_part
from experiments.reporting.columns import Runs
from experiments.reporting.report import Part
from experiments.reporting.statistics import paired_difference

__all__ = ["claim_parts", "claims"]


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


def claim_parts(runs: Mapping[str, Runs]) -> list[Part]:
    """Parts of a report: the paper's claims, and apart from them ours; none without claims."""
    titles = {False: "Claims of the paper (Deng et al., 2018)", True: "Claims of ours, not of the paper"}
    checked = claims(runs)
    chosen = {title: [claim for claim in checked if claim.ours == ours] for ours, title in titles.items()}
    return [claims_part(title, some) for title, some in chosen.items() if some]
