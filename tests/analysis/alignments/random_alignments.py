"""Random alignments and weights for the property tests."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

from pyro_attention.analysis import Alignment, GoldAlignment

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5))


def links_in(size):
    words = [(source, target) for source in range(size[0]) for target in range(size[1])]
    return st.frozensets(st.sampled_from(words))


def alignments_in(size):
    return links_in(size).map(lambda links: Alignment(links, *size))


# two alignments of the same sentence pair
TWO = SIZES.flatmap(lambda size: st.tuples(alignments_in(size), alignments_in(size)))
# a prediction and gold links
SCORED = SIZES.flatmap(
    lambda size: st.tuples(alignments_in(size), st.builds(GoldAlignment, links_in(size), links_in(size)))
)


def weights_of(*shape, seed=0, spread=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator, dtype=dtype)).softmax(-1)


def aligned(text, num_source=4, num_target=4):
    """An alignment from Pharaoh links."""
    links = (link.split("-") for link in text.split())
    return Alignment(frozenset((int(source), int(target)) for source, target in links), num_source, num_target)
