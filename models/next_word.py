"""Distribution of the next word, with the alignment integrated out, and the alignment of a word that was chosen."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.decoder_state import DecoderState
from pyro_attention import AlignmentPrior, Amortised, Dense, ExpectedAlignment, Family
from pyro_attention.analysis.alignment_uncertainty import k_max as keep_largest
from pyro_attention.ops.token_log_prob import default_chunk_rows

__all__ = ["check_inference", "next_word_log_probs", "next_word_mixture", "target_log_probs", "word_alignment"]


@torch.no_grad()
def next_word_log_probs(
    model: AttentionDecoder,
    state: DecoderState,
    queries: Tensor,
    scores: Tensor,
    *,
    k_max: int | None = None,
    family: Family | None = None,
    samples: int = 0,
    chunk_rows: int | None = None,
) -> Tensor:
    r"""Log probability of every next word, :math:`\log p(y \mid x, y_{<j})`, the alignment integrated out.

    ====================== ============================= ============================================
    prior of the attention family and samples            value
    ====================== ============================= ============================================
    ``AlignmentPrior``     any but ``ExpectedAlignment`` exact: log of the sum over z of p(z) f(y|z)
    ``AlignmentPrior``     ``ExpectedAlignment()``       soft attention, log f(y|E[z])
    Gamma, LogNormal       any, ``samples=0``            posterior mean of log S: log f(y|softmax(scores))
    Gamma, LogNormal       Weibull..., ``samples=S``     log of the mean of f(y|w) over S posterior draws of w
    ====================== ============================= ============================================

    The first row takes an inference network's guide too: a network that sees the word is of no use before there is
    one, and the prior is the model's own distribution of the alignment.

    Args:
        model: The model.
        state: From :meth:`AttentionDecoder.step`, as are the next two.
        queries: ``[B, width]``.
        scores: ``[B, N]``.
        k_max: Renormalise so many largest attention weights and drop the others; of each draw, where there are
            draws. Exact sums then take only so many terms. Give :meth:`AttentionDecoder.step` the same.
        family: Posterior family of the attention, ``guide.family("alignment")`` of an ``AttentionGuide``.
        samples: Number of posterior draws, from torch's global generator.
        chunk_rows: Rows whose logits exist at a time, times alignments; about 40 MB of them when omitted.

    Returns:
        ``[B, V]``, in at least float32.

    Raises:
        TypeError: The family is no Family.
        ValueError: Options that do not fit the model, see :func:`check_inference`.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8)).eval()
        >>> real = torch.ones(2, 5, dtype=torch.bool)
        >>> state = model.start(model.encode(torch.randint(10, (2, 5)), real), real)
        >>> state, queries, scores = model.step(state, model.embed(torch.tensor([1, 1])))
        >>> next_word_log_probs(model, state, queries, scores).exp().sum(1)
        tensor([1.0000, 1.0000])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5; Fan et al. (2020), Bayesian
    Attention Modules, section 3.1, for averages over posterior draws.
    """
    check_inference(model, k_max=k_max, family=family, samples=samples)
    contexts, log_weights = _mixture(model, state, scores, k_max=k_max, family=family, samples=samples)
    rows = default_chunk_rows(len(model.output.weight), log_weights.dtype) if chunk_rows is None else chunk_rows
    chunks = [tensor.split(max(1, rows // contexts.size(1))) for tensor in (queries, contexts, log_weights)]
    return torch.cat([_log_mixture(model, *chunk) for chunk in zip(*chunks, strict=True)])


@torch.no_grad()
def next_word_mixture(
    model: AttentionDecoder,
    state: DecoderState,
    queries: Tensor,
    scores: Tensor,
    *,
    family: Family | None = None,
    samples: int = 0,
) -> tuple[Tensor, Tensor]:
    r"""What :func:`next_word_log_probs` is the mixture of: one distribution of the next word for each attention.

    Args:
        model: As there; ``state``, ``queries``, ``scores`` and the options are too.

    Returns:
        Log probabilities of the words ``[B, C, V]``, and log weights ``[B, C]`` of the attentions: of each alignment,
        of each posterior draw, or of the only one.
    """
    check_inference(model, k_max=None, family=family, samples=samples)
    contexts, log_weights = _mixture(model, state, scores, k_max=None, family=family, samples=samples)
    return model.likelihood(queries.unsqueeze(1), contexts).logits, log_weights


@torch.no_grad()
def target_log_probs(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    target_in: Tensor,
    target_out: Tensor,
    target_mask: Tensor,
    *,
    k_max: int | None = None,
    family: Family | None = None,
    samples: int = 0,
) -> Tensor:
    r"""Log probability of every word of given sentences, :math:`\log p(y_j \mid x, y_{<j})`.

    Args:
        model: The model; the next five are the arguments of its call.
        source: The source that the model takes.
        source_mask: True at what is no padding, ``[B, N]``.
        target_in: Ids ``[B, M]`` of the words before.
        target_out: Ids ``[B, M]`` of the words.
        target_mask: True at target words, ``[B, M]``.
        k_max: As in :func:`next_word_log_probs`; ``family`` and ``samples`` too.

    Returns:
        ``[B, M]``; zeros at the padding.
    """
    check_inference(model, k_max=k_max, family=family, samples=samples)
    state, log_probs = model.start(model.encode(source, source_mask), source_mask), []
    for word, wanted in zip(model.embed(target_in).unbind(1), target_out.unbind(1), strict=True):
        state, queries, scores = model.step(state, word, k_max=k_max)
        contexts, log_weights = _mixture(model, state, scores, k_max=k_max, family=family, samples=samples)
        log_f = model.likelihood(queries.unsqueeze(1), contexts).log_prob(wanted.unsqueeze(1))
        log_probs.append((log_f + log_weights).logsumexp(1))
    return torch.stack(log_probs, 1).where(target_mask, 0)


@torch.no_grad()
def word_alignment(
    model: AttentionDecoder,
    state: DecoderState,
    queries: Tensor,
    scores: Tensor,
    words: Tensor,
    *,
    k_max: int | None = None,
    family: Family | None = None,
    samples: int = 0,
) -> Tensor:
    r"""Alignment of the words that were chosen: :math:`p(z \mid x, y_{\le j}) \propto p(z)\, f(y_j \mid z)`.

    Where attention weights are no alignments (soft attention and Bayesian attention), these weights, averaged over the
    draws.

    Args:
        model: As :func:`next_word_log_probs`; ``state``, ``queries``, ``scores`` and the options are too.
        words: Ids ``[B]`` of the words that came next.

    Returns:
        ``[B, N]``; zeros at the padding.
    """
    if not _marginal(model, family):
        return _draw_weights(model, state, scores, k_max=k_max, family=family, samples=samples).mean(1)
    log_f = model.likelihood(queries.unsqueeze(1), state.memory).log_prob(words.unsqueeze(1))
    return (_log_prior(scores, state.mask, k_max) + log_f).softmax(-1)


def check_inference(model: AttentionDecoder, *, k_max: int | None, family: Family | None, samples: int) -> None:
    """Raise unless these options of :func:`next_word_log_probs` fit each other and the model's prior.

    Raises:
        TypeError: The family is no Family.
        ValueError: ``k_max`` below 1, fewer than 0 samples, a family that does not fit the prior; samples of an
            alignment, without a family, or from an inference network, which would need the words to come.
    """
    if k_max is not None and (not isinstance(k_max, int) or k_max < 1):
        raise ValueError(f"k_max is {k_max!r}, expected an integer of at least 1, or None for all weights")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples is {samples!r}, expected an integer of at least 0")
    if family is not None and not isinstance(family, Family):
        raise TypeError(f"family is {family!r}, expected a Family such as Weibull(concentration=10.0)")
    aligned = isinstance(model.attention.prior, AlignmentPrior)
    if family is not None and aligned != (family.kind == ExpectedAlignment.kind):
        prior = type(model.attention.prior).__name__
        raise ValueError(f"family is {family}, of kind '{family.kind}', which does not fit the model's prior {prior}")
    if samples == 0:
        return
    if aligned:
        raise ValueError(f"samples is {samples}, expected 0: the sum over alignments is exact")
    if family is None or isinstance(family, Amortised):
        raise ValueError(
            f"samples is {samples} and family is {family}, expected a family to draw from without the words to come, "
            f"such as Weibull(); an inference network sees those words, and serves with samples=0"
        )


def _marginal(model: AttentionDecoder, family: Family | None) -> bool:
    """Whether alignments are summed out; else weights make one context."""
    family = family.family if isinstance(family, Amortised) else family
    return isinstance(model.attention.prior, AlignmentPrior) and not isinstance(family, ExpectedAlignment)


def _mixture(
    model: AttentionDecoder,
    state: DecoderState,
    scores: Tensor,
    *,
    k_max: int | None,
    family: Family | None,
    samples: int,
) -> tuple[Tensor, Tensor]:
    """Contexts ``[B, C, memory]`` and their log weights ``[B, C]``: the next word's distribution is their mixture."""
    if not _marginal(model, family):
        weights = _draw_weights(model, state, scores, k_max=k_max, family=family, samples=samples)
        contexts = weights.to(state.memory.dtype) @ state.memory
        return contexts, weights.new_full(weights.shape[:2], -math.log(weights.size(1)))
    log_weights, contexts = _log_prior(scores, state.mask, k_max), state.memory
    if k_max is None or k_max >= contexts.size(1):
        return contexts, log_weights
    log_weights, kept = log_weights.topk(k_max, dim=-1)  # no need to look at words of weight zero
    return contexts.gather(1, kept.unsqueeze(-1).expand(-1, -1, contexts.size(-1))), log_weights


def _log_prior(scores: Tensor, mask: Tensor, k_max: int | None) -> Tensor:
    """Log probabilities of what is attended to, ``[B, N]``; -inf at the padding."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    log_prior = scores.masked_fill(~mask, -math.inf).log_softmax(-1)
    if k_max is None:
        return log_prior
    dropped = keep_largest(log_prior.exp(), k_max) == 0
    return log_prior.masked_fill(dropped, -math.inf).log_softmax(-1)


def _draw_weights(
    model: AttentionDecoder,
    state: DecoderState,
    scores: Tensor,
    *,
    k_max: int | None,
    family: Family | None,
    samples: int,
) -> Tensor:
    """Attention weights ``[B, S, N]``: posterior draws, or their mean as one."""
    if samples == 0:
        return _log_prior(scores, state.mask, k_max).exp().unsqueeze(1)
    assert family is not None  # check_inference
    # one head, and a plate of sentences
    keys, layout = state.memory.unsqueeze(1), Dense(state.mask.unsqueeze(1), event_dim=2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).unsqueeze(1)
    prior = model.attention._prior(scores, keys, layout)
    weights = prior.weights(family.posterior(prior).sample((samples,))).squeeze(-2).transpose(0, 1)
    return weights if k_max is None else keep_largest(weights, k_max)


def _log_mixture(model: AttentionDecoder, queries: Tensor, contexts: Tensor, log_weights: Tensor) -> Tensor:
    """Log of the mixture ``[B, V]`` of the word distributions of contexts ``[B, C, memory]``."""
    log_f = model.likelihood(queries.unsqueeze(1), contexts).logits
    return (log_f + log_weights.unsqueeze(-1)).logsumexp(1)
