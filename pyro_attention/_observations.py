"""Check that the items of an observation stand at the dimensions of its plates."""

from __future__ import annotations

import torch
from pyro.distributions import Delta, Unit
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_attention._typing import Message
from pyro_attention.families.distribution import AttentionDistribution

__all__ = ["check_observation"]


def check_observation(site: Message) -> None:
    """Raise ValueError where an observation would be broadcast against its distribution, as ``[16, 1]`` by ``[16]``.

    Every pair of items would then be compared, or, where many draws stand at the left of the items, every item with
    another draw. Nothing is looked at unless Pyro validates.

    Args:
        site: The message of an observed sample site, which has passed the plates of the model.
    """
    fn, value = site["fn"], site["value"]
    if not is_validation_enabled() or not isinstance(value, Tensor) or isinstance(fn, AttentionDistribution):
        return
    if isinstance(fn, Delta | Unit) or not isinstance(fn, torch.distributions.Distribution):  # no data
        return
    items = value.shape[: value.dim() - len(fn.event_shape)]
    plates = {frame.dim: frame for frame in site["cond_indep_stack"] if frame.dim is not None}
    # plates without items at their dimension, which may stand at another one
    misplaced = {
        dim: frame for dim, frame in plates.items() if frame.size > 1 and (dim < -len(items) or items[dim] == 1)
    }
    for dim in range(-len(items), 0):
        if items[dim] == 1 or dim in plates:
            continue
        plate_dim = next((at for at, frame in misplaced.items() if frame.size == items[dim]), None)
        expected_size = fn.batch_shape[dim] if dim >= -len(fn.batch_shape) else 1
        if plate_dim is None and (expected_size == items[dim] or not plates):
            continue  # the distribution has these entries, too, or no plate says where items belong
        names = ", ".join(f"'{frame.name}' ({frame.size} at {frame.dim})" for frame in plates.values())
        squeezed = (dim if plate_dim is None else plate_dim) - len(fn.event_shape)
        raise ValueError(
            f"site '{site['name']}': the observation has shape {tuple(value.shape)}, with {items[dim]} entries where "
            f"there is no plate (plates: {names}), so it would be compared with every item of others; expected items "
            f"at the dimension of their plate: take y.squeeze({squeezed}), squeeze the parameters of the "
            f"distribution, too, or .to_event(1) of a distribution that has that dimension, too"
        )
