"""Torch's layers of inputs that torch does not take: sparse matrices, and sequences with padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["apply_linear", "encode_sequence"]


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to ``[..., in_features]``, or to a sparse matrix ``[N, in_features]``, CSR or COO.

    Example:
        >>> layer, x = nn.Linear(3, 2), torch.eye(3)
        >>> torch.allclose(apply_linear(layer, x.to_sparse()), apply_linear(layer, x))
        True
    """
    if x.layout == torch.strided:
        return torch.as_tensor(layer(x))
    with torch.autocast(x.device.type, enabled=False):  # there is no sparse product in half precision
        product: Tensor = torch.sparse.mm(x, layer.weight.T)
        return product if layer.bias is None else product + layer.bias


def encode_sequence(lstm: nn.LSTM, words: Tensor, mask: Tensor) -> Tensor:
    """Run an LSTM that sees no padding, in either direction: ``[B, N, width]``, zeros at the padding.

    Args:
        lstm: The LSTM, batch first.
        words: ``[B, N, D]``.
        mask: True at words, which come first in every row, ``[B, N]``.

    Raises:
        ValueError: A row without words.

    Example:
        >>> lstm = nn.LSTM(3, 2, batch_first=True, bidirectional=True)
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> encode_sequence(lstm, torch.ones(2, 2, 3), mask)[1, 1].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    lengths, order = mask.sum(1).sort(descending=True, stable=True)
    # sorted here, as torch sorts on the CPU and copies the order there and back: a GPU is waited for once
    on_cpu = lengths.cpu()
    if on_cpu[-1] == 0:
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"sentences {empty} of the batch have no words; leave them out")
    packed = nn.utils.rnn.pack_padded_sequence(words[order], on_cpu, batch_first=True)
    outputs = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=words.size(1))
    encoded: Tensor = outputs[0]
    return encoded[order.argsort()]
