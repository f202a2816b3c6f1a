"""ScoreFunctionELBO: gradients through drawn alignments, with soft attention as the baseline."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention._compat import below, handlers_but_tracers
from pyro_attention._typing import Args, Kwargs, Message, Model, Trace
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.alignments.summed import SummedLikelihood
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import check_guide
from pyro_attention.objectives.elbo import AttentionELBO

__all__ = ["ScoreFunctionELBO"]


class ScoreFunctionELBO(AttentionELBO):
    r"""ELBO of drawn alignments: closed-form KL, and the score-function gradient for the likelihood.

    .. math:: \nabla \mathrm{E}_q[\log f(y \mid z)] = \mathrm{E}_q[\nabla \log f(y \mid z)
              + (\log f(y \mid z) - B)\, \nabla \log q(z)], \qquad B = \log f(y \mid \mathrm{E}_p[z])

    The baseline B costs a second run of the model, without gradient, at the prior's expected alignment (on the same
    minibatch, and with the same values of what was drawn before). The reward of an alignment is what was observed in
    its own plates, or of its own node by a :class:`NodeLikelihood`, so queries must be conditionally independent given
    the input; where other latent sites come after it, their KL is part of the reward too.
    An alignment that ``poutine.mask`` hides has no score function, as in stock Pyro: mask its observation, too.
    Its value is that of the plain ELBO. For :class:`Categorical(enumerate=False) <Categorical>`.

    Args:
        baseline: "soft", or "none".
        options: Options of :class:`AttentionELBO`.

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

    def _get_trace(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> tuple[Trace, Trace]:
        check_guide(guide)
        with poutine.trace() as drawn:
            traces = super()._get_trace(model, guide, args, kwargs)
        if self.baseline == "soft":
            with torch.no_grad(), below(handlers_but_tracers()), _AtPriorMean(drawn.trace):
                soft, _ = super()._get_trace(model, guide, args, kwargs)
            self._soft = {name: _log_likelihood(soft.nodes[name]) for name in soft.observation_nodes}
        return traces

    def _check_pathwise(self, name: str, site: Message) -> None:
        if not isinstance(site["fn"], AlignmentDistribution):
            super()._check_pathwise(name, site)

    def _elbo_particle(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        elbo = super()._elbo_particle(model_trace, guide_trace)
        rewards = self._rewards(model_trace, guide_trace)
        sites = list(model_trace.nodes)
        for name, site in guide_trace.nodes.items():
            if site["type"] == "sample" and isinstance(site["fn"], AlignmentDistribution):
                # what came before the draw does not depend on it, nor does its own KL in closed form
                start = sites.index(name) + (self.kl == "closed_form")
                after = [other for other in sites[start:] if other in rewards]
                nodes = [_site_above(model_trace.nodes.get(other)) for other in after]
                site_rewards = [_reward_of(site, rewards[other], of) for other, of in zip(after, nodes, strict=True)]
                elbo = elbo + _surrogate(site, site_rewards)
        self._soft = {}
        return elbo

    def _rewards(self, model_trace: Trace, guide_trace: Trace) -> dict[str, Tensor]:
        """Return terms of the ELBO that may depend on drawn alignments, less their baselines."""
        rewards = {name: _log_likelihood(model_trace.nodes[name]).detach() for name in model_trace.observation_nodes}
        for name, soft in self._soft.items():
            rewards[name] = rewards[name] - soft
        for name in guide_trace.nodes:
            if name in self._kl_terms:
                rewards[name] = -self.current_kl_weight() * self._kl_terms[name]
        return rewards


def _site_above(site: Message | None) -> str | None:
    """Return the name of the alignment over edges that the nodes of an observation read; None elsewhere."""
    return site["fn"].site if site is not None and isinstance(site["fn"], SummedLikelihood) else None


def _log_likelihood(site: Message) -> Tensor:
    """Return the log likelihood of an observed site; below an alignment over edges that of every node."""
    if _site_above(site) is None:
        return torch.as_tensor(site["log_prob"])
    scale, mask = (
        factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor for factor in (site["scale"], site["mask"])
    )
    return torch.as_tensor(scale_and_mask(site["fn"].log_prob_per_query(site["value"]), scale=scale, mask=mask))


def _reward_of(site: Message, reward: Tensor, above: str | None) -> Tensor:
    """Return a reward as it counts for a drawn alignment.

    The edge of a node has the reward of that node, any other alignment the sum over all nodes.
    """
    if above == site["name"]:
        return reward
    reward = reward if above is None else reward.sum(-1)
    return reward.unsqueeze(-1) if site["fn"].event_dim else reward


def _surrogate(site: Message, rewards: list[Tensor]) -> Tensor:
    """Return zero, with the score function's gradient."""
    fn, mask = site["fn"], site["mask"]
    log_q = fn.log_prob_per_query(site["value"])
    if fn.event_dim and isinstance(mask, Tensor):  # the queries stand behind the plates
        mask = mask.unsqueeze(-1)
    reward = sum((value.sum_to_size(_reduced(value.shape, log_q.shape)) for value in rewards), torch.zeros(()))
    return torch.as_tensor((reward * scale_and_mask(log_q - log_q.detach(), mask=mask)).sum())


def _reduced(shape: torch.Size, plates: torch.Size) -> list[int]:
    """Return the shape of a reward summed over the plates that the alignment does not have."""
    padded = (1,) * (len(shape) - len(plates)) + tuple(plates)[max(0, len(plates) - len(shape)) :]
    return [1 if plate == 1 else size for size, plate in zip(shape, padded, strict=True)]


class _AtPriorMean(Messenger):
    """Handler around a guide that sets every alignment to the prior's expectation.

    What was drawn before the first alignment, and the minibatches, are as in the run that it is the baseline of.
    """

    def __init__(self, drawn: Trace) -> None:
        super().__init__()
        sites = [site for site in drawn.nodes.values() if site["type"] == "sample"]
        first = next((i for i, site in enumerate(sites) if _is_alignment(site)), 0)
        self.same = {s["name"]: s["value"] for i, s in enumerate(sites) if i < first or site_is_subsample(s)}

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or msg["value"] is not None:
            return
        if _is_alignment(msg):
            msg["value"] = msg["infer"]["prior"].mean_value
        elif msg["name"] in self.same:
            msg["value"] = self.same[msg["name"]]


def _is_alignment(site: Message) -> bool:
    """Return whether a site is a latent alignment, whose value is keys or weights."""
    prior = site["infer"].get("prior")
    is_latent = not site["is_observed"] and isinstance(prior, AttentionDistribution)
    return is_latent and prior.kind == AlignmentDistribution.kind
