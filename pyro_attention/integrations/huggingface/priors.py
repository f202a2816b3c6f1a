"""How the priors were made, written into a configuration and read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyro_attention.families.base import PRIORS
from pyro_attention.integrations._sites import PriorFactory

__all__ = ["prior_from_config", "prior_to_config"]


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
