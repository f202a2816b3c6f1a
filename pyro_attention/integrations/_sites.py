"""What the converters of other people's models share: which attentions they take, and the priors of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, TypeAlias

from pyro_attention.families.prior import PRIORS, Prior

__all__ = ["MakePrior", "PriorChoice", "read_prior", "read_sites"]

# From the width of a key and the number of heads to the prior network of one attention.
MakePrior: TypeAlias = Callable[[int, int], Prior]
PriorChoice: TypeAlias = MakePrior | type[Prior] | str


def read_prior(prior: PriorChoice) -> MakePrior:
    """What makes the prior of each attention.

    Args:
        prior: A registered name or a class, whose prior is shared by the heads where it has a network; or a function of
            the width of a key and the number of heads.

    Raises:
        TypeError: It is neither, such as one prior for all.
        ValueError: No prior is registered under the name.

    Example:
        >>> read_prior("gamma_contextual")(64, 12)
        ContextualGammaPrior(
          rate=1.0
          (network): KeyNetwork(64, heads=1, hidden_dim=10)
        )
    """
    made: Any = PRIORS[prior] if isinstance(prior, str) else prior
    if isinstance(made, type) and issubclass(made, Prior):
        reads_keys = "key_dim" in signature(made).parameters
        return lambda key_dim, heads: made(key_dim) if reads_keys else made()  # noqa: ARG005
    if isinstance(made, Prior) or not callable(made):
        raise TypeError(
            f"prior is {made!r}, expected a registered name such as 'gamma_contextual', a class of priors, or a "
            f"function of the width of a key and the number of heads that makes the prior of one attention, such as "
            f"lambda key_dim, heads: ContextualGammaPrior(key_dim, rate=2.0)"
        )
    return made  # type: ignore[no-any-return]


def read_sites(sites: str | Sequence[str], paths: Collection[str], *, of: str) -> list[str]:
    """The paths that match any of the patterns, in their order.

    Args:
        sites: One pattern as in ``fnmatch``, or several.
        paths: Module paths of the attentions of a model; that of the model itself is "".
        of: What stands at these paths, for the error, such as "torch.nn.MultiheadAttention".

    Raises:
        ValueError: There are no patterns or no attentions, or a pattern matches none of them.

    Example:
        >>> read_sites("layers.*.self_attn", ["layers.0.self_attn", "layers.0.cross_attn"], of="attention")
        ['layers.0.self_attn']
    """
    patterns = [sites] if isinstance(sites, str) else list(sites)
    if not paths:
        raise ValueError(f"the model has no {of}; expected a model with attention of this kind")
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ValueError(
                f"sites: no {of} matches '{pattern}'; expected a pattern of module paths, of which there are "
                f"{', '.join(map(repr, paths))}"
            )
    if not patterns:
        raise ValueError(f"sites is empty, expected patterns of module paths such as '*' or '{next(iter(paths))}'")
    return [path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]
