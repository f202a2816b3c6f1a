"""ImportanceELBO: bounds and gradients from several weighted draws of every alignment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_attention.families.alignment import CategoricalAlignment
from pyro_attention.guide import check_guide
from pyro_attention.objectives.elbo import AttentionELBO

__all__ = ["ImportanceELBO"]


class ImportanceELBO(AttentionELBO):
    r"""Importance-weighted bound of drawn alignments, with weights for each query of its own.

    .. math:: \sum_j \mathrm{E}\Bigl[\log \frac{1}{K} \sum_{k=1}^K w_{jk}\Bigr], \qquad
              w_{jk} = \frac{f(y_j \mid z_{jk})\, p(z_{jk})}{q(z_{jk})}, \quad z_{jk} \sim q

    It lies between the ELBO and the log evidence. Queries must be conditionally independent given the input and lie in
    plates, with their observations. Masked queries contribute nothing; the scale of a site multiplies a query's bound.

    ============== ==================================================================================================
    objective      gradient, with :math:`\tilde w_{jk} = w_{jk} / \sum_i w_{ji}`
    ============== ==================================================================================================
    ``iwae``       that of the bound, unbiased: VIMCO's score function, whose baseline for a draw is the bound with
                   the geometric mean of the other weights in the place of its own
    ``wake_sleep`` :math:`\sum_{jk} \tilde w_{jk} \nabla (\log f + \log p(z_{jk}) + \log q(z_{jk}))`, the weights held
                   fixed: biased, of the log evidence for the model and of -KL(posterior || q) for the guide
    ============== ==================================================================================================

    All draws come from one pass of the model, by a plate at the left, and share the dropout ahead of the alignment. The
    value is the estimated bound under both objectives, and ``kl_record`` stays empty. For
    :class:`Categorical(enumerate=False) <Categorical>`, also under :class:`Amortised`; without an inference network q
    is the prior, which "wake_sleep" then counts twice.

    Args:
        num_particles: Draws K of every alignment, at least 2.
        objective: "iwae" or "wake_sleep".
        max_plate_nesting: Number of nested plates, without that of the particles; guessed when omitted.

    Raises:
        ValueError: At a call: more latent sites than one, one that is no drawn alignment, or observations outside a
            plate of the alignment or with another scale.

    Example:
        >>> import pyro
        >>> from pyro_attention import AlignmentPrior, AttentionGuide, Categorical, Dense, LatentAttention
        >>> attention = LatentAttention("alignment", AlignmentPrior())
        >>> def model(scores, values, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)
        >>> guide = AttentionGuide(model, Categorical(enumerate=False))
        >>> elbo = ImportanceELBO(num_particles=3, max_plate_nesting=1)
        >>> round(elbo.loss(model, guide, torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)), 3)  # log 2 pi
        1.838

    Source: Mnih and Rezende (2016), Variational inference for Monte Carlo objectives; Bornschein and Bengio (2015),
    Reweighted Wake-Sleep.
    """

    def __init__(
        self,
        num_particles: int = 5,
        objective: Literal["iwae", "wake_sleep"] = "iwae",
        *,
        max_plate_nesting: float = float("inf"),
    ) -> None:
        if objective not in ("iwae", "wake_sleep"):
            raise ValueError(f"objective is '{objective}', expected 'iwae' or 'wake_sleep'")
        if num_particles < 2:
            raise ValueError(f"num_particles is {num_particles}, expected at least 2; ScoreFunctionELBO works with one")
        super().__init__(num_particles=num_particles, vectorize_particles=True, max_plate_nesting=max_plate_nesting)
        self.objective: Literal["iwae", "wake_sleep"] = objective

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        check_guide(guide)
        return super()._get_traces(model, guide, args, kwargs)  # type: ignore[no-any-return]

    def _elbo_particle(self, model_trace: Any, guide_trace: Any) -> Tensor:
        name = _drawn_alignment(model_trace, guide_trace)
        prior, posterior = model_trace.nodes[name], guide_trace.nodes[name]
        log_p, log_q = (
            scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"]) for site in (prior, posterior)
        )
        log_f = _log_likelihood(model_trace, posterior, log_q.shape)
        bounds = (_vimco if self.objective == "iwae" else _wake_sleep)(log_f, log_p, log_q)
        # the caller takes a mean over particles
        return torch.as_tensor(self.num_particles * scale_and_mask(bounds, scale=posterior["scale"]).sum())


def _vimco(log_f: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Bounds of the queries, of log probabilities ``[K, ...]``, with VIMCO's gradient."""
    log_weights = log_f + log_p - log_q
    bounds = _log_mean(log_weights, 0)
    signal = (bounds - _log_mean(_without_own(log_weights), 1)).detach()
    return bounds + (signal * (log_q - log_q.detach())).sum(0)


def _wake_sleep(log_f: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Bounds of the queries, of log probabilities ``[K, ...]``, with the gradient of both wake phases."""
    log_weights = (log_f + log_p - log_q).detach()
    phases = (log_weights.softmax(0) * (log_f + log_p + log_q)).sum(0)
    return _log_mean(log_weights, 0) + (phases - phases.detach())


def _without_own(log_weights: Tensor) -> Tensor:
    """Row k of ``[K, K, ...]`` are all log weights, but in the place of the k-th the mean of the others."""
    count = len(log_weights)
    others = (log_weights.sum(0) - log_weights) / (count - 1)
    own = torch.eye(count, dtype=torch.bool, device=log_weights.device)
    return torch.where(own.view(count, count, *[1] * (log_weights.dim() - 1)), others.unsqueeze(1), log_weights)


def _log_mean(log_weights: Tensor, dim: int) -> Tensor:
    return log_weights.logsumexp(dim) - math.log(log_weights.size(dim))


def _log_likelihood(trace: Any, alignment: Any, shape: torch.Size) -> Tensor:
    """Log likelihood of every query and particle, in the shape of the alignment's own log probability."""
    total = torch.zeros((), device=alignment["value"].device)
    plates = {frame.name for frame in alignment["cond_indep_stack"]}
    for name in trace.observation_nodes:
        site = trace.nodes[name]
        missing = plates - {frame.name for frame in site["cond_indep_stack"]}
        if missing:
            seen = f"site '{name}' lies outside the plates {sorted(missing)} of site '{alignment['name']}'"
            raise ValueError(f"{seen}; observe every query inside those plates, or use ScoreFunctionELBO")
        if (torch.as_tensor(site["scale"]) != torch.as_tensor(alignment["scale"])).any():
            seen = f"site '{name}' has scale {site['scale']} and site '{alignment['name']}' {alignment['scale']}"
            raise ValueError(f"{seen}, expected the same; put poutine.scale around both")
        total = total + scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]).sum_to_size(shape)
    return total


def _drawn_alignment(model_trace: Any, guide_trace: Any) -> str:
    """Name of the one latent site, a drawn alignment."""
    latent: list[str] = model_trace.stochastic_nodes
    if len(latent) != 1:
        seen = f"the model has {len(latent)} latent sites ({', '.join(map(repr, latent))})"
        raise ValueError(f"{seen}, expected one alignment; ScoreFunctionELBO takes several")
    site = guide_trace.nodes.get(latent[0], model_trace.nodes[latent[0]])
    if "enumerate" in site["infer"] or not isinstance(site["fn"], CategoricalAlignment):
        seen = f"site '{latent[0]}' has the posterior {type(site['fn']).__name__}"
        raise ValueError(f"{seen}; expected drawn alignments, of the family Categorical(enumerate=False)")
    return latent[0]
