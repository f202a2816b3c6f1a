"""How the prior of every site is made, and how that is written into a configuration."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyro_attention.families.prior import PRIORS, Prior

__all__ = ["PriorFactory", "make_prior", "prior_from_config", "prior_to_config"]

PriorFactory = str | Callable[..., Prior]


def make_prior(factory: PriorFactory, head_dim: int, site: str) -> Prior:
    """The prior of one site; one that reads the keys is made for their width.

    Raises:
        TypeError: The factory is neither a name nor callable, or makes something else than a prior.
        ValueError: No prior has this name.
    """
    made = PRIORS[factory] if isinstance(factory, str) else factory
    if isinstance(made, Prior) or not callable(made):
        raise TypeError(
            f"prior is {factory!r}, expected a name such as 'gamma_contextual', a class of priors, a functools.partial "
            f"of one, or a function of the head width: every site needs a prior of its own"
        )
    prior = made(head_dim) if _takes_width(made) else made()
    if not isinstance(prior, Prior):
        raise TypeError(
            f"site '{site}': prior= made a {type(prior).__name__}, expected a Prior such as FixedGammaPrior"
        )
    return prior


def prior_to_config(factory: PriorFactory) -> dict[str, Any] | None:
    """Name and options of a registered prior; None for a function, which no configuration can hold."""
    made: Any = factory
    options: Mapping[str, Any] = {}
    if isinstance(made, partial) and not made.args:
        made, options = made.func, made.keywords
    names = [name for name, member in PRIORS.items() if made in (name, member)]
    try:
        json.dumps(dict(options))
    except TypeError:
        return None
    return {"name": names[0], "options": dict(options)} if names else None


def prior_from_config(stored: Mapping[str, Any]) -> PriorFactory:
    """The factory that :func:`prior_to_config` wrote down."""
    return partial(PRIORS[stored["name"]], **stored["options"])


def _takes_width(made: Callable[..., Any]) -> bool:
    """Whether a factory has to be given a width: its first positional parameter has no default."""
    for parameter in inspect.signature(made).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return parameter.default is parameter.empty
        break
    return False
