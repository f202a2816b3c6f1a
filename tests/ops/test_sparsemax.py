"""Sparsemax against a quadratic programme, its gradients against finite differences, and its limits."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_attention.ops.sparsemax import sparsemax


def nearest_by_brute_force(scores, k):
    """The nearest point of the simplex among those of every set of at most k keys."""
    best, keys = None, range(len(scores))
    for size in range(1, min(k or len(scores), len(scores)) + 1):
        for chosen in map(list, itertools.combinations(keys, size)):
            point = torch.zeros_like(scores)
            point[chosen] = scores[chosen] - (scores[chosen].sum() - 1) / size
            distance = (point - scores).square().sum()
            if (point >= 0).all() and (best is None or distance < best[0]):
                best = distance, point
    return best[1]


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(
    scores=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6),
    k=st.one_of(st.none(), st.integers(1, 8)), shift=st.floats(-9, 9),
)  # fmt: skip
def test_it_is_the_nearest_point_of_the_simplex(scores, k, shift):
    scores = torch.tensor(scores, dtype=torch.float64)
    found = sparsemax(scores, k=k)
    assert (found >= 0).all()
    assert (found > 0).sum() <= (k or 7)
    assert found.sum().item() == pytest.approx(1)
    distances = [(point - scores).square().sum() for point in (found, nearest_by_brute_force(scores, k))]
    torch.testing.assert_close(*distances, atol=1e-9, rtol=1e-9)  # equal scores at the cut: of several points any
    if k is None:  # else a shift may round equal scores at the cut apart
        torch.testing.assert_close(sparsemax(scores + shift), found, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("scores", "k", "expected"),
    [
        ([-torch.inf, 0.0, 0.0], 3, [0.0, 0.5, 0.5]),
        ([-torch.inf, -torch.inf], None, [0.0, 0.0]),
        ([1e30, -1e30], None, [1.0, 0.0]),
        ([1e8 + 8, 1e8, 0.0], None, [1.0, 0.0, 0.0]),
        ([0.0, torch.nan], None, [torch.nan, torch.nan]),
    ],
)
def test_limits(scores, k, expected):
    torch.testing.assert_close(sparsemax(torch.tensor([scores]), k=k), torch.tensor([expected]), equal_nan=True)
    assert sparsemax(torch.tensor([scores]).bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("k", [None, 2])
def test_a_mask_is_as_if_the_keys_were_not_there(k):
    scores, mask = torch.randn(4, 3, 6).double().requires_grad_(), torch.rand(3, 6) > 0.4
    mask[1] = False
    found = sparsemax(scores, mask=mask, k=k)
    for row in (0, 2):
        kept = mask[row]
        torch.testing.assert_close(found[:, row, kept], sparsemax(scores[:, row, kept], k=k))
    (gradient,) = torch.autograd.grad(found.square().sum(), scores)
    assert (found[:, ~mask] == 0).all()
    assert (gradient[:, ~mask] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("k", [None, 3])
def test_gradients(k):
    scores, mask = (2 * torch.randn(5, 6)).double().requires_grad_(), torch.rand(5, 6) > 0.2
    assert (sparsemax(scores, mask=mask, k=k) > 0).sum(-1).unique().numel() > 1
    assert torch.autograd.gradcheck(lambda z: sparsemax(z, mask=mask, k=k), scores)
    assert torch.autograd.gradgradcheck(lambda z: sparsemax(z, mask=mask, k=k).square(), scores)


@pytest.mark.parametrize("k", [0, 2.0, True])
def test_bad_k(k):
    with pytest.raises(ValueError, match="expected an integer of at least 1, or None"):
        sparsemax(torch.zeros(3), k=k)
