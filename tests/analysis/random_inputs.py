"""Random alignments, weights and logits for the property tests."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_attention.analysis import Alignment, GoldAlignment

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True, database=None)
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


@dataclass(frozen=True)
class Sampled:
    """Logits ``[S, items, classes]`` and labels ``[items]``."""

    logits: Tensor
    labels: Tensor

    @property
    def probabilities(self):
        return self.logits.softmax(-1)

    @property
    def correct(self):
        return self.probabilities.mean(0).argmax(-1) == self.labels


def sampled(seed=0, samples=5, items=40, classes=4, spread=1.0, noise=1.0):
    """In float64; spread scales the logits, noise is what the samples differ by."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    clean = draw(items, classes)
    labels = (clean + draw(items, classes)).argmax(-1)
    return Sampled(spread * (clean + noise * draw(samples, items, classes)), labels)


def for_all(test):
    """Run a test for random samples of many shapes and sizes, some with ties between samples and classes."""
    problems = st.builds(
        sampled, seed=st.integers(0, 10**6), samples=st.integers(1, 6), items=st.integers(1, 30),
        classes=st.integers(2, 6), spread=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
        noise=st.sampled_from([0.0, 0.1, 2.0]),
    )  # fmt: skip
    return PROPERTY(given(problem=problems)(test))
