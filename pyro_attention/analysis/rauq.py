"""RAUQ: the uncertainty of generated text from token probabilities and attention to the previous token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["rauq"]


def rauq(log_probs: Tensor, previous: Tensor, *, alpha: float = 0.2) -> float:
    r"""Compute the recurrent attention-based uncertainty of a text, larger where the model is less sure.

    .. math:: c_l(y_1) = p(y_1), \quad c_l(y_t) = \alpha\, p(y_t) + (1 - \alpha)\, a_{l, t}\, c_l(y_{t-1}), \quad
              u = \max_l\, -\tfrac1T \sum_t \log c_l(y_t)

    Here a is the weight of token t at token t - 1, in the head of the layer where its mean over the text is largest.

    Args:
        log_probs: Log probabilities of the T generated tokens, ``[T]``.
        previous: Weights of tokens 2 to T at the token before each, ``[layers, heads, T - 1]``. The authors take the
            middle third of the layers.
        alpha: Share of the probability of the token itself; 0.2 as by the authors.

    Raises:
        ValueError: Shapes that do not fit, numbers that are no log probabilities or no weights, or an ``alpha`` outside
            (0, 1].

    Example:
        >>> round(rauq(torch.tensor([0.5, 0.8]).log(), torch.tensor([[[0.1], [0.5]]])), 4)  # c = .5, .16 + .8 * .5 * .5
        0.8574

    Source: Vazhentsev et al., Uncertainty-Aware Attention Heads: Efficient Unsupervised Uncertainty Quantification for
    LLMs, section 3.
    """
    if log_probs.dim() != 1 or not len(log_probs) or previous.dim() != 3 or previous.size(-1) != len(log_probs) - 1:
        raise ValueError(
            f"log_probs have shape {tuple(log_probs.shape)} and previous {tuple(previous.shape)}, expected [T] and "
            f"[layers, heads, T - 1]"
        )
    for name, values, low, high in (("log_probs", log_probs, -math.inf, 0.0), ("previous", previous, 0.0, 1.0)):
        outside = ~(values.isfinite() & (values >= low) & (values <= high + 1e-5))  # rounding of half precision
        if outside.any():
            expected = "log probabilities of tokens" if name == "log_probs" else "attention weights"
            raise ValueError(
                f"{name} hold {values[outside][0].item():.4g}, expected {expected}, finite and at most {high:g}"
            )
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha is {alpha}, expected a number above 0 and up to 1")
    probs, weights = log_probs.double().exp(), previous.double()
    heads = weights.mean(-1).argmax(-1) if weights.size(-1) else torch.zeros(len(weights), dtype=torch.int64)
    chosen = weights[torch.arange(len(weights)), heads]  # [layers, T - 1]
    confidence = probs[0].expand(len(weights))
    total = confidence.log()
    for t in range(1, len(probs)):
        confidence = alpha * probs[t] + (1 - alpha) * chosen[:, t - 1] * confidence
        total = total + confidence.log()
    return (-total / len(probs)).max().item()
