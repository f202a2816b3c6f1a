"""Is the uncertainty of links worth something: calibration, wrong links told from right ones, leaving words out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error

from experiments.nmt.align_table.aligned import Aligned
from experiments.nmt.linking import combine_weights
from pyro_attention.analysis import Alignment, GoldAlignment
from pyro_attention.analysis.inputs import equal_tailed

__all__ = ["DEFINITIONS", "CoverageCurve", "Links", "calibration_error", "certainty", "coverage_curve", "linked_words"]

BINS, LEVEL = 15, 0.9

DEFINITIONS = {
    "ece_mean": f"expected calibration error ({BINS} bins) of the written links by the mean of both posteriors, "
    "against the gold links, possible ones too",
    "ece_product": "the same by the product of both posteriors",
    "ece_forward": "the same by the posterior of the source given the target alone",
    "auroc_probability": "area under the ROC curve of telling wrong from right written links by 1 - probability (mean "
    "of both posteriors)",
    "auroc_width": f"the same by the width of the {LEVEL:.0%} credible interval of that probability",
    "auroc_entropy": "the same by the entropy of the posterior over source words of the link's target word",
    "auroc_soft_entropy": "the same links by the entropy of soft attention (same seed) at their target word",
}


@dataclass(frozen=True)
class Links:
    """The written links of all sentences, in one order; each tensor ``[links]``.

    Attributes:
        right: Whether each is a gold link, at least a possible one.
        mean, product, forward: Its probability: by the mean and by the product of both directions, by one alone.
        width: Width of the credible interval of the mean; None where there are no samples.
        entropy: Entropy of the source distribution of its target word, in nats.
        places: Sentence and target word of each, ``[links, 2]``.
    """

    right: Tensor
    mean: Tensor
    product: Tensor
    forward: Tensor
    width: Tensor | None
    entropy: Tensor
    places: Tensor


def linked_words(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Links:
    """Look up the probabilities of written links."""
    columns: dict[str, list[float]] = {name: [] for name in ("right", "mean", "product", "forward", "width", "entropy")}
    places, sampled = [], len(aligned.combined[0].posterior) > 1
    weights = zip(aligned.posterior, aligned.entropies, strict=True)
    sentences = zip(links, gold, aligned.combined, weights, strict=True)
    for number, (found, truth, pair, ((forward, backward), entropies)) in enumerate(sentences):
        product = combine_weights(forward, backward, combine="product")
        mean = pair.posterior.mean(0)
        low, high = equal_tailed(pair.posterior, LEVEL)[1:] if sampled else (mean, mean)
        tables = {"mean": mean, "product": product, "forward": forward, "width": high - low}
        for source, target in sorted(found.links):
            places.append((number, target))
            columns["right"].append((source, target) in truth.possible)
            columns["entropy"].append(entropies[target].item())
            for name, table in tables.items():
                columns[name].append(table[target, source].item())
    values = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    return Links(
        right=values["right"].bool(), mean=values["mean"], product=values["product"], forward=values["forward"],
        width=values["width"] if sampled else None, entropy=values["entropy"],
        places=torch.tensor(places, dtype=torch.int64).reshape(-1, 2),
    )  # fmt: skip


def certainty(links: Links, soft_entropies: Sequence[Tensor] | None) -> dict[str, float]:
    """The numbers of DEFINITIONS, as far as they can be had: an area needs right and wrong links.

    Args:
        links: The written links.
        soft_entropies: Entropies ``[M]`` of soft attention for every sentence, where there is such a row.
    """
    if not len(links.right):
        return {}
    found = {
        f"ece_{name}": calibration_error(getattr(links, name), links.right) for name in ("mean", "product", "forward")
    }
    uncertainty = {"probability": 1 - links.mean, "entropy": links.entropy}
    if links.width is not None:
        uncertainty["width"] = links.width
    if soft_entropies is not None:
        uncertainty["soft_entropy"] = torch.stack([soft_entropies[i][j] for i, j in links.places.tolist()])
    if links.right.all() or not links.right.any():
        return found
    # ranks, because the function takes whatever lies outside [0, 1] for logits
    return found | {
        f"auroc_{name}": binary_auroc(_ranks(values), (~links.right).long()).item()
        for name, values in uncertainty.items()
    }


def calibration_error(probabilities: Tensor, right: Tensor) -> float:
    """Expected calibration error of links, of which there must be one."""
    return float(binary_calibration_error(probabilities.clamp(0, 1).float(), right.long(), n_bins=BINS))


def _ranks(values: Tensor) -> Tensor:
    """Values in [0, 1] of the same order; equal ones stay equal."""
    places = values.unique(return_inverse=True)[1].double()
    return places / places.max().clamp_min(1)


@dataclass(frozen=True)
class CoverageCurve:
    """Error rate of the links of the most certain target words, for every number of them.

    Attributes:
        coverage: Share of the target words, float64 ``[words]``.
        aer: Alignment error rate of their links against the gold links of these words, float64 ``[words]``.
    """

    coverage: Tensor
    aer: Tensor

    def aer_at(self, coverage: float) -> float:
        """Error rate at the least number of words that reaches a coverage in (0, 1]."""
        # 0.07 * 100 is 7.000000000000001, and means 7
        return self.aer[math.ceil(coverage * len(self.aer) * (1 - 1e-12)) - 1].item()


def coverage_curve(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> CoverageCurve:
    """Leave uncertain target words out, with their predicted and gold links.

    A word's certainty is the largest probability of a link of its, by the mean of both directions. A word left out
    counts in no way, so an aligner does not lose recall by saying that it does not know.
    """
    certain, counts = [], []
    for pair, found, truth in zip(aligned.combined, links, gold, strict=True):
        certain.append(pair.posterior.mean(0).amax(-1).double())
        table = torch.zeros(len(pair.target), 2, dtype=torch.int64)  # what the rate divides: right, and all
        for link in found.links:
            table[link[1]] += torch.tensor([(link in truth.sure) + (link in truth.possible), 1])
        for _, target in truth.sure:
            table[target, 1] += 1
        counts.append(table)
    order = torch.cat(certain).argsort(descending=True, stable=True)
    right, total = torch.cat(counts)[order].cumsum(0).double().unbind(-1)
    words = torch.arange(1, len(order) + 1, dtype=torch.float64)
    aer = torch.where(total > 0, 1 - right / total.clamp_min(1), 0.0)
    return CoverageCurve(words / len(order), aer)
