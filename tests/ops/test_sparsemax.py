"""Sparsemax against a quadratic programme, its gradients against finite differences, and its limits."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_attention.ops.sparsemax import sparsemax

ROWS = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=7)
MOST = st.one_of(st.none(), st.integers(1, 8))


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


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(scores=ROWS, k=MOST)
def test_it_is_the_nearest_point_of_the_simplex(scores, k):
    scores = torch.tensor(scores, dtype=torch.float64)
    found = sparsemax(scores, k=k)
    distances = [(point - scores).square().sum() for point in (found, nearest_by_brute_force(scores, k))]
    torch.testing.assert_close(*distances, atol=1e-9, rtol=1e-9)  # equal scores at the cut: of several points any


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(scores=st.lists(ROWS.map(lambda row: (row * 7)[:7]), min_size=1, max_size=3), k=MOST, shift=st.floats(-9, 9))
def test_rows_are_on_the_simplex_and_no_shift_matters(scores, k, shift):
    scores = torch.tensor(scores, dtype=torch.float64)
    found = sparsemax(scores, k=k)
    assert (found >= 0).all()
    assert ((found > 0).sum(-1) <= (k or 7)).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(len(scores)).double())
    if k is None:  # else a shift may round equal scores at the cut apart
        torch.testing.assert_close(sparsemax(scores + shift), found, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("scores", "k", "expected"),
    [
        ([3.0], None, [1.0]),
        ([3.0], 5, [1.0]),
        ([0.0, 0.0], None, [0.5, 0.5]),
        ([2.0, 2.0, 1.0], None, [0.5, 0.5, 0.0]),
        ([1.0, 0.0], None, [1.0, 0.0]),
        ([0.5, 0.25, -1.0], None, [0.625, 0.375, 0.0]),
        ([0.5, 0.25, -1.0], 1, [1.0, 0.0, 0.0]),
        ([0.1, 0.0, 0.2], 2, [0.45, 0.0, 0.55]),
        ([-torch.inf, 0.0, 0.0], None, [0.0, 0.5, 0.5]),
        ([-torch.inf, 0.0, 0.0], 3, [0.0, 0.5, 0.5]),
        ([-torch.inf, -torch.inf], None, [0.0, 0.0]),
        ([1e30, -1e30], None, [1.0, 0.0]),
        ([1e8 + 8, 1e8, 0.0], None, [1.0, 0.0, 0.0]),
    ],
)
def test_by_hand(scores, k, expected):
    torch.testing.assert_close(sparsemax(torch.tensor([scores]), k=k), torch.tensor([expected]))


@pytest.mark.parametrize("k", [None, 2])
def test_a_mask_is_as_if_the_keys_were_not_there(k):
    torch.manual_seed(0)
    scores, mask = torch.randn(4, 3, 6).double().requires_grad_(), torch.rand(3, 6) > 0.4
    mask[1] = False
    found = sparsemax(scores, mask=mask, k=k)
    for row in range(3):
        kept = mask[row]
        if kept.any():
            torch.testing.assert_close(found[:, row, kept], sparsemax(scores[:, row, kept], k=k))
        assert (found[:, row, ~kept] == 0).all()
    (gradient,) = torch.autograd.grad(found.square().sum(), scores)
    assert (gradient[:, ~mask] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("k", [None, 3])
def test_gradients(k):
    torch.manual_seed(0)
    scores, mask = (2 * torch.randn(5, 6)).double().requires_grad_(), torch.rand(5, 6) > 0.2
    assert (sparsemax(scores, mask=mask, k=k) > 0).sum(-1).unique().numel() > 1
    assert torch.autograd.gradcheck(lambda z: sparsemax(z, mask=mask, k=k), scores)
    assert torch.autograd.gradgradcheck(lambda z: sparsemax(z, mask=mask, k=k).square(), scores)


def test_top_k_is_sparsemax_where_that_has_no_more_keys():
    torch.manual_seed(0)
    scores = 2 * torch.randn(50, 8).double()
    whole, top = sparsemax(scores), sparsemax(scores, k=3)
    few = (whole > 0).sum(-1) <= 3
    assert 0 < few.sum() < 50
    torch.testing.assert_close(top[few], whole[few])
    largest = scores[~few].topk(3)
    torch.testing.assert_close(top[~few].gather(-1, largest.indices), sparsemax(largest.values))
    assert ((top[~few] > 0).sum(-1) == 3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    scores = torch.tensor([[0.5, 0.25, -1.0]], dtype=dtype)
    assert sparsemax(scores).tolist() == [[0.625, 0.375, 0.0]]
    assert sparsemax(scores).dtype == torch.float32


def test_nan_is_seen():
    found = sparsemax(torch.tensor([[0.0, float("nan")], [0.0, 0.0]]))
    assert found[0].isnan().any()
    assert found[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("k", [0, -1, 2.0, True])
def test_bad_k(k):
    with pytest.raises(ValueError, match="expected an integer of at least 1, or None"):
        sparsemax(torch.zeros(3), k=k)
