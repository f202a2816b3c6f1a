"""A configuration cannot ask for more numbers than a network may have."""

import pytest
import torch
from torch import nn

from experiments.files import UserError
from experiments.harness import network_size
from experiments.harness.network_size import MOST_NUMBERS, bounded_network
from experiments.harness.training import seeded_build
from pyro_attention import FixedGammaPrior


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Linear(2**20, 2**20),
        lambda: nn.Embedding(10**12, 8),
        lambda: nn.LSTM(2**16, 2**16),
        lambda: torch.arange(10**13),
        lambda: torch.zeros(1).new_zeros(2**40),
        lambda: torch.randn(2**16, 2**16),
        lambda: [nn.Linear(1, 1) for _ in range(network_size.MOST_TENSORS)],
    ],
)
def test_more_numbers_than_a_network_may_have(build, monkeypatch):
    monkeypatch.setattr(network_size, "MOST_TENSORS", 100)
    said = f"more than {MOST_NUMBERS} numbers or 100 tensors .* choose smaller sizes, or, .* look at it"
    with pytest.raises(UserError, match=said), bounded_network():
        build()
    with pytest.raises(UserError, match=said):
        seeded_build(lambda _: build(), lambda *_: FixedGammaPrior(), seed=0)


def test_the_numbers_are_those_of_before():
    torch.manual_seed(0)
    expected = nn.LSTM(3, 4).state_dict()
    torch.manual_seed(0)
    with bounded_network() as counted:
        found = nn.LSTM(3, 4).state_dict()
    assert counted.numbers == sum(value.numel() for value in found.values())
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=0)
