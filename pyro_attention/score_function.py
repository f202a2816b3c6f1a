"""ScoreFunctionELBO: gradients through drawn alignments, with soft attention as the baseline."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_attention.distributions.alignment import AlignmentWeights, CategoricalAlignment
from pyro_attention.elbo import AttentionELBO
from pyro_attention.guide import AttentionGuide

__all__ = ["ScoreFunctionELBO"]


class ScoreFunctionELBO(AttentionELBO):
    r"""ELBO of drawn alignments: closed-form KL, and the score-function gradient for the likelihood.

    .. math:: \nabla \mathrm{E}_q[\log f(y \mid z)] = \mathrm{E}_q[\nabla \log f(y \mid z)
              + (\log f(y \mid z) - B)\, \nabla \log q(z)], \qquad B = \log f(y \mid \mathrm{E}_p[z])

    The baseline B costs a second run of the model, without gradient, at the prior's expected alignment. The reward of
    an alignment is what was observed in its own plates, so queries must be conditionally independent given the input.
    Its value is that of the plain ELBO. For :class:`Categorical(enumerate=False) <Categorical>`.

    Args:
        baseline: "soft", or "none".
        options: Those of :class:`AttentionELBO`.

    Raises:
        ValueError: An unknown baseline; at a call: vectorised particles, or another guide than an AttentionGuide.

    Example:
        >>> ScoreFunctionELBO(baseline="none", num_particles=5).baseline
        'none'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.2.
    """

    def __init__(self, *, baseline: Literal["soft", "none"] = "soft", **options: Any) -> None:
        super().__init__(**options)
        if baseline not in ("soft", "none"):
            raise ValueError(f"baseline is '{baseline}', expected 'soft' or 'none'")
        if self.vectorize_particles:
            raise ValueError("vectorize_particles is True, but rewards belong to single draws; expected False")
        self.baseline: Literal["soft", "none"] = baseline
        self._soft: dict[str, Tensor] = {}

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if not isinstance(poutine.unwrap(guide), AttentionGuide):
            raise ValueError(f"guide is a {type(guide).__name__}, expected an AttentionGuide")
        if self.baseline == "soft":
            with torch.no_grad(), _AtPriorMean():
                soft, _ = super()._get_trace(model, guide, args, kwargs)
            self._soft = {name: site["log_prob"] for name, site in _observed(soft).items()}
        return super()._get_trace(model, guide, args, kwargs)

    def _check_unreparameterised(self, name: str, q: Any) -> None:
        if not isinstance(q, CategoricalAlignment):
            super()._check_unreparameterised(name, q)

    def _elbo_particle(self, model_trace: Any, guide_trace: Any) -> Tensor:
        elbo = super()._elbo_particle(model_trace, guide_trace)
        rewards = {name: site["log_prob"].detach() for name, site in _observed(model_trace).items()}
        for name, soft in self._soft.items():
            rewards[name] = rewards[name] - soft
        for site in guide_trace.nodes.values():
            drawn = site["type"] == "sample" and not site["fn"].has_rsample
            if drawn and isinstance(site["fn"], CategoricalAlignment):
                elbo = elbo + _surrogate(site, rewards)
        self._soft = {}
        return elbo


def _surrogate(site: Any, rewards: dict[str, Tensor]) -> Tensor:
    """Zero, with the score function's gradient."""
    log_q = site["fn"].log_prob(site["value"])
    reward = sum((value.sum_to_size(_reduced(value.shape, log_q.shape)) for value in rewards.values()), torch.zeros(()))
    score = log_q - log_q.detach()
    if site["mask"] is not None:
        score = torch.where(torch.as_tensor(site["mask"], device=score.device), score, 0)
    total: Tensor = (reward * score).sum()
    return total


def _reduced(shape: torch.Size, plates: torch.Size) -> list[int]:
    """Shape of a reward summed over the plates that the alignment does not have."""
    padded = (1,) * (len(shape) - len(plates)) + tuple(plates)[max(0, len(plates) - len(shape)) :]
    return [1 if plate == 1 else size for size, plate in zip(shape, padded, strict=True)]


def _observed(trace: Any) -> dict[str, Any]:
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample" and site["is_observed"]}


class _AtPriorMean(Messenger):
    """Sets every alignment to the prior's expectation; stands outside the guide."""

    def _pyro_sample(self, msg: Any) -> None:
        prior = msg["infer"].get("prior")
        if isinstance(prior, CategoricalAlignment | AlignmentWeights) and not msg["is_observed"]:
            msg["value"] = prior.mean_value
