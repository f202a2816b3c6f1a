"""Uncertainty of links on worked examples: calibration, wrong links told from right ones, words left out."""

import pytest
import torch

from experiments.nmt.align_table.aligned import Aligned
from experiments.nmt.align_table.certainty import Links, certainty, coverage_curve, linked_words
from experiments.nmt.alignments import PairAlignment
from pyro_attention.analysis import Alignment, GoldAlignment

FORWARD = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
BACKWARD = torch.tensor([[0.7, 0.3], [0.2, 0.8]])


def aligned(forward=FORWARD[None], backward=BACKWARD[None]):
    words = [f"w{i}" for i in range(2)]
    return Aligned([PairAlignment(words, words, None, forward)], [PairAlignment(words, words, None, backward)])


DIAGONAL = [Alignment(frozenset({(0, 0), (1, 1)}), 2, 2)]
HALF_RIGHT = [GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 1)}))]


def test_probabilities_of_written_links():
    found = linked_words(aligned(), DIAGONAL, HALF_RIGHT)
    assert found.right.tolist() == [True, False]
    assert found.mean.tolist() == pytest.approx([0.8, 0.7])
    assert found.product.tolist() == pytest.approx([0.63, 0.48])
    assert found.forward.tolist() == pytest.approx([0.9, 0.6])
    assert found.width is None
    assert found.places.tolist() == [[0, 0], [0, 1]]
    assert found.entropy.tolist() == pytest.approx([0.3251, 0.6730], abs=1e-4)


def test_widths_of_credible_intervals():
    draws = torch.linspace(0, 1, 21)
    forward = torch.stack([torch.stack([draws, 1 - draws], -1), torch.tensor([0.4, 0.6]).expand(21, 2)], 1)
    found = linked_words(aligned(forward), DIAGONAL, HALF_RIGHT)
    # the mean of a draw and of a single posterior: half the width of 90 %
    assert found.width.tolist() == pytest.approx([0.45, 0.0], abs=1e-6)


def links(mean, right, **changes):
    mean, right = torch.tensor(mean, dtype=torch.float64), torch.tensor(right)
    places = torch.stack([torch.zeros(len(mean)), torch.arange(len(mean))], -1).long()
    values = {"product": mean, "forward": mean, "width": None, "entropy": 1 - mean} | changes
    return Links(right=right, mean=mean, places=places, **values)


@pytest.mark.parametrize(
    ("mean", "right", "expected"),
    [
        ([0.95] * 4, [True] * 4, 0.05),
        ([0.75] * 4, [True, True, True, False], 0.0),
        ([0.9, 0.9, 0.3, 0.3], [True, False, False, False], 0.5 * 0.4 + 0.5 * 0.3),
    ],
)
def test_calibration_error(mean, right, expected):
    found = certainty(links(mean, right), None)
    assert found["ece_mean"] == found["ece_forward"] == pytest.approx(expected, abs=1e-6)
    assert ("auroc_probability" in found) == (not all(right))  # no area without a wrong link


def test_areas():
    """Wrong links at .2 and .6, right ones at .4 and .8: of the four pairs three are in order."""
    width = torch.tensor([0.9, 0.8, 0.1, 0.2], dtype=torch.float64)
    found = certainty(links([0.2, 0.6, 0.4, 0.8], [False, False, True, True], width=width), [torch.full((4,), 3.0)])
    assert found["auroc_probability"] == found["auroc_entropy"] == pytest.approx(0.75)
    assert found["auroc_width"] == pytest.approx(1.0)
    assert found["auroc_soft_entropy"] == pytest.approx(0.5)  # all alike


def test_no_links_have_no_numbers():
    assert certainty(links([], []), None) == {}


def test_words_left_out_do_not_count():
    """Word 0 is the more certain one (.8 against .7) and right; word 1 has a wrong link and no gold link."""
    curve = coverage_curve(aligned(), DIAGONAL, HALF_RIGHT)
    assert curve.coverage.tolist() == [0.5, 1.0]
    assert curve.aer_at(0.5) == 0.0
    assert curve.aer_at(0.51) == curve.aer_at(1.0) == pytest.approx(1 - 2 / 3)  # 1 - (1 + 1) / (2 + 1)


def test_words_without_any_link_have_no_error():
    curve = coverage_curve(aligned(), [Alignment(frozenset(), 2, 2)], [GoldAlignment(frozenset({(1, 1)}))])
    assert curve.aer.tolist() == [0.0, 1.0]
