"""AlignmentELBO: exact sums over latent alignments, in one pass of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.poutine.enum_messenger import EnumMessenger

from pyro_attention.guide import AttentionGuide

__all__ = ["AlignmentELBO"]


class AlignmentELBO(TraceEnum_ELBO):
    r"""Pyro's enumerating ELBO for an :class:`AttentionGuide`, whose model then runs once a step.

    Under the family ``Marginal`` its value is the log evidence, under ``Categorical`` the exact expectation

    .. math:: \log \sum_z p(z)\, f(y \mid z), \qquad \mathrm{E}_q[\log f(y \mid z)] - \mathrm{KL}(q \| p).

    The queries must lie in plates: each alignment is then summed out on its own, at the cost of one likelihood a key.
    Give ``max_plate_nesting`` (the number of nested plates), or it is guessed by an additional pass at first.

    Raises:
        NotImplementedError: Particles are to be vectorised, or the guide is another messenger than an AttentionGuide.

    Example:
        >>> import pyro, torch
        >>> from pyro_attention import AlignmentPrior, AttentionGuide, Dense, LatentAttention, Marginal
        >>> attention = LatentAttention("alignment", AlignmentPrior())
        >>> def model(scores, values, y):
        ...     with pyro.plate("queries", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)
        >>> elbo = AlignmentELBO(max_plate_nesting=1)
        >>> guide = AttentionGuide(model, Marginal())
        >>> round(elbo.loss(model, guide, torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)), 3)  # log 2 pi
        1.838

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        messenger = poutine.unwrap(guide)
        if not isinstance(messenger, AttentionGuide):
            yield from super()._get_traces(model, guide, args, kwargs)  # type: ignore[no-untyped-call]
            return
        if self.vectorize_particles:
            raise NotImplementedError("AlignmentELBO does not vectorise particles; pass vectorize_particles=False")
        if self.max_plate_nesting == float("inf"):
            self._guess_max_plate_nesting(model, guide, args, kwargs)  # type: ignore[no-untyped-call]
        for _ in range(self.num_particles):
            # posteriors stand inside, so what is enumerated is their support
            enumerated = EnumMessenger(first_available_dim=-1 - self.max_plate_nesting)(guide)
            yield self._get_trace(model, enumerated, args, kwargs)  # type: ignore[no-untyped-call]
            # the trace would keep this step's autograd graph alive until the next one
            del messenger.trace
