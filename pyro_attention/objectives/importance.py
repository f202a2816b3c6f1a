"""ImportanceELBO: bounds and gradients from several weighted draws of every alignment."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import pyro
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_attention._typing import Args, Kwargs, Model, Trace
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.draws import Minibatch, runs
from pyro_attention.guide import check_guide
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.evidence import item_weights, sum_to_items

__all__ = ["ImportanceELBO"]


class ImportanceELBO(AttentionELBO):
    r"""Importance-weighted bound of drawn alignments, with weights for each query of its own.

    .. math:: \sum_j \mathrm{E}\Bigl[\log \frac{1}{K} \sum_{k=1}^K w_{jk}\Bigr], \qquad
              w_{jk} = \frac{f(y_j \mid z_{jk})\, p(z_{jk})}{q(z_{jk})}, \quad z_{jk} \sim q

    It lies between the ELBO and the log evidence. Queries must be conditionally independent given the input and lie in
    plates, with their observations; queries whose observation is in fewer plates share their weights. Masked queries
    contribute nothing; the scale of a site multiplies a query's bound.

    ============== ==================================================================================================
    objective      gradient, with :math:`\tilde w_{jk} = w_{jk} / \sum_i w_{ji}`
    ============== ==================================================================================================
    ``iwae``       that of the bound, unbiased: VIMCO's score function, whose baseline for a draw is the bound with
                   the geometric mean of the other weights in the place of its own
    ``wake_sleep`` :math:`\sum_{jk} \tilde w_{jk} \nabla (\log f + \log p(z_{jk}) + \log q(z_{jk}))`, the weights held
                   fixed: biased, of the log evidence for the model and of -KL(posterior || q) for the guide
    ============== ==================================================================================================

    All draws are of one minibatch and come from one pass of the model, by a plate at the left, where a replay shows
    that the model broadcasts over it (:func:`pyro_attention.draws.broadcasts`), else from single runs. A pass shares
    the dropout ahead of the alignment, and single runs draw it anew: both are bounds. The value is the estimated bound
    under both objectives, and ``kl_record`` stays empty. For :class:`Categorical(enumerate=False) <Categorical>`, also
    under :class:`Amortized`; without an inference network q is the prior, which "wake_sleep" then counts twice.

    Args:
        num_particles: Draws K of every alignment, at least 2.
        objective: "iwae" or "wake_sleep".
        max_plate_nesting: Number of nested plates, without that of the particles; guessed when omitted.

    Raises:
        ValueError: At a call: more latent sites than one, one that is no drawn alignment, or as at a call of
            :class:`EvidenceELBO`.

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

    def _evaluate(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Tensor:
        check_guide(guide)
        together = self._broadcasts(model, guide, args, kwargs, pyro.plate)
        run, scale = partial(self._get_trace, model, guide, args, kwargs), None
        log_importance_weights, log_q = list[Tensor](), list[Tensor]()
        passes = runs(
            run, self.num_particles, together=together, nesting=self._nesting, minibatch=Minibatch(), plate=pyro.plate
        )
        for (model_trace, guide_trace), size in passes:
            name = _drawn_alignment(model_trace, guide_trace)
            site = guide_trace.nodes[name]
            observed = [model_trace.nodes[other] for other in model_trace.observation_nodes]
            items = item_weights([(site, model_trace.nodes[name]["fn"])], observed)
            of_draw = sum_to_items(site["fn"].log_prob(site["value"]), site, items.dims)
            rows = items.log_importance_weights
            log_importance_weights.append(rows if size else rows.unsqueeze(0))
            log_q.append(of_draw if size else of_draw.unsqueeze(0))
            scale = items.scale
        estimate = _vimco if self.objective == "iwae" else _wake_sleep
        bounds = estimate(torch.cat(log_importance_weights), torch.cat(log_q))
        return -torch.as_tensor(scale_and_mask(bounds, scale=scale)).sum()


def _vimco(log_importance_weights: Tensor, log_q: Tensor) -> Tensor:
    """Bound the items by log weights and probabilities ``[K, ...]`` of their draws, with VIMCO's gradient."""
    bounds = _log_mean(log_importance_weights, 0)
    signal = (bounds - _log_mean(_without_own(log_importance_weights), 1)).detach()
    return bounds + (signal * (log_q - log_q.detach())).sum(0)


def _wake_sleep(log_importance_weights: Tensor, log_q: Tensor) -> Tensor:
    """Bound the items by log weights and probabilities ``[K, ...]``, with the gradient of both wake phases."""
    fixed = log_importance_weights.detach()
    phases = (fixed.softmax(0) * (log_importance_weights + 2 * log_q)).sum(0)
    return _log_mean(fixed, 0) + (phases - phases.detach())


def _without_own(log_importance_weights: Tensor) -> Tensor:
    """Return ``[K, K, ...]``, whose row k are all log weights, with the mean of the others for the k-th."""
    count = len(log_importance_weights)
    diagonal = torch.eye(count, dtype=torch.bool, device=log_importance_weights.device)
    diagonal = diagonal.view(count, count, *[1] * (log_importance_weights.dim() - 1))
    # no difference of sums: the own logarithm may be minus infinity
    mean_of_rest = log_importance_weights.where(~diagonal, 0).sum(1) / (count - 1)
    return torch.where(diagonal, mean_of_rest.unsqueeze(1), log_importance_weights)


def _log_mean(log_importance_weights: Tensor, dim: int) -> Tensor:
    return log_importance_weights.logsumexp(dim) - math.log(log_importance_weights.size(dim))


def _drawn_alignment(model_trace: Trace, guide_trace: Trace) -> str:
    """Return the name of the only latent site, a drawn alignment."""
    latent: list[str] = model_trace.stochastic_nodes
    if len(latent) != 1:
        problem = f"the model has {len(latent)} latent sites ({', '.join(map(repr, latent))})"
        raise ValueError(f"{problem}, expected one alignment; ScoreFunctionELBO takes several")
    site = guide_trace.nodes.get(latent[0], model_trace.nodes[latent[0]])
    is_alignment = isinstance(site["fn"], AlignmentDistribution) and not site["fn"].event_dim  # queries in plates
    if "enumerate" in site["infer"] or not is_alignment:
        problem = f"site '{latent[0]}' has the posterior {type(site['fn']).__name__}"
        raise ValueError(f"{problem}; expected drawn alignments, of the family Categorical(enumerate=False)")
    return latent[0]
