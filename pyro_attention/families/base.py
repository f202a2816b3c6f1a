"""Prior networks, and posterior families: from the prior of an attention site, with its scores, to the posterior.

The families of positive weights have ``E[S] = exp(scores)``, so their deterministic limit is ordinary attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from pyro_attention._checks import as_float, broadcasts_to, check_positive, in_transform
from pyro_attention._compat import validates_distributions
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.distribution import AttentionDistribution, LogWeights
from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = ["FAMILIES", "PRIORS", "Family", "OneParameterFamily", "Prior", "shown"]

PRIORS: Registry[type[Prior]] = Registry("prior")


class Prior(nn.Module):
    """Network that maps the record of an attention call to the prior of its weights.

    A subclass implements :meth:`forward`.

    Attributes:
        kind: Kind of its distributions, which a posterior family must share.
        normalizes: Whether scores may enter as log-softmax; False where their size has a meaning.
        reads_scores: Whether its distribution depends on the scores, and so on the queries.
    """

    kind: ClassVar[str] = LogWeights.kind
    normalizes: ClassVar[bool] = True
    reads_scores: ClassVar[bool] = True

    def forward(self, call: AttentionCall) -> AttentionDistribution:
        """Return the prior over weights, or their logarithms, of the shape of ``call.scores``."""
        raise NotImplementedError

    def soft_weights(self, scores: Tensor, layout: Layout) -> Tensor:
        """Return weights of ordinary attention with these scores, for a model that needs no site."""
        return layout.softmax(scores)


FAMILIES: Registry[type[Family]] = Registry("posterior family")


class Family(nn.Module):
    """Posterior family; a subclass implements :meth:`posterior`.

    Attributes:
        kind: Kind of the priors that the family fits; None for every kind.
        has_prior_term: Whether the site adds a KL to the ELBO.
        is_marginal: Whether there is no posterior, because the site is summed out of the model.
        infer: Pyro's inference options of the site, such as enumeration.
    """

    kind: str | None = LogWeights.kind
    has_prior_term: bool = True
    is_marginal: bool = False
    infer: ClassVar[Mapping[str, object]] = {}

    # Any: a family takes the distributions of its own kind alone, which :meth:`check_fits` has checked
    def prior(self, prior: Any) -> AttentionDistribution:
        """Return the prior of the variable that the posterior draws.

        A family whose variable differs from the layer's, such as relaxed weights in place of an index, overrides this.

        Args:
            prior: Prior of the layer, a distribution of the kind of the family.
        """
        layer_prior: AttentionDistribution = prior
        return layer_prior

    def posterior(self, call: AttentionCall, prior: Any) -> TorchDistribution:
        """Return the posterior of an attention site.

        Args:
            call: Record of the call, with the scores.
            prior: Prior of the layer, a distribution of the kind of the family.
        """
        raise NotImplementedError

    def check_fits(self, prior: AttentionDistribution, *, site: str) -> None:
        """Raise ValueError unless the prior of a site is of this family's kind."""
        if self.kind in (None, prior.kind):
            return
        family_name, prior_name = type(self).__name__, type(prior).__name__
        families = ", ".join(family.__name__ for family in FAMILIES.values() if family.kind in (None, prior.kind))
        priors = ", ".join(prior_class.__name__ for prior_class in PRIORS.values() if prior_class.kind == self.kind)
        raise ValueError(
            f"site '{site}': {family_name} fits priors of kind '{self.kind}', but its prior {prior_name} is of kind "
            f"'{prior.kind}'; families for this prior: {families}; priors for {family_name}: {priors}"
        )


class OneParameterFamily(Family):
    """Family with one positive parameter: a number, a number for each head, or the output of a network.

    Args:
        name: Name of the parameter.
        value: Its value, a number or ``[heads]``, or a module such as :class:`WidthNetwork`, which is called with the
            :class:`AttentionCall` and returns positive numbers that broadcast to its scores.
        of: Name of the family, which is part of the name of the parameter or network in a state dict, so that the
            state of another family is refused.
        learnable: Train the number (through its logarithm); a module is trained anyway.

    Raises:
        TypeError: The value requires a gradient, as an ``nn.Parameter`` does; the family makes a parameter itself.
        ValueError: The value is not positive, or, at a call at the latest, neither a number nor one per head; a module
            returns another shape, or numbers that are not positive and finite.
    """

    def __init__(self, name: str, value: float | Tensor | nn.Module, *, of: str, learnable: bool) -> None:
        super().__init__()
        self._name, self._network_as = name, f"{of}_{name}_network"
        if isinstance(value, nn.Module):
            self.add_module(self._network_as, value)
            self.register_load_state_dict_pre_hook(_with_name_of_family)
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
    def network(self) -> nn.Module | None:
        """Network that returns the parameter; None where it is a number."""
        return self._modules.get(self._network_as)

    @property
    def log_value(self) -> Tensor:
        """Logarithm of the parameter, a number or one per head."""
        value: Tensor = getattr(self, self._stored_as)
        return value

    def value(self, call: AttentionCall) -> Tensor:
        """Return the parameter in a shape that broadcasts against the scores of a call."""
        if self.network is not None:
            width = as_float(self.network(call))
            who = f"site '{call.site}': {self._name} of {type(self.network).__name__}"
            if validates_distributions() and not in_transform(width):
                check_positive(who, width)
            if not broadcasts_to(width.shape, call.scores.shape):
                raise ValueError(
                    f"{who} has shape {tuple(width.shape)}, expected a shape that broadcasts to the scores "
                    f"{tuple(call.scores.shape)}, as [..., heads, queries, 1] if dense"
                )
            return width
        # a guide may have been made before its model went to a GPU, and has its number elsewhere then
        value, heads = self.log_value.to(call.scores.device).exp(), call.scores.size(call.layout.head_dim)
        if value.numel() not in (1, heads):
            raise ValueError(f"{self._name} has {value.numel()} entries, expected 1 or one for each of {heads} heads")
        return call.layout.spread_heads(value) if value.dim() else value

    def extra_repr(self) -> str:
        if self.network is not None:
            return ""
        trained = ", learnable=True" if isinstance(self.log_value, nn.Parameter) else ""
        return f"{self._name}={shown(self.log_value.exp())}{trained}"


def _with_name_of_family(family: OneParameterFamily, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the network of a state from before its name held that of the family."""
    old = f"{prefix}network."
    for key in [key for key in state if key.startswith(old)]:
        state[f"{prefix}{family._network_as}.{key.removeprefix(old)}"] = state.pop(key)


def shown(value: Tensor) -> object:
    """Return the number of a tensor, or the list of its numbers, rounded to be shown."""
    numbers: object = value.detach().double().round(decimals=5).tolist()
    return numbers
