"""An AttentionGuide as the two plain functions, model and guide, that every ELBO of stock Pyro takes."""

from __future__ import annotations

from collections.abc import Callable

from pyro import poutine
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample

from pyro_attention._compat import active_handlers
from pyro_attention._typing import Message, Model
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, check_guide, forget_run

__all__ = ["model_and_guide"]


def model_and_guide(guide: AttentionGuide) -> tuple[Model, Callable[..., None]]:
    r"""Return a plain Pyro model and a plain guide function, which stock ELBOs compare site by site.

    ``TraceEnum_ELBO`` takes no guide that is a handler. Of this pair it enumerates the alignments of ``Marginal`` in
    the model and those of ``Categorical`` in the guide, so that its loss is that of :class:`AlignmentELBO`. The other
    ELBOs take an :class:`AttentionGuide` by itself, in one run of the network, and the pair as well.

    The pair runs the network twice a step, once under the guide: dropout draws twice, so leave it out, and batch
    statistics are updated twice. A latent site that keeps its prior is drawn in the guide, as by Pyro's own.

    Args:
        guide: The guide, without handlers around it; put these around the functions. ``poutine.condition`` belongs
            around both, and ``poutine.block(..., hide=[...])`` around the guide, which does not draw what is given.

    Returns:
        The model, whose priors are those of the guide's families, and the guide function; both take the arguments of
        the guide's model, and train its parameters and those of the families.

    Raises:
        TypeError: It is no AttentionGuide.
        NotImplementedError: At a call: alignments over the edges of a graph are to be summed out.
        ValueError: The guide mixes ``Marginal`` with families that draw or are enumerated, whose posteriors could
            depend on what the model sums out.

    Example:
        >>> import pyro, torch
        >>> from pyro.infer import SVI, TraceEnum_ELBO
        >>> from pyro_attention import AlignmentPrior, Dense, LatentAttention, Marginal
        >>> attention = LatentAttention("alignment", AlignmentPrior())
        >>> def model(scores, values, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)
        >>> plain_model, plain_guide = model_and_guide(AttentionGuide(model, Marginal()))
        >>> svi = SVI(plain_model, plain_guide, pyro.optim.Adam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=1))
        >>> round(svi.evaluate_loss(torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)), 3)  # log 2 pi
        1.838
    """
    messenger = check_guide(guide)
    if messenger is not guide:
        raise TypeError("the guide has handlers around it, expected the AttentionGuide; put them around the functions")
    marginal = [family.is_marginal for family in messenger.attention_families]
    if any(marginal) and not all(marginal):
        raise ValueError(
            f"the guide mixes Marginal with other families ({', '.join(map(str, messenger.families))}), expected "
            f"Marginal for all attention sites or for none; use AlignmentELBO with the guide itself"
        )

    def plain_model(*args: object, **kwargs: object) -> object:
        with _Priors(messenger):
            return messenger.model(*args, **kwargs)

    def plain_guide(*args: object, **kwargs: object) -> None:
        try:
            with poutine.block(hide_fn=_is_of_the_model_alone), _PointMasses():
                messenger(*args, **kwargs)
        finally:
            forget_run(messenger)

    return plain_model, plain_guide


class _Priors(Messenger):
    """Innermost handler that puts the priors of a guide's families at the attention sites."""

    def __init__(self, guide: AttentionGuide) -> None:
        super().__init__()
        self.guide = guide

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or not isinstance(msg["fn"], AttentionDistribution) or _is_given(msg["name"]):
            return
        family = self.guide.family(msg["name"])
        family.check_fits(msg["fn"], site=msg["name"])
        fn = msg["fn"]
        if "enumerate" in family.infer and isinstance(fn, AlignmentDistribution) and not fn.has_enumerate_support:
            raise NotImplementedError(
                f"site '{msg['name']}' is an alignment over the edges of a graph, which stock ELBOs do not sum out; "
                f"use AlignmentELBO with the AttentionGuide itself"
            )
        msg["fn"] = family.prior(msg["fn"])
        if family.is_marginal:
            msg["infer"] = {**msg["infer"], **family.infer}
        if not family.has_prior_term:
            msg["mask"] = False


def _is_given(name: str) -> bool:
    """Return whether ``poutine.condition`` around the model gives a site its value, which the layer's prior scores."""
    return any(isinstance(handler, ConditionMessenger) and name in handler.data for handler in active_handlers())


class _PointMasses(Messenger):
    """Handler around an :class:`AttentionGuide` that takes sites without a prior term out of its loss."""

    def _pyro_sample(self, msg: Message) -> None:
        family = msg["infer"].get("family")
        if family is not None and not family.has_prior_term and not msg["is_observed"]:
            msg["mask"] = False


def _is_of_the_model_alone(msg: Message) -> bool:
    """Return whether a site of a guide's run is observed, or is summed out under its prior."""
    if msg["type"] != "sample" or site_is_subsample(msg):
        return False
    family = msg["infer"].get("family")
    return bool(msg["is_observed"]) or getattr(family, "is_marginal", False)
