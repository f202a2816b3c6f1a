"""What a comparison on translation found: claims on latent alignments, which may well not hold, and the best rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from experiments.report.claims import Claim, claims_part
from experiments.report.columns import Column, Runs, best_row
from experiments.report.report import Part
from experiments.report.statistics import paired_difference

__all__ = ["claim_parts", "claims", "summarised", "table_claims"]

SMALL_LOSS = 0.5  # BLEU
PERPLEXITY = Column("perplexity", "test_ppl", 4, better="lower")
BLEU = Column("BLEU", "test_bleu", 4, better="higher")
ENTROPY = Column("entropy", "test_entropy", 4)
POSTERIOR, PRIOR = (Column("AER", f"test_{kind}_aer", 2, 100, better="lower") for kind in ("posterior", "prior"))
_TABLE: tuple[tuple[str, Column, tuple[tuple[str, str], ...]], ...] = (
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


def claims(runs: Mapping[str, Runs]) -> list[Claim]:
    """The paper's three claims, and two of ours: on error rates, which it does not report, and on normalising.

    A claim on schemes or metrics that are missing is left out; so are all for a single seed, which has no interval.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 and 3.
    """
    if len(next(iter(runs.values()))) == 1:
        return []
    hard = [("hard_enum", row) for row in runs if row != "hard_enum"]
    dirichlet = [(row, "dirichlet") for row in runs if row != "dirichlet"]
    normalized = [(row, row.rpartition("-")[0]) for row in runs if row.endswith(("-temporal", "-hybrid"))]
    found = [
        _claim(runs, _TABLE[0][0], PERPLEXITY, [("marginal", "soft")], whole=True),
        _links(runs),
        _claim(runs, "hard_enum has the lowest entropy", ENTROPY, hard, whole=True),
        _claim(runs, "dirichlet has the highest entropy", ENTROPY, dirichlet, whole=True),
        _claim(runs, "normalising over the words before lowers the perplexity", PERPLEXITY, normalized, whole=True),
    ]
    if found[-1] is not None:
        found[-1] = replace(found[-1], ours=True)
    return [claim for claim in found if claim is not None]


def _claim(
    runs: Mapping[str, Runs], text: str, column: Column, pairs: Iterable[tuple[str, str]], *, whole: bool = False
) -> Claim | None:
    """The claim on the pairs that there are; None without any, and of a ``whole`` one where a pair is missing."""
    pairs = list(pairs)
    there = [pair for pair in pairs if all(row in runs and column.values(runs[row]) for row in pair)]
    if not there or (whole and len(there) < len(pairs)):
        return None
    differences = {f"{one} - {other}": column.difference(runs[one], runs[other], other) for one, other in there}
    return Claim(text=text, differences=differences, expected="below")


def _links(runs: Mapping[str, Runs]) -> Claim | None:
    """The claim on the links of the inference network; None where there are no gold links or rows."""
    ours, soft = runs.get("categorical_enum", []), runs.get("soft", [])
    if not (PRIOR.values(ours) and POSTERIOR.values(soft)):
        return None
    return Claim(
        text="the alignment error rate of categorical_enum's posterior is below its own prior's, and below soft's",
        differences={
            "posterior - prior": POSTERIOR.difference(ours, ours, "prior", other=PRIOR),
            "posterior - soft": POSTERIOR.difference(ours, soft, "soft"),
        },
        expected="below", ours=True, percent=True,
    )  # fmt: skip


def table_claims(runs: Mapping[str, Runs]) -> list[Claim]:
    """Ten claims on schemes that were all trained from the beginning, as those of the papers were.

    A claim is checked on the rows that there are, and left out without any; so are all for a single seed.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, tables 1 to 3; Fan et al. (2020), Bayesian
    Attention Modules, table 4.
    """
    if len(next(iter(runs.values()))) == 1:
        return []
    found = [claim for entry in _TABLE if (claim := _claim(runs, *entry)) is not None]
    losses = {
        f"{row}: exact - K-max - {SMALL_LOSS}": replace(
            paired_difference(BLEU.values(metrics), [one["test_bleu_k_max"] + SMALL_LOSS for one in metrics]), digits=4
        )
        for row, metrics in runs.items()
        if "test_bleu_k_max" in metrics[0] and row not in ("soft", "weibull", "lognormal")
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


def summarised(runs: Mapping[str, Runs], *, perplexity: Column, errors: Column) -> str:
    """Which schemes predict and align best, beside soft attention; says nothing of what no row has.

    Example:
        >>> runs = {"soft": [{"ppl": 2.0, "aer": 0.5}], "marginal": [{"ppl": 1.5, "aer": 0.25}]}
        >>> columns = {"perplexity": Column("perplexity", "ppl", 1, better="lower")}
        >>> print(summarised(runs, **columns, errors=Column("AER", "aer", 0, 100, better="lower")))
        Of 2 rows, marginal predicts translations best, with a perplexity of 1.5 (soft attention: 2.0). The alignment of
        marginal comes closest to the gold links, with an error rate of 25 % (soft attention: 50 %).
    """
    found = []
    if (best := best_row(runs, perplexity)) is not None:
        number = f"{perplexity.cell(runs[best])}{_beside(runs, best, perplexity)}"
        found.append(f"Of {len(runs)} rows, {best} predicts translations best, with a perplexity of {number}.")
    if (best := best_row(runs, errors)) is not None:
        number = f"{errors.cell(runs[best])} %{_beside(runs, best, errors, ' %')}"
        found.append(f"The alignment of {best} comes closest to the gold links, with an error rate of {number}.")
    return " ".join(found) if len(runs) > 1 else ""


def _beside(runs: Mapping[str, Runs], best: str, column: Column, unit: str = "") -> str:
    if best == "soft" or "soft" not in runs or not column.values(runs["soft"]):
        return ""
    return f" (soft attention: {column.cell(runs['soft'])}{unit})"
