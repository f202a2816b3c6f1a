"""Links out of both directions: products and means of probabilities, their samples, and the symmetrised links."""

import pytest
import torch

from experiments.nmt.alignments import PairAlignment, combine_pairs, combine_weights, link_both

FORWARD = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])  # two target words, three source words
BACKWARD = torch.tensor([[0.8, 0.2], [0.1, 0.9], [0.6, 0.4]])


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ("product", [[0.72, 0.01, 0.0], [0.04, 0.45, 0.12]]),
        ("geometric", [[0.72**0.5, 0.1, 0.0], [0.2, 0.45**0.5, 0.12**0.5]]),
        ("mean", [[0.85, 0.1, 0.3], [0.2, 0.7, 0.35]]),
    ],
)
def test_probabilities_of_both_directions(combine, expected):
    torch.testing.assert_close(combine_weights(FORWARD, BACKWARD, combine=combine), torch.tensor(expected))


@pytest.mark.parametrize(
    ("combine", "options", "links"),
    [
        ("intersection", {}, "0-0 1-1"),
        ("union", {}, "0-0 1-1 2-0"),
        ("grow-diag-final-and", {}, "0-0 1-1 2-0"),
        ("intersection", {"method": "threshold", "threshold": 0.25}, "0-0 1-1 2-1"),
        ("product", {"method": "threshold", "threshold": 0.1}, "0-0 1-1 2-1"),
        ("mean", {"method": "threshold", "threshold": 0.6}, "0-0 1-1"),
        ("geometric", {"method": "threshold", "threshold": 0.1**0.5}, "0-0 1-1 2-1"),
        ("product", {"method": "mbr"}, "0-0 1-1"),  # 2 (.72 + .45) / (2 + 1.34), and with .12: less
    ],
)
def test_links_of_both_directions(combine, options, links):
    assert str(link_both(FORWARD, BACKWARD, combine=combine, **options)) == links


def test_argmax_says_nothing_of_no_link():
    with pytest.raises(ValueError, match="method is argmax, expected mbr or threshold"):
        link_both(FORWARD, BACKWARD, combine="mean")


def pair(samples, num_source, num_target, *, prior=True):
    weights = torch.rand(samples, num_target, num_source).softmax(-1)
    words = [["w"] * num_source, ["w"] * num_target]
    return PairAlignment(*words, weights.mean(0) if prior else None, weights)


@pytest.mark.parametrize(
    ("counts", "samples"), [((1, 1), 1), ((4, 4), 4), ((1, 3), 3), ((3, 1), 3), ((5, 2), 2)], ids=str
)
def test_samples_of_both_directions_meet(counts, samples):
    forward, backward = pair(counts[0], 3, 2), pair(counts[1], 2, 3)
    found = combine_pairs(forward, backward, combine="product")
    assert found.posterior.shape == (samples, 2, 3)
    for number in range(samples):
        first, second = (part.posterior[min(number, len(part.posterior) - 1)] for part in (forward, backward))
        torch.testing.assert_close(found.posterior[number], first * second.mT)
    torch.testing.assert_close(found.prior, forward.prior * backward.prior.mT)
    assert (found.source, found.target) == (forward.source, forward.target)


def test_a_prior_is_needed_on_both_sides():
    assert combine_pairs(pair(1, 3, 2, prior=False), pair(1, 2, 3), combine="mean").prior is None
