"""Decoding of translation and captioning: beam search, the greedy path, and samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.hypotheses import Hypothesis, align, check_request, evaluation, largest, length_divisor, repeats
from models.next_word import check_inference, next_word_log_probs
from models.sampling import greedy, sample
from pyro_attention import Family
from pyro_attention.predictive import seeded

__all__ = ["Hypothesis", "beam_search", "greedy", "next_word_log_probs", "sample"]


@torch.no_grad()
def beam_search(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    *,
    begin: int,
    end: int,
    beam: int = 10,
    max_length: int = 100,
    length_penalty: float = 1.0,
    keep: int = 1,
    no_repeat: int | None = None,
    k_max: int | None = None,
    family: Family | None = None,
    samples: int = 0,
    alignments: bool = True,
    seed: int | None = None,
) -> list[list[Hypothesis]]:
    r"""The best sentences that a beam finds, by :math:`\log p(y \mid x) / ((5 + |y|) / 6)^\alpha`.

    ``|y|`` counts the end token, not the begin token. Hypotheses that end are finished if they are among the best
    ``beam`` continuations, by log probability, of all live ones; the best ``beam`` others go on. The search of a
    sentence stops when no live hypothesis can beat the worst of the ``keep`` best finished ones any more: log
    probabilities only fall, so one of log probability l never scores above ``l / ((5 + max_length) / 6) ** alpha``.
    That a finished hypothesis has the highest log probability is not enough, since a longer one may outscore it.
    Ties go to the shorter hypothesis, then to the better prefix, then to the lower id.

    The decoder is fed with the expected context, also of a model that was trained with ``input_feed="sampled"``.
    Padding of the source never changes a result, and the batch none beyond rounding (with ``samples``: only up to the
    noise drawn). The model is put in evaluation mode meanwhile.

    Args:
        model: The model.
        source: The source that the model takes: ids ``[B, N]``, or features ``[B, N, F]``.
        source_mask: True at what is no padding, which comes first, ``[B, N]``.
        begin: Id that stands before the first word.
        end: Id that ends a sentence.
        beam: Live hypotheses of a sentence.
        max_length: Largest number of words, the end token among them.
        length_penalty: alpha >= 0; 0 ranks by log probability.
        keep: Hypotheses to return, at most ``beam``.
        no_repeat: No so many tokens in a row come twice in a hypothesis; 3 is usual where networks repeat themselves.
        k_max: As in :func:`next_word_log_probs`, for the input feed too; ``family`` and ``samples`` as there.
        alignments: Also compute the alignments, by one more pass over the result.
        seed: Seed of the posterior draws; the global generator goes on as if nothing had happened.

    Returns:
        For each sentence up to ``keep`` hypotheses, best first. Only when fewer finish do the best ones that were cut
        at ``max_length`` follow, as ``finished=False``.

    Raises:
        TypeError: The family is no Family.
        ValueError: Wrong shapes, a sentence without words, ids or options out of range, NaN log probabilities, or
            options that do not fit the model.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source = torch.randint(10, (2, 5))
        >>> found = beam_search(model, source, source >= 0, begin=1, end=2, beam=3, keep=2, max_length=6)
        >>> [len(hypotheses) for hypotheses in found], found[0][0].score >= found[0][1].score
        ([2, 2], True)

    Source: Wu et al. (2016), Google's Neural Machine Translation System, section 7; Deng et al. (2018), Latent
    Alignment and Variational Attention, section 5; Paulus et al. (2018), A Deep Reinforced Model for Abstractive
    Summarization, section 2.5, for ``no_repeat``.
    """
    inference: dict[str, Any] = {"k_max": k_max, "family": family, "samples": samples}
    check_inference(model, **inference)
    check_request(model, source, source_mask, begin=begin, end=end, max_length=max_length, beam=beam, keep=keep)
    if not 0 <= length_penalty < math.inf:
        raise ValueError(f"length_penalty is {length_penalty}, expected a number of at least 0: the bound needs it")
    if no_repeat is not None and no_repeat < 1:
        raise ValueError(f"no_repeat is {no_repeat}, expected a number of tokens of at least 1, or None")
    longest = length_divisor(max_length, length_penalty)
    found: list[list[Hypothesis]] = [[] for _ in source]
    with evaluation(model), seeded(seed):
        active = torch.arange(len(source), device=source.device)
        start = model.start(model.encode(source, source_mask), source_mask)
        state = start.select(active.repeat_interleave(beam))
        # one live hypothesis of each sentence; the other places are empty, at a log probability of -inf
        log_probs = start.memory.new_full((len(source), beam), -math.inf)
        log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
        log_probs[:, 0] = 0
        tokens = torch.full((len(source), beam, 1), begin, device=source.device)
        for length in range(1, max_length + 1):
            state, queries, scores = model.step(state, model.embed(tokens[..., -1].flatten()), k_max=k_max)
            words = next_word_log_probs(model, state, queries, scores, **inference)
            words = words.view(len(active), beam, -1)
            if no_repeat is not None:
                words = words.masked_fill(repeats(tokens, no_repeat, words.size(-1)), -math.inf)
            total = (log_probs.unsqueeze(-1) + words).flatten(1)
            # at most `beam` of these end
            log_probs, index = largest(total, min(2 * beam, total.size(1)))
            origin, word = index // words.size(-1), index % words.size(-1)
            tokens = torch.cat([tokens.gather(1, origin.unsqueeze(-1).expand(-1, -1, length)), word.unsqueeze(-1)], -1)
            ends = word == end
            divisor = length_divisor(length, length_penalty)
            for row, rank in (ends[:, :beam] & log_probs[:, :beam].isfinite()).nonzero().tolist():
                finished = _hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=True)
                best = found[int(active[row])]
                # the sort is stable: of equal ones the first found
                best[:] = sorted([*best, finished], key=lambda hypothesis: -hypothesis.score)[:keep]
            live = ends.to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]
            log_probs = log_probs.masked_fill(ends, -math.inf).gather(1, live)
            tokens = tokens.gather(1, live.unsqueeze(-1).expand(-1, -1, length + 1))
            bounds = (log_probs[:, 0] / longest).tolist()
            undone = [
                row
                for row, (best, bound) in enumerate(zip([found[i] for i in active.tolist()], bounds, strict=True))
                if bound > (best[-1].score if len(best) == keep else -math.inf)
            ]
            if not undone or length == max_length:
                break
            rows = torch.tensor(undone, device=source.device)
            origin = (torch.arange(len(active), device=source.device)[:, None] * beam + origin.gather(1, live))[rows]
            # the source's part moves only when sentences leave
            state = state.reorder(origin.flatten()) if len(rows) == len(active) else state.select(origin.flatten())
            active, log_probs, tokens = active[rows], log_probs[rows], tokens[rows]
        for row, sentence in enumerate(active.tolist()):
            for rank in range(min(beam, keep - len(found[sentence]))):
                if log_probs[row, rank].isfinite():
                    found[sentence].append(
                        _hypothesis(tokens[row, rank], log_probs[row, rank], longest, finished=False)
                    )
        return align(model, start, found, begin=begin, **inference) if alignments else found


def _hypothesis(tokens: Tensor, log_prob: Tensor, divisor: float, *, finished: bool) -> Hypothesis:
    """Hypothesis of tokens that the begin token precedes."""
    value = log_prob.item()
    return Hypothesis(tuple(tokens[1:].tolist()), value, value / divisor, finished)
