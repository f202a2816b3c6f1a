"""Noise that drawn attention weights put into a gradient, with the KL in closed form and with it sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import kl_divergence

from experiments.datasets.text.batches import Batch
from experiments.report.statistics import summarize
from experiments.sequence.model import AnyTrained
from pyro_attention.posterior.predictive import seeded

__all__ = ["PAIRS", "gradient_noise", "loss_terms"]

PAIRS = 50  # of draws of the attention


def loss_terms(trained: AnyTrained, batch: Batch) -> dict[str, Tensor]:
    """Parts of the loss per word piece at one draw of the attention, and both estimates of the KL at this draw.

    The negative log ``likelihood``, and the KL, not weighted yet: ``closed_form`` and ``sampled``.
    """
    size, trace = trained.module.observations(batch), trained.guide.run(*trained.module.arguments(batch)).trace
    trace.compute_log_prob(lambda _, site: site["is_observed"])
    terms = {name: torch.zeros(()) for name in ("likelihood", "closed_form", "sampled")}
    nodes: Any = trace.nodes
    for site in nodes.values():
        if site["type"] == "sample" and site["is_observed"]:
            terms["likelihood"] = terms["likelihood"] - site["log_prob_sum"] / size
        elif site["type"] == "sample" and not site_is_subsample(site) and site["mask"] is not False:
            q, p, value = site["fn"], site["infer"]["prior"], site["value"]
            estimates = {"closed_form": kl_divergence(q, p), "sampled": q.log_prob(value) - p.log_prob(value)}
            for kl, estimate in estimates.items():
                counted = scale_and_mask(estimate, scale=site["scale"], mask=site["mask"]).sum()
                terms[kl] = terms[kl] + counted / size
    return terms


def gradient_noise(trained: AnyTrained, batch: Batch, *, kl_weight: float, pairs: int) -> dict[str, float]:
    r"""Variance of the gradients that the two estimators of the KL give at the parameters that the network has.

    Of two independent draws, :math:`\tfrac12 \|g - g'\|^2` estimates the trace of the covariance and :math:`g \cdot g'`
    the squared norm of the mean without bias; pairs are independent, which gives the standard errors. Both estimators
    see the same draws.

    Returns:
        ``kl_variance_*`` of the weighted KL alone and ``loss_variance_*`` of the whole loss per word piece, each with
        the KL ``closed_form`` and ``sampled``, the ``loss_variance_ratio`` of sampled to closed form, and
        ``gradient_square``, the squared norm of the mean gradient; of each its ``*_error``, the standard error.
    """
    trained.module.eval()
    parameters = [parameter for parameter in trained.module.parameters() if parameter.requires_grad]

    def draw() -> dict[str, Tensor]:
        terms = loss_terms(trained, batch)
        flat = {name: _flat_gradient(term, parameters) for name, term in terms.items()}
        kl = {name: kl_weight * flat[name] for name in ("closed_form", "sampled")}
        whole = {f"loss_variance_{name}": flat["likelihood"] + gradient for name, gradient in kl.items()}
        return whole | {f"kl_variance_{name}": gradient for name, gradient in kl.items()}

    found: dict[str, list[float]] = {}
    with seeded(trained.config.seed):
        for _ in range(pairs):
            first, second = draw(), draw()
            for name, gradient in first.items():
                found.setdefault(name, []).append(0.5 * (gradient - second[name]).square().sum().item())
            product = first["loss_variance_closed_form"] @ second["loss_variance_closed_form"]
            found.setdefault("gradient_square", []).append(product.item())
    metrics: dict[str, float] = {}
    for name, values in found.items():
        summary = summarize(values)
        metrics |= {name: summary.mean, f"{name}_error": summary.standard_error}
    ratio, error = _ratio(found["loss_variance_sampled"], found["loss_variance_closed_form"])
    return metrics | {"loss_variance_ratio": ratio, "loss_variance_ratio_error": error}


def _flat_gradient(term: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """All gradients of a term as one vector, zero where it does not depend on a parameter."""
    if not term.requires_grad:
        return torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    found = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found]).double().cpu()


def _ratio(above: list[float], below: list[float]) -> tuple[float, float]:
    """Ratio of two means over the same pairs, and its standard error by the delta method."""
    mean = summarize(below).mean
    if mean == 0:
        return math.nan, math.nan
    ratio = summarize(above).mean / mean
    rest = [a - ratio * b for a, b in zip(above, below, strict=True)]
    return ratio, summarize(rest).standard_error / mean
