"""What a search finds: hypotheses with their alignments; and what every search needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from models.decoder import AttentionDecoder
from models.decoder_state import DecoderState
from models.decoding.inference import Inference
from models.decoding.next_word import target_alignments

__all__ = ["Hypothesis", "align", "check_request", "evaluation", "largest", "length_divisor", "repeats"]


@dataclass(frozen=True)
class Hypothesis:
    """A sentence that was found.

    Attributes:
        tokens: Ids after the begin token; the end token is the last where there is one.
        log_prob: Sum of the words' log probabilities, the end token's included.
        score: What it is ranked by, the log probability over the length penalty.
        finished: Whether it ends by the end token; else it was cut at the largest length.
        alignments: Rows on the simplex, one for each token, over the sentence's own words, ``[len(tokens), N]``: the
            alignment given the token, or attention weights, see :func:`word_alignment`. None if not asked for. What a
            row lacks to one is the probability of NULL in a model that has it.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool
    alignments: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def words(self) -> tuple[int, ...]:
        """The tokens without the end token."""
        return self.tokens[:-1] if self.finished else self.tokens


def length_divisor(length: int, length_penalty: float) -> float:
    r"""What divides the log probability of so many words, :math:`((5 + \mathrm{length}) / 6)^\alpha`.

    Example:
        >>> length_divisor(1, 1.0), length_divisor(7, 2.0)
        (1.0, 4.0)

    Source: Wu et al. (2016), Google's Neural Machine Translation System, equation (14).
    """
    return ((5 + length) / 6) ** length_penalty


def repeats(tokens: Tensor, size: int, vocabulary: int) -> Tensor:
    """Whether a next word would complete so many tokens in a row that a hypothesis has already.

    Args:
        tokens: Ids ``[..., L]``.
        size: Number of tokens in a row.
        vocabulary: Number of words V.

    Returns:
        Boolean ``[..., V]``.

    Example:
        >>> repeats(torch.tensor([0, 2, 1, 0]), 2, 3)  # 0 2 is there
        tensor([False, False,  True])
    """
    found = torch.zeros(*tokens.shape[:-1], vocabulary, dtype=torch.int64, device=tokens.device)
    if tokens.size(-1) < size:
        return found.bool()
    there = tokens.unfold(-1, size, 1)
    same = (there[..., :-1] == tokens[..., None, tokens.size(-1) - size + 1 :]).all(-1)
    return found.scatter_add(-1, there[..., -1], same.long()).bool()


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest entries of every row ``[R, N]`` in falling order and their indices; of equal ones the first.

    ``torch.topk`` may take any of equal entries, and sorting a whole row of beam times vocabulary is slow.

    Raises:
        ValueError: An entry is NaN.

    Example:
        >>> largest(torch.tensor([[1.0, 3.0, 1.0, 1.0]]), 3)
        (tensor([[3., 1., 1.]]), tensor([[1, 0, 2]]))
    """
    least = values.topk(count, dim=1).values[:, -1:]
    if values.isnan().any():
        bad = values.isnan().any(1).sum().item()
        raise ValueError(f"log probabilities of {bad} sentences are NaN; check the model's parameters")
    above, equal = values > least, values == least
    room = count - above.sum(1, keepdim=True)
    chosen = (above | (equal & (equal.cumsum(1) <= room))).nonzero()[:, 1].view(len(values), count)
    ordered, order = values.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    return ordered, chosen.gather(1, order)


def align(
    model: AttentionDecoder,
    start: DecoderState,
    found: Sequence[Sequence[Hypothesis]],
    *,
    begin: int,
    inference: Inference,
) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence with their alignments, by teacher forcing from the state before the words."""
    pairs = [(sentence, hypothesis) for sentence, hypotheses in enumerate(found) for hypothesis in hypotheses]
    aligned: list[list[Hypothesis]] = [[] for _ in found]
    if not pairs:
        return aligned
    device, longest = start.memory.device, max(len(hypothesis.tokens) for _, hypothesis in pairs)
    padded = [[begin, *h.tokens, *[begin] * (longest - len(h.tokens))] for _, h in pairs]
    tokens = torch.tensor(padded, device=device)
    state = start.select(torch.tensor([sentence for sentence, _ in pairs], device=device))
    rows = target_alignments(model, state, tokens[:, :-1], tokens[:, 1:], inference)
    sizes, first = start.mask.sum(1).tolist(), 0 if model.null_word is None else 1
    for (sentence, hypothesis), weights in zip(pairs, rows, strict=True):
        own = weights[: len(hypothesis.tokens), first : sizes[sentence]].clone()  # without the padding behind a view
        aligned[sentence].append(replace(hypothesis, alignments=own))
    return aligned


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context; after it every module is as it was."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_request(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    inference: Inference,
    *,
    ids: Mapping[str, int],
    counts: Mapping[str, int],
) -> None:
    """Raise ValueError unless the arguments of a search fit the model, and its counts are positive, all by name."""
    inference.check(model)
    model.check_source(source)
    if source_mask.dtype != torch.bool or source_mask.shape != source.shape[:2]:
        seen = f"shape {tuple(source_mask.shape)} and dtype {source_mask.dtype}"
        raise ValueError(f"source_mask has {seen}, expected torch.bool of the source's {tuple(source.shape[:2])}")
    if (source_mask[:, 1:] & ~source_mask[:, :-1]).any():
        raise ValueError("source_mask has words behind padding, expected the words of every row first")
    vocabulary = len(model.output.weight)
    for name, token in ids.items():
        if not isinstance(token, int) or not 0 <= token < vocabulary:
            raise ValueError(f"{name} is {token!r}, expected an id in 0 .. {vocabulary - 1}")
    for name, number in counts.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}, expected an integer of at least 1")
