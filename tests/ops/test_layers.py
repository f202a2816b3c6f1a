"""Layers of inputs that torch does not take, against one sequence at a time."""

import pytest
import torch
from torch import nn

from pyro_attention.ops.layers import encode_sequence


@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_sequence_is_encoded_as_if_it_were_alone(bidirectional):
    lstm, words = nn.LSTM(3, 4, batch_first=True, bidirectional=bidirectional), torch.randn(6, 5, 3)
    words.requires_grad_()
    lengths = [3, 5, 1, 3, 2, 5]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(-1)
    encoded = encode_sequence(lstm, words, mask)
    for row, length in enumerate(lengths):
        alone = lstm(words[row : row + 1, :length])[0][0]
        torch.testing.assert_close(encoded[row, :length], alone)
        assert not encoded[row, length:].any()
    encoded.square().sum().backward()
    assert ((words.grad != 0).any(-1) == mask).all()
