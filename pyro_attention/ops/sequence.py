"""Recurrent networks over padded sequences."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["encode_sequence"]


def encode_sequence(lstm: nn.LSTM, words: Tensor, mask: Tensor) -> Tensor:
    """Outputs of an LSTM that sees no padding, in either direction: ``[B, N, width]``, zeros at the padding.

    Args:
        lstm: The LSTM, batch first.
        words: ``[B, N, D]``.
        mask: True at words, which come first in every row, ``[B, N]``.

    Raises:
        ValueError: A row without words.

    Example:
        >>> import torch
        >>> lstm = nn.LSTM(3, 2, batch_first=True, bidirectional=True)
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> encode_sequence(lstm, torch.ones(2, 2, 3), mask)[1, 1].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    lengths = mask.sum(1).cpu()
    if (lengths == 0).any():
        empty = (lengths == 0).nonzero().flatten().tolist()
        raise ValueError(f"sentences {empty} of the batch have no words; leave them out")
    packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
    outputs = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=words.size(1))
    encoded: Tensor = outputs[0]
    return encoded
