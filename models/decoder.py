"""Decoder of translation and captioning, which writes words one after another with a latent attention for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyro
import torch
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from models.temporal import TemporalNormalizer
from pyro_attention import Dense, LatentAttention, TokenLikelihood
from pyro_attention.analysis.alignments.weights import k_max as keep_largest
from pyro_attention.attention import pyro_runs_the_model
from pyro_attention.layers.scores import Additive, Bilinear

InputFeed = Literal["expected", "sampled"]  # context that the decoder is fed with


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder and its encoder.

    Attributes:
        embedding: Width of a word vector.
        memory: Width of an encoded source word (both directions together) or an embedded region.
        decoder: Width of the decoder's state.
        attention: Width of the attention's hidden layer.
    """

    embedding: int = 128
    memory: int = 128
    decoder: int = 128
    attention: int = 128


@dataclass(frozen=True)
class DecoderState:
    """State of the decoder, which the next word depends on, with a row for each sequence of words.

    Its tensors are never changed in place.

    Attributes:
        memory: Encoded source, ``[B, N, memory]``.
        keys: Keys of the attention, computed once for all words, ``[B, N, attention]``.
        mask: False at the padding of the source, ``[B, N]``.
        cells: Hidden and cell state ``[B, decoder]`` of each layer.
        context: Context of the last word, ``[B, memory]``.
        past: Log-sum-exp of the scores of the previous words for a :class:`TemporalNormalizer`, ``[B, N]``; None
            without one.
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    cells: tuple[tuple[Tensor, Tensor], ...]
    context: Tensor
    past: Tensor | None = None

    def reorder(self, rows: Tensor) -> DecoderState:
        """Return the state whose row i is row ``rows[i]``, which must belong to the same source."""
        cells = tuple((hidden[rows], cell[rows]) for hidden, cell in self.cells)
        past = None if self.past is None else self.past[rows]
        return replace(self, cells=cells, context=self.context[rows], past=past)

    def select(self, rows: Tensor) -> DecoderState:
        """Return the given rows with their source; a row may be left out or repeated."""
        ordered = self.reorder(rows)
        return replace(ordered, memory=self.memory[rows], keys=self.keys[rows], mask=self.mask[rows])


@dataclass(frozen=True)
class Step:
    """Step of a decoder before its attention: the input of the next word's distribution, except for the context.

    Attributes:
        state: State after the step.
        queries: Input of the next word's distribution besides the context, ``[B, width]``.
        scores: Attention scores, with arbitrary values at the padding, ``[B, N]``.
    """

    state: DecoderState
    queries: Tensor
    scores: Tensor

    @property
    def log_prior(self) -> Tensor:
        """Log probabilities ``[B, N]`` of a dense prior, in at least float32, with -inf at the padding."""
        scores = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32))
        return scores.masked_fill(~self.state.mask, -math.inf).log_softmax(-1)


class AttentionDecoder(nn.Module):
    r"""Base class of decoders, which draw each word given the previous words and a latent attention to the source.

    .. math:: p(y, S \mid x) = \prod_j p(S_j \mid x, y_{<j})\, p(y_j \mid S_j, x, y_{<j})

    S are the alignments z or positive weights. A subclass defines how the source is encoded, how the recurrent state
    advances, and how a word depends on a context: :meth:`encode`, :meth:`embed`, :meth:`advance`, :meth:`feed` and
    :meth:`likelihood`. This class adds plates, sites, teacher forcing and the steps of decoding.

    With an expected input feed the state advances with the expected context, so the alignments are independent given
    the previous words. They are one site, ``alignment``, in the plates ``sentences`` and ``words``. The words are the
    site ``target``.

    With a sampled input feed the state advances with the context of the drawn weights, so that each alignment depends
    on the previous ones. The alignments are then separate sites ``alignment_0``, ``alignment_1``, ... in the plate
    ``sentences``. This works for Gamma and LogNormal priors under :class:`AttentionELBO`, and for
    ``Categorical(enumerate=False)`` under :class:`ScoreFunctionELBO`, where the reward of an alignment is the log
    likelihood of the whole sentence. Decoding always uses the expected context. Vectorized particles and the samples of
    a chunk have separate states ``[S, B, ...]``.

    A subclass also takes the ``prior`` of the attention: an alignment prior by default, or a Gamma or LogNormal prior
    for Bayesian attention. With an ``init_range`` all initial weights are uniform(-init_range, init_range). Small
    networks learn to align much faster with PyTorch's default initialization.

    Args:
        input_feed: Context that the state advances with, "expected" or "sampled".
        normalizer: Normalizer of the scores over the previous words and the source; by default they are normalized over
            the source alone.

    Attributes:
        attention: Latent attention with the site ``alignment``; the subclass sets it.
        score: Scores of the attention; the subclass sets them.
        output: Output layer with a row for each word; the subclass sets it.
        layers: Number of recurrent layers.

    Raises:
        ValueError: At a call with a sampled input feed: alignments are enumerated or have an inference network, which
            needs a single site for all alignments.
    """

    attention: LatentAttention
    score: Additive | Bilinear
    output: nn.Linear
    layers = 1

    def __init__(self, input_feed: InputFeed = "expected", normalizer: TemporalNormalizer | None = None) -> None:
        super().__init__()
        self.input_feed: InputFeed = input_feed
        self.normalizer = normalizer

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Return the encoded source, ``[B, N, memory]``."""
        raise NotImplementedError

    def embed(self, words: Tensor) -> Tensor:
        """Return the vectors ``[..., embedding]`` of words."""
        raise NotImplementedError

    def start(self, memory: Tensor, source_mask: Tensor) -> DecoderState:
        """Return the state before the first word, for the output of :meth:`encode`."""
        zeros = memory.new_zeros(len(memory), self.output.in_features)
        cells = ((zeros, zeros),) * self.layers
        keys = self.score.key(memory) if isinstance(self.score, Additive) else memory
        return DecoderState(memory, keys, source_mask, cells, torch.zeros_like(memory[:, 0]))

    def init_uniform(self, init_range: float | None) -> None:
        """Draw all weights but the normalizer's from uniform(-init_range, init_range); None leaves them unchanged."""
        for name, parameter in self.named_parameters():
            if init_range is not None and not name.startswith("normalizer."):
                nn.init.uniform_(parameter, -init_range, init_range)

    def scores(self, state: DecoderState, queries: Tensor) -> Tensor:
        """Return the attention scores ``[..., N]`` of queries ``[..., width]`` for the keys of a state."""
        if isinstance(self.score, Bilinear):
            return (state.keys @ self.score.projection(queries).unsqueeze(-1)).squeeze(-1)
        return self.score.out((self.score.query(queries).unsqueeze(-2) + state.keys).tanh()).squeeze(-1)

    def advance(self, state: DecoderState, word: Tensor) -> Step:
        """Return the step after a word up to the attention; :meth:`feed` completes its state by a context.

        States of S samples, ``[S, B, ...]``, give a step of S samples.

        Args:
            state: State after the previous words.
            word: Vectors ``[B, embedding]`` of the last word, from :meth:`embed`.
        """
        raise NotImplementedError

    def feed(self, state: DecoderState, queries: Tensor, context: Tensor) -> DecoderState:
        """Return the state of :meth:`advance` after a context ``[B, memory]``; another call replaces this context."""
        raise NotImplementedError

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Return the distribution of the next word for queries ``[..., width]`` and contexts ``[..., memory]``."""
        raise NotImplementedError

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> TokenLikelihood:
        """Sample or observe the target words, and return the distribution of each given the previous ones.

        Args:
            source: The source, ids ``[B, N]`` or features ``[B, N, F]``.
            source_mask: False at the padding of the source, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the previous words, beginning with the begin token.
            target_out: Ids ``[B, M]`` of the words; drawn when omitted.
            target_mask: False at the padding of the target, ``[B, M]``; no padding when omitted.

        Returns:
            Distribution of words with batch shape ``[..., B, M]``.
        """
        pyro.module(type(self).__name__.lower(), self)
        if target_mask is None:
            target_mask = torch.ones_like(target_in, dtype=torch.bool)
        state = self.start(self.encode(source, source_mask), source_mask)
        sentences, words = (
            pyro.plate("sentences", source.size(0), dim=-2),
            pyro.plate("words", target_in.size(1), dim=-1),
        )
        if self.input_feed == "sampled":
            with sentences:
                queries, context = self._decode_sampled(state, target_in, target_mask)
        else:
            steps = list(self.steps(state, target_in))
            queries = torch.stack([step.queries for step in steps], 1)
            with sentences, words, _masked(target_mask):
                context = self._attend(torch.stack([step.scores for step in steps], 1), state)
        with sentences, words, _masked(target_mask):
            likelihood = self.likelihood(queries, context)
            # padding is left out, since the output layer is most of the work
            pyro.sample("target", likelihood.where(target_mask), obs=target_out)
        return likelihood

    def step(self, state: DecoderState, word: Tensor, *, k_max: int | None = None) -> Step:
        """Take one step of the decoder, fed with the expected context.

        Teacher forcing and decoding both use this method.

        Args:
            state: State after the previous words.
            word: Vectors ``[B, embedding]`` of the last word, from :meth:`embed`.
            k_max: Number of largest attention weights whose context the state advances with; all when omitted.
        """
        step = self.advance(state, word)
        if self.normalizer is not None:
            scores, past = self.normalizer(step.scores, step.state.past, step.state.mask)
            step = replace(step, scores=scores, state=replace(step.state, past=past))
        weights = self.attention.prior.soft_weights(step.scores.unsqueeze(-2), Dense(step.state.mask[:, None]))
        if k_max is not None:
            weights = keep_largest(weights, k_max).to(step.state.memory.dtype)
        context = (weights @ step.state.memory).squeeze(-2)
        return replace(step, state=self.feed(step.state, step.queries, context))

    def steps(self, state: DecoderState, words: Tensor, *, k_max: int | None = None) -> Iterator[Step]:
        """Yield one :meth:`step` for each of given words, for teacher forcing.

        Args:
            state: State before the words.
            words: Ids ``[B, M]``.
            k_max: As in :meth:`step`.
        """
        for word in self.embed(words).unbind(1):  # embedding all words at once is fast, and fixes the order of dropout
            step = self.step(state, word, k_max=k_max)
            state = step.state
            yield step

    def read(self, state: DecoderState, words: Tensor, *, k_max: int | None = None) -> Step:
        """Take one :meth:`step` after words given by their ids ``[B]``."""
        return self.step(state, self.embed(words), k_max=k_max)

    def _decode_sampled(self, state: DecoderState, target_in: Tensor, target_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries ``[..., B, M, width]`` and contexts ``[..., B, M, memory]``, feeding drawn contexts."""
        queries, contexts, has_sites = [], [], pyro_runs_the_model()
        for number, word in enumerate(self.embed(target_in).unbind(1)):
            step = self.step(state, word)
            # without sites there are no names: with a handler the weights would be drawn
            name: AbstractContextManager[object] = _Numbered(number) if has_sites else nullcontext()
            with _masked(target_mask[:, number : number + 1]), name:
                context = self._attend(step.scores.unsqueeze(-2), step.state).squeeze(-2)
            state = self.feed(step.state, step.queries, context)
            queries.append(step.queries)
            contexts.append(context)
        # the queries of the first word have no sample dimension yet
        return torch.stack(torch.broadcast_tensors(*queries), -2), torch.stack(contexts, -2)

    def _attend(self, scores: Tensor, state: DecoderState) -> Tensor:
        """Sample the latent site, and return contexts ``[..., B, M, memory]`` for scores ``[..., B, M, N]``."""
        layout = Dense(state.mask[:, None, None], event_dim=2)
        memory = state.memory[:, None, None]  # keys and values [B, 1, 1, N, D], to scores [B, M, 1, N]
        return self.attention(scores.unsqueeze(-2), memory, keys=memory, layout=layout).context.squeeze(-2)


def _masked(mask: Tensor) -> MaskMessenger:
    """Return a handler that masks sites out where the mask is False."""
    words: Any = mask  # Pyro's annotation asks for torch.BoolTensor, which no tensor is for a type checker
    return pyro.poutine.mask(mask=words)


class _Numbered(Messenger):
    """Handler that adds a number to the names of sites, and refuses enumerated sites."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def _pyro_sample(self, msg: Any) -> None:
        msg["name"] = f"{msg['name']}_{self.number}"

    def _pyro_post_sample(self, msg: Any) -> None:
        dim = msg["infer"].get("_enumerate_dim")
        if dim is not None:
            raise ValueError(
                f"site '{msg['name']}' has {msg['value'].size(dim)} values at once, expected one: with "
                f"input_feed='sampled' their number would grow exponentially in the words; draw single alignments "
                f"by Categorical(enumerate=False) and ScoreFunctionELBO, or use input_feed='expected'"
            )
