"""Alignments of whole sentences under jumps, where the words to come tell of an alignment too."""

from __future__ import annotations

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.decoder_state import DecoderState

__all__ = ["smoothed_alignments"]


def smoothed_alignments(
    model: AttentionDecoder, state: DecoderState, target_in: Tensor, target_out: Tensor, target_mask: Tensor
) -> Tensor:
    r"""Alignment of every word given the whole sentence, under the hidden Markov model that jumps make.

    .. math:: p(z_j = i \mid x, y) = \frac{\partial \log p(y \mid x)}{\partial \log p(y_j \mid z_j = i)}

    so that the backward pass of automatic differentiation is that of the forward-backward algorithm.

    Args:
        model: A model with ``jumps``, in evaluation mode.
        state: Its state before the first word.
        target_in: Ids ``[B, M]`` of the words before.
        target_out: Ids ``[B, M]`` of the words.
        target_mask: True at target words, ``[B, M]``.

    Returns:
        ``[B, M, N]``; zeros at the padding of both sides.

    Raises:
        ValueError: The model has no jumps.

    Source: Rabiner (1989), A Tutorial on Hidden Markov Models; Eisner (2016), Inside-Outside and Forward-Backward
        Algorithms Are Just Backprop.
    """
    with torch.no_grad():
        log_f = model.explained(state, target_out)
        words = model.embed(target_in).unbind(1)
    if log_f is None:
        raise ValueError("the model has no jumps, without which the words to come tell nothing; use target_alignments")
    with torch.enable_grad():
        log_f = log_f.double().requires_grad_()  # small probabilities are differences of larger numbers
        total, before = log_f.new_zeros(()), None
        for word, of_word, real in zip(words, log_f.unbind(2), target_mask.unbind(1), strict=True):
            step, before = model.step(state, word, log_f=before), of_word
            total, state = total + (step.log_prior + of_word).logsumexp(-1).where(real, 0).sum(), step.state
        (posterior,) = torch.autograd.grad(total, log_f)
    return posterior.clamp(0, 1).to(words[0].dtype).transpose(1, 2)
