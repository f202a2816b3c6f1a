"""Prior networks, and posterior families: from the prior of an attention site, with its scores, to the posterior.

The families of positive weights have ``E[S] = exp(scores)``, so their deterministic limit is ordinary attention.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import Distribution
from torch import Tensor, nn

from pyro_attention._checks import as_float, broadcasts_to, check_positive, in_transform
from pyro_attention.families.distribution import AttentionDistribution, LogWeights
from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = ["FAMILIES", "PRIORS", "Family", "OneParameterFamily", "Prior", "shown"]

PRIORS: Registry[type[Prior]] = Registry("prior")


class Prior(nn.Module):
    """Maps (scores, keys, layout) to the prior of one attention call; subclasses implement :meth:`forward`.

    Attributes:
        kind: The kind of its distributions, which a posterior family must share.
        normalizes: Scores may enter as log-softmax; False where their size means something.
        reads_scores: Its distribution depends on the scores; without them it has no part for the queries.
    """

    kind: ClassVar[str] = LogWeights.kind
    normalizes: ClassVar[bool] = True
    reads_scores: ClassVar[bool] = True

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> AttentionDistribution:
        """Prior over weights, or their logarithms, of the shape of ``scores``; keys are ``[..., H, N, D]`` if dense."""
        raise NotImplementedError

    def soft_weights(self, scores: Tensor, layout: Layout) -> Tensor:
        """Weights of ordinary attention with these scores, for a model that goes on with them and needs no site."""
        return layout.softmax(scores)


FAMILIES: Registry[type[Family]] = Registry("posterior family")


class Family(nn.Module):
    """A posterior family; subclasses implement :meth:`posterior`.

    Attributes:
        kind: The kind of prior it fits (a prior distribution's own ``kind``); None for every kind.
        has_prior_term: False when the site adds no KL to the ELBO.
        is_marginal: There is no posterior: the site is the model's alone, and is summed out.
        infer: Pyro's inference options of the site, such as enumeration.
    """

    kind: str | None = LogWeights.kind
    has_prior_term: bool = True
    is_marginal: bool = False
    infer: ClassVar[dict[str, Any]] = {}

    def prior(self, prior: Any) -> Any:
        """The prior over what the posterior draws; another one than the layer's where that is another variable."""
        return prior

    def posterior(self, prior: Any, *args: Any, **kwargs: Any) -> Distribution:
        """Posterior of a site from its prior, which carries the scores, and from the arguments of the model."""
        raise NotImplementedError

    def check_fits(self, prior: Any, *, site: str) -> None:
        """Raise ValueError unless the prior of a site is of this family's kind."""
        if self.kind in (None, prior.kind):
            return
        own, other = type(self).__name__, type(prior).__name__
        families = ", ".join(each.__name__ for each in FAMILIES.values() if each.kind in (None, prior.kind))
        priors = ", ".join(each.__name__ for each in PRIORS.values() if each.kind == self.kind)
        raise ValueError(
            f"site '{site}': {own} fits priors of kind '{self.kind}', but its prior {other} is of kind '{prior.kind}'; "
            f"families for this prior: {families}; priors for {own}: {priors}"
        )


class OneParameterFamily(Family):
    """A family with one positive parameter: a number, fixed or learnable, one a head, or what a network gives.

    Args:
        name: Name of the parameter.
        value: Its value, a number or ``[heads]``, or a module such as :class:`WidthNetwork`, which is called with the
            prior of the site and gives positive numbers that broadcast to its scores.
        of: Name of the family, in that of the parameter in a state dict: the state of another family is refused.
        learnable: Train the number (through its logarithm); a module trains without.

    Raises:
        TypeError: The value requires a gradient, as an ``nn.Parameter`` does; the family makes its own.
        ValueError: The value is not positive, or, at a call at the latest, neither a number nor one per head; a module
            gives another shape, or what is not positive and finite.
    """

    def __init__(self, name: str, value: float | Tensor | nn.Module, *, of: str, learnable: bool) -> None:
        super().__init__()
        self._name = name
        self.network = value if isinstance(value, nn.Module) else None
        if isinstance(value, nn.Module):
            return
        if isinstance(value, Tensor) and value.requires_grad:
            raise TypeError(f"{name} requires a gradient, expected a constant; pass learnable=True to train it")
        check_positive(name, value)
        log_value = torch.as_tensor(value, dtype=torch.get_default_dtype()).log()
        if log_value.dim() > 1:
            raise ValueError(f"{name} has shape {tuple(log_value.shape)}, expected a number or one per head [heads]")
        self._stored_as = f"log_{of}_{name}"
        setattr(self, self._stored_as, nn.Parameter(log_value) if learnable else nn.Buffer(log_value))

    @property
    def log_value(self) -> Tensor:
        """Logarithm of the parameter, a number or one per head."""
        value: Tensor = getattr(self, self._stored_as)
        return value

    def value(self, prior: LogWeights) -> Tensor:
        """The parameter in a shape that broadcasts against the prior's scores."""
        if self.network is not None:
            found = as_float(self.network(prior))
            who = f"site '{prior.site}': {self._name} of {type(self.network).__name__}"
            if torch.distributions.Distribution._validate_args and not in_transform(found):
                check_positive(who, found)
            if not broadcasts_to(found.shape, prior.full_shape):
                shapes = f"shape {tuple(found.shape)}, expected what broadcasts to the scores {tuple(prior.full_shape)}"
                raise ValueError(f"{who} has {shapes}, as [..., heads, queries, 1] if dense")
            return found
        value, heads = self.log_value.exp(), prior.full_shape[prior.layout.head_dim]
        if value.numel() not in (1, heads):
            raise ValueError(f"{self._name} has {value.numel()} entries, expected 1 or one for each of {heads} heads")
        return prior.layout.spread_heads(value) if value.dim() else value

    def extra_repr(self) -> str:
        if self.network is not None:
            return ""
        trained = ", learnable=True" if isinstance(self.log_value, nn.Parameter) else ""
        return f"{self._name}={shown(self.log_value.exp())}{trained}"


def shown(value: Tensor) -> Any:
    """Number of a tensor, or the list of its numbers, rounded to be shown."""
    return value.detach().double().round(decimals=5).tolist()
