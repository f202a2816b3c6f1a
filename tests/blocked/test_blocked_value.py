"""The value of a blocked site: windows of its numbers, and an error from whatever would need all of them."""

import copy
import pickle

import numpy as np
import pytest
import torch

from pyro_attention import AttentionGuide, Weibull
from pyro_attention.blocked import BlockedValue
from tests.blocked.test_multihead_blocked import BATCH, HEADS, LENGTH, MASKS, WIDTH, Model


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@pytest.fixture
def blocked():
    model = Model()
    return model, AttentionGuide(model, Weibull())


def test_value(blocked, x):
    value = blocked[1](x)["attention"]
    assert isinstance(value, BlockedValue)
    assert (value.shape, value.dtype) == ((BATCH, HEADS, LENGTH, LENGTH), torch.float32)
    everything = value.window(slice(None))
    torch.testing.assert_close(value.window(slice(1, 3)), everything[..., 1:3, :])
    assert everything.requires_grad
    detached = value.detach()
    assert torch.equal(detached.window(slice(None)), everything)
    assert not detached.window(slice(None)).requires_grad
    assert "BlockedValue(shape=(3, 2, 6, 6), seed=" in repr(value)
    assert repr(value) == f"{value}" == str(value)


OPERATIONS = {
    "add": lambda v: v + 1,
    "index": lambda v: v[0],
    "exp": torch.exp,
    "stack": lambda v: torch.stack([v, v]),
    "clone": torch.clone,
    "deepcopy": copy.deepcopy,
    "iter": list,
    "copy_": lambda v: torch.zeros(v.shape).copy_(v),
    # what torch does without dispatching it
    "detach_": torch.detach_,
    "requires_grad_": lambda v: v.requires_grad_(),
    "requires_grad": lambda v: setattr(v, "requires_grad", True),
    "data": lambda v: setattr(v, "data", torch.zeros(v.shape)),
    "Parameter": torch.nn.Parameter,
    "numpy": lambda v: v.numpy(),
    "asarray": np.asarray,
    "tolist": lambda v: v.tolist(),
    "item": lambda v: v.item(),
    "bool": bool,
    "float": float,
    "int": int,
    "index of a list": lambda v: range(9)[v],
    "is_nonzero": torch.is_nonzero,
    "format": lambda v: f"{v:.2f}",
    "backward": lambda v: v.backward(),
    "data_ptr": lambda v: v.data_ptr(),
    "storage": lambda v: v.untyped_storage(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_other_operations_ask_for_a_window(operation, blocked, x):
    value = blocked[1](x)["attention"]
    with pytest.raises(RuntimeError, match=r"site 'attention'.*materialise first, some queries by value\.window"):
        operation(value)
    assert not value.requires_grad
    assert value.window(slice(0, 1)).requires_grad  # nothing was done to it


@pytest.mark.parametrize("masks", ["none", "causal"])
def test_windows_are_slices_of_queries_in_a_row(masks, blocked, x):
    value = blocked[1](x, **MASKS[masks])["attention"]
    everything = value.window(slice(None))
    for rows in (slice(2, 4, 1), slice(-2, None), slice(4, 99), slice(3, 3)):
        torch.testing.assert_close(value.window(rows), everything[..., rows, :])
    for rows in (3, [1, 2], torch.tensor([1, 2]), None, ...):
        with pytest.raises(TypeError, match=r"site 'attention': rows are .*, expected a slice of queries"):
            value.window(rows)
    for rows in (slice(0, 2, 2), slice(0, 6, 2), slice(4, 0, -1)):
        with pytest.raises(
            ValueError,
            match=r"site 'attention': rows are slice\(.*, expected a slice of queries with a step of 1 or None",
        ):
            value.window(rows)


def test_guides_and_values_pickle(blocked, x):
    model, guide = blocked
    with torch.no_grad():
        value = guide(x)["attention"]
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value)):
        assert torch.equal(again.window(slice(None)), value.window(slice(None)))
    pickle.loads(pickle.dumps((model, guide)))
