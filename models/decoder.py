"""The decoder that translation and captioning share: words one after another, each with an attention of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from pyro_attention.layers.scores import Additive, Bilinear

InputFeed = Literal["expected", "sampled"]  # the context that the decoder is fed with


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of the network.

    Attributes:
        embedding: Width of a word vector.
        memory: Width of what is attended to: an embedded region, or an encoded word, both directions together.
        decoder: Width of the decoder's state.
        attention: Width of the attention's hidden layer.
    """

    embedding: int = 128
    memory: int = 128
    decoder: int = 128
    attention: int = 128


@dataclass(frozen=True)
class DecoderState:
    """All that the next word depends on, a row for each sequence of words; nothing in it is ever changed in place.

    Attributes:
        memory: What is attended to, ``[B, N, memory]``.
        keys: What the attention makes of them, once for all words, ``[B, N, attention]``.
        mask: True at what is no padding, ``[B, N]``.
        cells: Hidden and cell state ``[B, decoder]`` of each layer.
        context: Context of the last word, ``[B, memory]``.
        past: What a :class:`TemporalNormalizer` remembers of the words before, ``[B, N]``; None without one.
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    cells: tuple[tuple[Tensor, Tensor], ...]
    context: Tensor
    past: Tensor | None = None

    def reorder(self, rows: Tensor) -> DecoderState:
        """Return the state with row ``rows[i]`` at row i, which must belong to the same source."""
        cells = tuple((hidden[rows], cell[rows]) for hidden, cell in self.cells)
        past = None if self.past is None else self.past[rows]
        return replace(self, cells=cells, context=self.context[rows], past=past)

    def select(self, rows: Tensor) -> DecoderState:
        """Return these rows with their source; a row may be left out or repeated."""
        ordered = self.reorder(rows)
        return replace(ordered, memory=self.memory[rows], keys=self.keys[rows], mask=self.mask[rows])


@dataclass(frozen=True)
class Step:
    """One step of a decoder: what the next word is drawn from, before the attention has looked anywhere.

    Attributes:
        state: State after the step.
        queries: All that the next word needs besides a context, ``[B, width]``.
        scores: Attention scores, padding included, ``[B, N]``.
    """

    state: DecoderState
    queries: Tensor
    scores: Tensor

    @property
    def log_prior(self) -> Tensor:
        """Log probabilities ``[B, N]`` by a dense prior, in at least float32; -inf at the padding."""
        scores = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32))
        return scores.masked_fill(~self.state.mask, -math.inf).log_softmax(-1)


class AttentionDecoder(nn.Module):
    r"""Words, each drawn given those before and what one latent attention looks at in the source.

    A subclass says how the source is encoded, how the recurrent state goes on, and how a word depends on a context:
    :meth:`encode`, :meth:`embed`, :meth:`advance`, :meth:`feed` and :meth:`likelihood`. Plates,
    sites, teacher forcing, and all of decoding rest on these.

    The state goes on with the expected context, so the alignments are independent given the words before. All are one
    site, ``alignment``, in the plates ``sentences`` and ``words``; the words are the site ``target``.

    With a sampled input feed it goes on with the context of the weights that were drawn. Each alignment then depends on
    those before it, and is a site of its own, ``alignment_0``, ``alignment_1``, ..., in the plate ``sentences``. This
    is for Gamma and LogNormal priors under :class:`AttentionELBO`, and for ``Categorical(enumerate=False)`` under
    :class:`ScoreFunctionELBO`, where the reward of an alignment is the log likelihood of the whole sentence. Decoding
    goes on with the expected context in any case: drawn contexts are not averaged over. Vectorised particles and the
    samples of a chunk each have a state of their own, ``[S, B, ...]``.

    A subclass also takes the ``prior`` of the attention: that of the scores by default, or a Gamma or LogNormal prior
    for Bayesian attention. With an ``init_range`` all initial weights are drawn from uniform(-init_range, init_range);
    with PyTorch's own, small networks learn to align much faster.

    Args:
        input_feed: The context that the state goes on with, "expected" or "sampled".
        normalizer: Normalizes scores over the words before too; by default they are normalized over the source alone.

    Attributes:
        attention: The attention, whose site is ``alignment``; a subclass sets it, and the next two.
        score: The scores of the attention.
        output: The output layer, with a row for each word.
        layers: Recurrent layers.

    Raises:
        ValueError: At a call with a sampled feed: enumerated alignments or an inference network, which need the
            alignments to be one site.
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
        """What is attended to, ``[B, N, memory]``, of a source."""
        raise NotImplementedError

    def embed(self, words: Tensor) -> Tensor:
        """Vectors ``[..., embedding]`` of words."""
        raise NotImplementedError

    def start(self, memory: Tensor, source_mask: Tensor) -> DecoderState:
        """State before the first word, of the output of :meth:`encode`."""
        zeros = memory.new_zeros(len(memory), self.output.in_features)
        cells = ((zeros, zeros),) * self.layers
        keys = self.score.key(memory) if isinstance(self.score, Additive) else memory
        return DecoderState(memory, keys, source_mask, cells, torch.zeros_like(memory[:, 0]))

    def init_uniform(self, init_range: float | None) -> None:
        """Draw weights from uniform(-init_range, init_range), except those of the normalizer; none for None."""
        for name, parameter in self.named_parameters():
            if init_range is not None and not name.startswith("normalizer."):
                nn.init.uniform_(parameter, -init_range, init_range)

    def scores(self, state: DecoderState, queries: Tensor) -> Tensor:
        """Attention scores ``[..., N]`` of queries ``[..., width]`` and the keys of a state."""
        if isinstance(self.score, Bilinear):
            return (state.keys @ self.score.projection(queries).unsqueeze(-1)).squeeze(-1)
        return self.score.out((self.score.query(queries).unsqueeze(-2) + state.keys).tanh()).squeeze(-1)

    def advance(self, state: DecoderState, word: Tensor) -> Step:
        """One step up to the attention, whose state waits for its context.

        With states of many samples ``[S, B, ...]``, so is everything in the step.

        Args:
            state: State after the words before.
            word: Vectors ``[B, embedding]`` of the last word, from :meth:`embed`.
        """
        raise NotImplementedError

    def feed(self, state: DecoderState, queries: Tensor, context: Tensor) -> DecoderState:
        """The state of :meth:`advance` after a context ``[B, memory]``; a second one takes the place of the first."""
        raise NotImplementedError

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Distribution of the next word from queries ``[..., width]`` and contexts ``[..., memory]``."""
        raise NotImplementedError

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> TokenLikelihood:
        """Distribution of every target word, given the ones before it.

        Args:
            source: The source, ids ``[B, N]`` or features ``[B, N, F]``.
            source_mask: True at what may be attended to, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the words before, from the begin token on.
            target_out: Ids ``[B, M]`` of the words; drawn when omitted.
            target_mask: True at target words, ``[B, M]``; everywhere when omitted.
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
            # padding counts nowhere, and the output layer is most of the work
            pyro.sample("target", likelihood.where(target_mask), obs=target_out)
        return likelihood

    def step(self, state: DecoderState, word: Tensor, *, k_max: int | None = None) -> Step:
        """Take one step of the decoder, fed with the expected context.

        Teacher forcing and decoding both go through it.

        Args:
            state: State after the words before.
            word: Vectors ``[B, embedding]`` of the last word, from :meth:`embed`.
            k_max: Go on with the context of so many largest attention weights; of all when omitted.
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
        """Yield one :meth:`step` for each of given words: teacher forcing.

        Args:
            state: State before the words.
            words: Ids ``[B, M]``.
            k_max: As in :meth:`step`.
        """
        for word in self.embed(words).unbind(1):  # all words at once: fast, and dropout's draws keep their order
            step = self.step(state, word, k_max=k_max)
            state = step.state
            yield step

    def read(self, state: DecoderState, words: Tensor, *, k_max: int | None = None) -> Step:
        """Take one :meth:`step` after words that are ids ``[B]``."""
        return self.step(state, self.embed(words), k_max=k_max)

    def _decode_sampled(self, state: DecoderState, target_in: Tensor, target_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[..., B, M, width]`` and contexts ``[..., B, M, memory]`` of drawn weights, each fed onwards."""
        queries, contexts = [], []
        for number, word in enumerate(self.embed(target_in).unbind(1)):
            step = self.step(state, word)
            with _masked(target_mask[:, number : number + 1]), _Numbered(number):
                context = self._attend(step.scores.unsqueeze(-2), step.state).squeeze(-2)
            state = self.feed(step.state, step.queries, context)
            queries.append(step.queries)
            contexts.append(context)
        # before the first weights were drawn, all samples of one pass were the same
        return torch.stack(torch.broadcast_tensors(*queries), -2), torch.stack(contexts, -2)

    def _attend(self, scores: Tensor, state: DecoderState) -> Tensor:
        """Contexts ``[..., B, M, memory]`` of attention scores ``[..., B, M, N]``: the latent site."""
        layout = Dense(state.mask[:, None, None], event_dim=2)
        memory = state.memory[:, None, None]  # keys and values [B, 1, 1, N, D], to scores [B, M, 1, N]
        return self.attention(scores.unsqueeze(-2), memory, keys=memory, layout=layout).context.squeeze(-2)


def _masked(mask: Tensor) -> MaskMessenger:
    """Only what is true counts."""
    words: Any = mask  # Pyro's annotation knows torch.BoolTensor alone, which no tensor is to a type checker
    return pyro.poutine.mask(mask=words)


class _Numbered(Messenger):
    """Adds a number to the names of the sites inside, which may not be enumerated."""

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
