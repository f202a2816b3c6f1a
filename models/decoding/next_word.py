"""Distribution of the next word without the attention, and log probabilities and alignments of sentences."""

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
    r"""Options that say how the attention is integrated out of :math:`p(y_j \mid x, y_{<j})`.

    ====================== ============================= ============================================
    prior of the attention family and samples            value
    ====================== ============================= ============================================
    ``AlignmentPrior``     any but ``Soft``              exact: log of the sum over z of p(z) f(y|z)
    ``AlignmentPrior``     ``Soft()``                    soft attention, log f(y|E[z])
    Gamma, LogNormal       any, ``samples=0``            posterior mean of log S: log f(y|softmax(scores))
    Gamma, LogNormal       Weibull..., ``samples=S``     log of the mean of f(y|w) over S posterior draws of w
    ====================== ============================= ============================================

    The first row also applies to guides with an inference network. The network would need the word that is predicted,
    so the alignment has the distribution of the prior.

    Attributes:
        k_max: Number of largest attention weights that are used, renormalized; all for None. This holds for each draw,
            for exact sums, and for the input feed of the decoder.
        terms: Number of most probable alignments of each word that an exact sum uses, renormalized; all for None. It
            makes a search faster, which computes all words of the vocabulary for each alignment. The input feed and the
            alignment of a chosen word use all alignments.
        draws: Number of alignments that are drawn from the prior and averaged over instead of an exact sum, from
            torch's global generator; 0 sums exactly.
        family: Posterior family of the attention, ``guide.family("alignment")`` of an ``AttentionGuide``.
        samples: Number of posterior draws of the weights, from torch's global generator.

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
            raise ValueError(
                f"family is {family}, of kind '{family.kind}', which does not fit the model's prior "
                f"{type(prior).__name__}"
            )
        if self.samples and (family is None or isinstance(family, Amortized) or isinstance(prior, AlignmentPrior)):
            raise ValueError(
                f"samples is {self.samples}, family {family}, expected a family to draw from, such as Weibull(); the "
                f"sum over alignments is exact, and an inference network needs the next words: both take samples=0"
            )

        if self.draws and not self.sums_out(model):
            raise ValueError(
                f"draws is {self.draws}, family {family}, expected alignments that are summed out: a model with an "
                f"AlignmentPrior, and no Soft(); draws of Bayesian attention are samples"
            )

    def sums_out(self, model: AttentionDecoder) -> bool:
        """Return whether alignments are summed out; otherwise the weights give one context."""
        family = self.family.family if isinstance(self.family, Amortized) else self.family
        return isinstance(model.attention.prior, AlignmentPrior) and not isinstance(family, Soft)


DEFAULT = Inference()


@torch.no_grad()
def next_word_log_probs(
    model: AttentionDecoder, step: Step, inference: Inference = DEFAULT, *, chunk_rows: int | None = None
) -> Tensor:
    r"""Compute the log probability of every next word, :math:`\log p(y \mid x, y_{<j})`, without the alignment.

    Args:
        model: The model.
        step: From :meth:`AttentionDecoder.step`, which was given the same ``k_max``.
        inference: How the attention is integrated out.
        chunk_rows: Number of rows, times alignments, whose logits are computed at a time; as many as take about 8 MB
            (40 MB on a GPU) when omitted.

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
    for queries, chunk_contexts, weights in zip(*chunks, strict=True):
        log_f = model.likelihood(queries.unsqueeze(1), chunk_contexts).logits
        log_probs.append((log_f + weights.unsqueeze(-1)).logsumexp(1))
    return torch.cat(log_probs)


@torch.no_grad()
def next_word_mixture(model: AttentionDecoder, step: Step, inference: Inference = DEFAULT) -> tuple[Tensor, Tensor]:
    """Return the components of the mixture of :func:`next_word_log_probs`, which has the same arguments.

    Returns:
        Log probabilities of the words given each component, ``[B, C, V]``, and of the components, ``[B, C]``.
        Components are alignments, posterior draws, or a single context.
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
    r"""Compute the log probability of every word of given sentences, :math:`\log p(y_j \mid x, y_{<j})`.

    Args:
        model: The model; the next five arguments are those of its call.
        source: The source, ids ``[B, N]`` or features ``[B, N, F]``.
        source_mask: False at the padding of the source, ``[B, N]``.
        target_in: Ids ``[B, M]`` of the previous words.
        target_out: Ids ``[B, M]`` of the words.
        target_mask: False at the padding of the target, ``[B, M]``.
        inference: How the attention is integrated out.

    Returns:
        ``[B, M]``; zeros at the padding.
    """
    inference.check(model)
    state, log_probs = model.start(model.encode(source, source_mask), source_mask), []
    steps = model.steps(state, target_in, k_max=inference.k_max)
    for step, words in zip(steps, target_out.unbind(1), strict=True):
        contexts, log_weights = _mixture(model, step, inference)
        log_f = model.likelihood(step.queries.unsqueeze(1), contexts).log_prob(words.unsqueeze(1))
        log_probs.append((log_f + log_weights).logsumexp(1))
    return torch.stack(log_probs, 1).where(target_mask, 0)


@torch.no_grad()
def word_alignment(model: AttentionDecoder, step: Step, words: Tensor, inference: Inference = DEFAULT) -> Tensor:
    r"""Compute the alignment of chosen words, :math:`p(z \mid x, y_{\le j}) \propto p(z)\, f(y_j \mid z)`.

    For soft attention and Bayesian attention this returns the attention weights, averaged over the draws.

    Args:
        model: The model.
        step: The step that predicts the words.
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
    """Compute :func:`word_alignment` of every word of given sentences, ``[B, M, N]``, by teacher forcing.

    Args:
        model: The model.
        state: State before the first word.
        target_in: Ids ``[B, M]`` of the previous words.
        target_out: Ids ``[B, M]`` of the words.
        inference: How the attention is integrated out.
    """
    steps = model.steps(state, target_in, k_max=inference.k_max)
    pairs = zip(steps, target_out.unbind(1), strict=True)
    return torch.stack([word_alignment(model, step, words, inference) for step, words in pairs], 1)


def _mixture(model: AttentionDecoder, step: Step, inference: Inference) -> tuple[Tensor, Tensor]:
    """Return contexts ``[B, C, memory]`` and their log weights ``[B, C]``, whose mixture predicts the next word."""
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
    log_weights, keys = log_weights.topk(count, dim=-1)  # keys of weight zero need no computation
    if inference.terms == count:
        log_weights = log_weights.log_softmax(-1)
    return contexts.gather(1, keys.unsqueeze(-1).expand(-1, -1, contexts.size(-1))), log_weights


def _log_prior(model: AttentionDecoder, step: Step, k_max: int | None) -> Tensor:
    """Return the log probabilities ``[B, N]`` of the keys, -inf at the padding and at probability zero."""
    prior, log_prior = model.attention.prior, step.log_prior
    if isinstance(prior, SparseAlignmentPrior):
        log_prior = prior.soft_weights(_as_float(step.scores), Dense(step.state.mask)).log()
    if k_max is None:
        return log_prior
    dropped = keep_largest(log_prior.exp(), k_max) == 0
    return log_prior.masked_fill(dropped, -math.inf).log_softmax(-1)


def _most_terms(model: AttentionDecoder, log_prior: Tensor, inference: Inference) -> int | None:
    """Return the largest number of keys of a word that are summed over; None for all keys."""
    limits = [limit for limit in (inference.k_max, inference.terms) if limit is not None]
    if isinstance(model.attention.prior, SparseAlignmentPrior):
        limits.append(int(log_prior.isfinite().sum(-1).max()))  # keys of a positive probability
    return min(limits, default=None)


def _draw_weights(model: AttentionDecoder, step: Step, inference: Inference) -> Tensor:
    """Return attention weights ``[B, S, N]``, posterior draws or with S = 1 their mean."""
    if inference.samples == 0 or inference.family is None:
        return _log_prior(model, step, inference.k_max).exp().unsqueeze(1)
    # one head, and a plate of sentences
    keys, layout = step.state.memory.unsqueeze(1), Dense(step.state.mask.unsqueeze(1), event_dim=2)
    call = model.attention.make_call(_as_float(step.scores).unsqueeze(1), layout=layout, keys=keys)
    prior = model.attention.prior(call)
    draws = inference.family.posterior(call, prior).sample((inference.samples,))
    weights = prior.weights(draws, call.normalizer).squeeze(-2).transpose(0, 1)
    return weights if inference.k_max is None else keep_largest(weights, inference.k_max)


def _as_float(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
