"""Selection of the attention layers that a converter replaces, and of their priors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, TypeAlias, TypeVar

from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn

from pyro_attention._compat import active_handlers
from pyro_attention.attention import LatentAttention
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import PRIORS, Prior
from pyro_attention.families.distribution import AttentionDistribution

__all__ = [
    "PriorFactory",
    "RepeatedAttention",
    "copied",
    "exchange",
    "fresh_name",
    "layers_of",
    "make_prior",
    "read_sites",
]

LayerT = TypeVar("LayerT", bound=nn.Module)
PriorFactory: TypeAlias = str | Callable[..., Prior]


def make_prior(factory: PriorFactory, head_dim: int, *, site: str) -> Prior:
    """Make the prior of one site; a prior that reads the keys is made for their width, and shared by the heads."""
    made = PRIORS[factory] if isinstance(factory, str) else factory
    if isinstance(made, Prior) or not callable(made):
        raise TypeError(
            f"prior is {factory!r}, expected a name such as 'gamma_contextual', a class of priors, a functools.partial "
            f"of one, or a function of the width of a key: every site needs a prior of its own"
        )
    first = next(iter(signature(made).parameters.values()), None)
    # one that has to be given a width has a first parameter without a default
    positional = first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    prior = made(head_dim) if first is not None and positional and first.default is first.empty else made()
    if not isinstance(prior, Prior):
        raise TypeError(
            f"site '{site}': prior= made a {type(prior).__name__}, expected a Prior such as FixedGammaPrior"
        )
    return prior


def read_sites(sites: str | Sequence[str], paths: Collection[str], *, of: str) -> list[str]:
    """Return the paths that match any of the patterns, in their order; ``of`` names the layers, for the errors."""
    patterns = [sites] if isinstance(sites, str) else list(sites)
    if not paths or not patterns:
        raise ValueError(f"the model has {len(paths)} {of}, sites names {len(patterns)} patterns, expected one or more")
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ValueError(
                f"sites: no {of} matches '{pattern}'; expected a pattern of module paths, of which there are "
                f"{', '.join(map(repr, paths))}"
            )
    return [path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]


def layers_of(module: nn.Module, kind: type[LayerT]) -> dict[str, LayerT]:
    """Return the layers of a kind by their paths; a tied layer has several."""
    return {path: part for path, part in module.named_modules(remove_duplicate=False) if isinstance(part, kind)}


def exchange(module: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Put new layers in place of old ones, wherever they stand in a module, and return the module."""
    if module in new:
        return new[module]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out a second name of the same layer
            if child is not None and child in new:
                parent.add_module(name, new[child])
    return module


def copied(make: Callable[..., LayerT], layer: Any, prior: Prior, path: str) -> LayerT:
    """Return a layer with latent attention that holds the weights of another library's layer.

    Args:
        make: Function of the layer and its prior that makes it, such as ``MultiheadAttention.from_torch``.
        layer: The other library's layer, with its ``dropout``.
        prior: Prior of the new layer.
        path: Path of the layer in the module, for errors.

    Raises:
        TypeError: An error of ``make``, with the path.
        ValueError: An error of ``make``, with the path.
    """
    try:
        result = make(layer, prior=prior)
    except (TypeError, ValueError) as error:
        raise type(error)(f"'{path}': {error}; or name the others by sites=") from error
    new: Any = result  # LayerT declares no attention
    new.attention = RepeatedAttention(new.default_name, prior, dropout=layer.dropout).train(layer.training)
    new.attention.default_name = new.default_name
    return result


def fresh_name(name: str) -> str:
    """Return a site name that no trace of this run has yet: ``name``, ``name.1``, ``name.2``, ..."""
    traces = [handler.trace for handler in active_handlers() if isinstance(handler, TraceMessenger)]
    candidate, count = name, 0
    while any(candidate in trace for trace in traces):
        count += 1
        candidate = f"{name}.{count}"
    return candidate


class RepeatedAttention(LatentAttention):
    """Latent attention with a site for each call in a run: ``name``, ``name.1``, ``name.2``, ...

    Models of other libraries may call one layer several times, as where it is tied.
    """

    def sample(self, call: AttentionCall, prior: AttentionDistribution) -> Tensor:
        """See :meth:`LatentAttention.sample`."""
        name = self.name
        self.name = fresh_name(name)
        try:
            return super().sample(call, prior)
        finally:
            self.name = name
