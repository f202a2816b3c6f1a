"""The next word with its attention integrated out, the words of given sentences, and their alignments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from models.decoder import AttentionDecoder, DecoderState, Step
from pyro_attention import AlignmentPrior, Amortized, Dense, Soft
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.analysis.alignments.weights import k_max as keep_largest
from pyro_attention.families.base import Family
from pyro_attention.ops.token_log_prob import default_chunk_rows


@dataclass(frozen=True, kw_only=True)
class Inference:
    r"""How the attention is integrated out of :math:`p(y_j \mid x, y_{<j})`.

    ====================== ============================= ============================================
    prior of the attention family and samples            value
    ====================== ============================= ============================================
    ``AlignmentPrior``     any but ``Soft``              exact: log of the sum over z of p(z) f(y|z)
    ``AlignmentPrior``     ``Soft()``                    soft attention, log f(y|E[z])
    Gamma, LogNormal       any, ``samples=0``            posterior mean of log S: log f(y|softmax(scores))
    Gamma, LogNormal       Weibull..., ``samples=S``     log of the mean of f(y|w) over S posterior draws of w
    ====================== ============================= ============================================

    The first row takes an inference network's guide too: a network that sees the word is of no use before there is
    one, and the prior is the model's own distribution of the alignment.

    Attributes:
        k_max: Renormalize so many largest attention weights and drop the others; of each draw, where there are
            draws. Exact sums then take only so many terms. The input feed of the decoder follows.
        terms: Where alignments are summed out, sum over so many most probable ones of each word alone, renormalized:
            for a search, which looks at all words of the vocabulary for each alignment. The input feed, and the
            alignment of a word that was chosen, are those of all.
        draws: Where alignments are summed out, average over so many that are drawn from the prior in place of the sum,
            from torch's global generator; 0 sums.
        family: Posterior family of the attention, ``guide.family("alignment")`` of an ``AttentionGuide``.
        samples: Number of posterior draws, from torch's global generator.

    Raises:
        ValueError: ``k_max`` or ``terms`` below 1, or fewer than 0 draws or samples.

    Example:
        >>> from pyro_attention import Weibull
        >>> Inference(family=Weibull(), samples=20).samples
        20

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5; Fan et al. (2020), Bayesian
    Attention Modules, section 3.1, for averages over posterior draws.
    """

    k_max: int | None = None
    terms: int | None = None
    draws: int = 0
    family: Family | None = None
    samples: int = 0

    def __post_init__(self) -> None:
        least_of = {"k_max": 1, "terms": 1, "draws": 0, "samples": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, expected at least {least}")

    def check(self, model: AttentionDecoder) -> None:
        """Raise ValueError unless family and samples fit the model's prior."""
        prior, family = model.attention.prior, self.family
        if family is not None and family.kind not in (None, prior.kind):
            seen = f"family is {family}, of kind '{family.kind}'"
            raise ValueError(f"{seen}, which does not fit the model's prior {type(prior).__name__}")
        if self.samples and (family is None or isinstance(family, Amortized) or isinstance(prior, AlignmentPrior)):
            raise ValueError(
                f"samples is {self.samples}, family {family}, expected a family to draw from, such as Weibull(); the "
                f"sum over alignments is exact, and an inference network sees the words to come: both take samples=0"
            )

        if self.draws and not self.sums_out(model):
            raise ValueError(
                f"draws is {self.draws}, family {family}, expected alignments that are summed out: a model with an "
                f"AlignmentPrior, and no Soft(); draws of Bayesian attention are samples"
            )

    def sums_out(self, model: AttentionDecoder) -> bool:
        """Whether alignments are summed out; else weights make one context."""
        family = self.family.family if isinstance(self.family, Amortized) else self.family
        return isinstance(model.attention.prior, AlignmentPrior) and not isinstance(family, Soft)


DEFAULT = Inference()


@torch.no_grad()
def next_word_log_probs(
    model: AttentionDecoder, step: Step, inference: Inference = DEFAULT, *, chunk_rows: int | None = None
) -> Tensor:
    r"""Log probability of every next word, :math:`\log p(y \mid x, y_{<j})`, the alignment integrated out.

    Args:
        model: The model.
        step: From :meth:`AttentionDecoder.step`, which was given the same ``k_max``.
        inference: How the attention is integrated out.
        chunk_rows: Rows whose logits exist at a time, times alignments; about 8 MB of them (40 on a GPU) when omitted.

    Returns:
        ``[B, V]``, in at least float32.

    Raises:
        ValueError: The inference does not fit the model.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8)).eval()
        >>> real = torch.ones(2, 5, dtype=torch.bool)
        >>> state = model.start(model.encode(torch.randint(10, (2, 5)), real), real)
        >>> step = model.step(state, model.embed(torch.tensor([1, 1])))
        >>> next_word_log_probs(model, step).exp().sum(1)
        tensor([1.0000, 1.0000])
    """
    inference.check(model)
    contexts, log_weights = _mixture(model, step, inference)
    default = default_chunk_rows(len(model.output.weight), log_weights.dtype, device=contexts.device)
    rows = default if chunk_rows is None else chunk_rows
    chunks = [tensor.split(max(1, rows // contexts.size(1))) for tensor in (step.queries, contexts, log_weights)]
    log_probs = []
    for queries, some, weights in zip(*chunks, strict=True):
        log_f = model.likelihood(queries.unsqueeze(1), some).logits
        log_probs.append((log_f + weights.unsqueeze(-1)).logsumexp(1))
    return torch.cat(log_probs)


@torch.no_grad()
def next_word_mixture(model: AttentionDecoder, step: Step, inference: Inference = DEFAULT) -> tuple[Tensor, Tensor]:
    """What :func:`next_word_log_probs` is the mixture of; arguments as there.

    Returns:
        Log probabilities of the words, ``[B, C, V]``, and of the attentions, ``[B, C]``: of each alignment, of each
        posterior draw, or of the only one.
    """
    inference.check(model)
    contexts, log_weights = _mixture(model, step, inference)
    return model.likelihood(step.queries.unsqueeze(1), contexts).logits, log_weights


@torch.no_grad()
def target_log_probs(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    target_in: Tensor,
    target_out: Tensor,
    target_mask: Tensor,
    *,
    inference: Inference = DEFAULT,
) -> Tensor:
    r"""Log probability of every word of given sentences, :math:`\log p(y_j \mid x, y_{<j})`.

    Args:
        model: The model; the next five are the arguments of its call.
        source: The source that the model takes.
        source_mask: True at what is no padding, ``[B, N]``.
        target_in: Ids ``[B, M]`` of the words before.
        target_out: Ids ``[B, M]`` of the words.
        target_mask: True at target words, ``[B, M]``.
        inference: How the attention is integrated out.

    Returns:
        ``[B, M]``; zeros at the padding.
    """
    inference.check(model)
    state, log_probs = model.start(model.encode(source, source_mask), source_mask), []
    steps = model.steps(state, target_in, k_max=inference.k_max)
    for step, wanted in zip(steps, target_out.unbind(1), strict=True):
        contexts, log_weights = _mixture(model, step, inference)
        log_f = model.likelihood(step.queries.unsqueeze(1), contexts).log_prob(wanted.unsqueeze(1))
        log_probs.append((log_f + log_weights).logsumexp(1))
    return torch.stack(log_probs, 1).where(target_mask, 0)


@torch.no_grad()
def word_alignment(model: AttentionDecoder, step: Step, words: Tensor, inference: Inference = DEFAULT) -> Tensor:
    r"""Alignment of the words that were chosen: :math:`p(z \mid x, y_{\le j}) \propto p(z)\, f(y_j \mid z)`.

    Where attention weights are no alignments (soft attention and Bayesian attention), these weights, averaged over the
    draws.

    Args:
        model: As :func:`next_word_log_probs`; ``step`` and ``inference`` are too.
        step: The step that the words were drawn from.
        words: Ids ``[B]`` of the words that came next.
        inference: How the attention is integrated out.

    Returns:
        ``[B, N]``; zeros at the padding.
    """
    if not inference.sums_out(model):
        return _draw_weights(model, step, inference).mean(1)
    log_f = model.likelihood(step.queries.unsqueeze(1), step.state.memory).log_prob(words.unsqueeze(1))
    return (_log_prior(model, step, inference.k_max) + log_f).softmax(-1)


@torch.no_grad()
def target_alignments(
    model: AttentionDecoder, state: DecoderState, target_in: Tensor, target_out: Tensor, inference: Inference = DEFAULT
) -> Tensor:
    """:func:`word_alignment` of every word of given sentences, ``[B, M, N]``, by teacher forcing.

    Args:
        model: The model.
        state: Its state before the first word.
        target_in: Ids ``[B, M]`` of the words before.
        target_out: Ids ``[B, M]`` of the words.
        inference: How the attention is integrated out.
    """
    steps = model.steps(state, target_in, k_max=inference.k_max)
    pairs = zip(steps, target_out.unbind(1), strict=True)
    return torch.stack([word_alignment(model, step, words, inference) for step, words in pairs], 1)


def _mixture(model: AttentionDecoder, step: Step, inference: Inference) -> tuple[Tensor, Tensor]:
    """Contexts ``[B, C, memory]`` and their log weights ``[B, C]``: the next word's distribution is their mixture."""
    contexts, k_max = step.state.memory, inference.k_max
    if not inference.sums_out(model):
        weights = _draw_weights(model, step, inference)
        return weights.to(contexts.dtype) @ contexts, weights.new_full(weights.shape[:2], -math.log(weights.size(1)))
    log_weights = _log_prior(model, step, k_max)
    if inference.draws:
        drawn = log_weights.exp().multinomial(inference.draws, replacement=True)
        even = log_weights.new_full(drawn.shape, -math.log(inference.draws))
        return contexts.gather(1, drawn.unsqueeze(-1).expand(-1, -1, contexts.size(-1))), even
    count = _most_terms(model, log_weights, inference)
    if count is None or count >= contexts.size(1):
        return contexts, log_weights
    log_weights, kept = log_weights.topk(count, dim=-1)  # no need to look at words of weight zero
    if inference.terms == count:
        log_weights = log_weights.log_softmax(-1)
    return contexts.gather(1, kept.unsqueeze(-1).expand(-1, -1, contexts.size(-1))), log_weights


def _log_prior(model: AttentionDecoder, step: Step, k_max: int | None) -> Tensor:
    """Log probabilities of what is attended to, ``[B, N]``; -inf at the padding, and where they are zero."""
    prior, log_prior = model.attention.prior, step.log_prior
    if isinstance(prior, SparseAlignmentPrior):
        log_prior = prior.soft_weights(_as_float(step.scores), Dense(step.state.mask)).log()
    if k_max is None:
        return log_prior
    dropped = keep_largest(log_prior.exp(), k_max) == 0
    return log_prior.masked_fill(dropped, -math.inf).log_softmax(-1)


def _most_terms(model: AttentionDecoder, log_prior: Tensor, inference: Inference) -> int | None:
    """How many keys of a word are summed over, at most; None where all may be."""
    limits = [limit for limit in (inference.k_max, inference.terms) if limit is not None]
    if isinstance(model.attention.prior, SparseAlignmentPrior):
        limits.append(int(log_prior.isfinite().sum(-1).max()))  # those of a positive probability
    return min(limits, default=None)


def _draw_weights(model: AttentionDecoder, step: Step, inference: Inference) -> Tensor:
    """Attention weights ``[B, S, N]``: posterior draws, or their mean as one."""
    if inference.samples == 0 or inference.family is None:
        return _log_prior(model, step, inference.k_max).exp().unsqueeze(1)
    # one head, and a plate of sentences
    keys, layout = step.state.memory.unsqueeze(1), Dense(step.state.mask.unsqueeze(1), event_dim=2)
    call = model.attention.call(_as_float(step.scores).unsqueeze(1), layout=layout, keys=keys)
    prior = model.attention.prior(call)
    draws = inference.family.posterior(call, prior).sample((inference.samples,))
    weights = prior.weights(draws, call.normalizer).squeeze(-2).transpose(0, 1)
    return weights if inference.k_max is None else keep_largest(weights, inference.k_max)


def _as_float(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
