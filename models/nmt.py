"""Attentional encoder-decoder for translation, whose alignment is a latent variable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from models.decoder_state import DecoderState
from pyro_attention import Additive, AlignmentPrior, Dense, LatentAttention, Prior, TokenLikelihood
from pyro_attention.analysis.alignment_uncertainty import k_max as keep_largest
from pyro_attention.ops.dropout import Dropout
from pyro_attention.ops.sequence import encode_sequence

__all__ = ["PAPER", "DecoderState", "Translation", "TranslationSizes"]


@dataclass(frozen=True)
class TranslationSizes:
    """Sizes of the network.

    Attributes:
        embedding: Width of a word vector.
        memory: Width of an encoded source word, both directions together.
        decoder: Width of the decoder's state.
        attention: Width of the attention's hidden layer.
        layers: Layers of encoder and decoder.
    """

    embedding: int = 128
    memory: int = 128
    decoder: int = 128
    attention: int = 128
    layers: int = 2


PAPER = TranslationSizes(embedding=512, memory=1024, decoder=768, attention=512)


@dataclass(frozen=True)
class _Decoded:
    """Decoder outputs ``[B, M, decoder]`` and attention scores ``[B, M, N]``."""

    queries: Tensor
    scores: Tensor


class Translation(nn.Module):
    r"""Bidirectional LSTM encoder, LSTM decoder with input feed, one alignment for each target word.

    .. math:: z_j \sim p(z \mid x, y_{<j}), \qquad
              y_j \sim \mathrm{softmax}\bigl(W \tanh(U_q q_j + U_c\, m_{z_j})\bigr)

    The decoder is fed with the expected context, so the alignments are independent given the words before. All are one
    site, ``alignment``, in the plates ``sentences`` and ``words``; the words are the site ``target``.

    With a sampled input feed it is fed with the context of the weights that were drawn. Each alignment then depends on
    those before it, and is a site of its own, ``alignment_0``, ``alignment_1``, ..., in the plate ``sentences``. This
    is for Gamma and LogNormal priors under :class:`AttentionELBO`, and for ``Categorical(enumerate=False)`` under
    :class:`ScoreFunctionELBO`, where the reward of an alignment is the log likelihood of the whole sentence. Decoding
    feeds the expected context in any case: drawn contexts are not averaged over.

    Args:
        source_vocabulary: Number of source tokens.
        target_vocabulary: Number of target tokens.
        sizes: Widths of the layers; :data:`PAPER` has those of the paper.
        dropout: Dropout of word vectors, between the layers, and before the output layer.
        prior: Prior of the alignment: that of the scores by default, or a Gamma or LogNormal prior for Bayesian
            attention.
        init_range: Draw all initial weights from uniform(-init_range, init_range): 0.1 in the paper, for its sizes.
            PyTorch's own initial values when omitted, with which small networks learn to align much faster.
        input_feed: Feed the decoder with the "expected" or the "sampled" context.

    Raises:
        ValueError: An odd memory, or an unknown input feed; at a call with a sampled feed: enumerated alignments,
            vectorised particles or an inference network, which need the alignments to be one site.

    Example:
        >>> from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source, target = torch.randint(10, (2, 5)), torch.randint(12, (2, 4))
        >>> real = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
        >>> loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
        >>> loss(source, real[0], target, target, real[1]).dim()
        0

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5 and appendix A.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        sizes: TranslationSizes | None = None,
        dropout: float = 0.3,
        prior: Prior | None = None,
        init_range: float | None = None,
        input_feed: Literal["expected", "sampled"] = "expected",
    ) -> None:
        super().__init__()
        if input_feed not in ("expected", "sampled"):
            raise ValueError(f"input_feed is '{input_feed}', expected 'expected' or 'sampled'")
        sizes = TranslationSizes() if sizes is None else sizes
        if sizes.memory % 2:
            raise ValueError(f"memory is {sizes.memory}, expected an even width: half for each direction")
        self.sizes = sizes
        self.input_feed: Literal["expected", "sampled"] = input_feed
        self.source_embedding = nn.Embedding(source_vocabulary, sizes.embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, sizes.embedding)
        between = dropout if sizes.layers > 1 else 0.0
        self.encoder = nn.LSTM(
            sizes.embedding, sizes.memory // 2, sizes.layers, batch_first=True, bidirectional=True, dropout=between
        )
        widths = [sizes.embedding + sizes.memory] + [sizes.decoder] * (sizes.layers - 1)
        self.decoder = nn.ModuleList([nn.LSTMCell(width, sizes.decoder) for width in widths])
        self.score = Additive(sizes.decoder, sizes.memory, sizes.attention)
        self.attention = LatentAttention("alignment", AlignmentPrior() if prior is None else prior)
        # apart, so that an enumerated context is not repeated for every word
        self.from_query = nn.Linear(sizes.decoder, sizes.decoder)
        self.from_context = nn.Linear(sizes.memory, sizes.decoder, bias=False)
        self.output = nn.Linear(sizes.decoder, target_vocabulary)
        self.dropout = Dropout(dropout)
        if init_range is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -init_range, init_range)

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
            source: Ids ``[B, N]``.
            source_mask: True at source words, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the words before, from the begin token on.
            target_out: Ids ``[B, M]`` of the words; drawn when omitted.
            target_mask: True at target words, ``[B, M]``; everywhere when omitted.
        """
        pyro.module("translation", self)
        if target_mask is None:
            target_mask = torch.ones_like(target_in, dtype=torch.bool)
        memory = self.encode(source, source_mask)
        sentences = pyro.plate("sentences", source.size(0), dim=-2)
        words = pyro.plate("words", target_in.size(1), dim=-1)
        if self.input_feed == "sampled":
            with sentences:
                queries, context = self._decode_sampled(memory, source_mask, target_in, target_mask)
        else:
            decoded = self._decode(memory, source_mask, target_in)
            with sentences, words, pyro.poutine.mask(mask=target_mask):
                queries, context = decoded.queries, self._attend(decoded.scores, memory, source_mask)
        with sentences, words, pyro.poutine.mask(mask=target_mask):
            likelihood = self.likelihood(queries, context)
            pyro.sample("target", likelihood, obs=target_out)
        return likelihood

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Encoded source words ``[B, N, memory]``; zeros at the padding."""
        return encode_sequence(self.encoder, self.dropout(self.source_embedding(source)), source_mask)

    def likelihood(self, queries: Tensor, context: Tensor) -> TokenLikelihood:
        """Distribution of the next word from decoder outputs ``[..., decoder]`` and contexts ``[..., memory]``."""
        features = (self.from_query(queries) + self.from_context(context)).tanh()
        return TokenLikelihood(self.dropout(features), self.output.weight, self.output.bias)

    def embed(self, words: Tensor) -> Tensor:
        """Vectors ``[..., embedding]`` of target words."""
        return self.dropout(self.target_embedding(words))

    def start(self, memory: Tensor, source_mask: Tensor) -> DecoderState:
        """State before the first word, of the output of :meth:`encode`."""
        zeros = memory.new_zeros(len(memory), self.sizes.decoder)
        cells = ((zeros, zeros),) * len(self.decoder)
        context = memory.new_zeros(len(memory), self.sizes.memory)
        return DecoderState(memory, self.score.key(memory), source_mask, cells, context)

    def step(
        self, state: DecoderState, word: Tensor, *, k_max: int | None = None
    ) -> tuple[DecoderState, Tensor, Tensor]:
        """One step of the decoder, fed with the expected context; teacher forcing and decoding both go through it.

        Args:
            state: State after the words before.
            word: Vectors ``[B, embedding]`` of the last word, from :meth:`embed`.
            k_max: Feed the next step with the context of so many largest attention weights; of all when omitted.

        Returns:
            The next state, the queries ``[B, decoder]`` and the attention scores ``[B, N]``, padding included.
        """
        below, cells = torch.cat([word, state.context], -1), []
        for level, cell in enumerate(self.decoder):
            cells.append(cell(below, state.cells[level]))
            below = self.dropout(cells[-1][0]) if level + 1 < len(self.decoder) else cells[-1][0]
        scores = self.score.out((self.score.query(below).unsqueeze(1) + state.keys).tanh()).squeeze(-1)
        weights = Dense(state.mask[:, None]).softmax(scores.unsqueeze(1))
        if k_max is not None:
            weights = keep_largest(weights, k_max).to(state.memory.dtype)
        context = (weights @ state.memory).squeeze(1)
        return replace(state, cells=tuple(cells), context=context), below, scores

    def _decode(self, memory: Tensor, source_mask: Tensor, target_in: Tensor) -> _Decoded:
        # all words at once: fast, and dropout's draws keep their order
        words = self.embed(target_in)
        state, queries, scores = self.start(memory, source_mask), [], []
        for word in words.unbind(1):
            state, query, score = self.step(state, word)
            queries.append(query)
            scores.append(score)
        return _Decoded(torch.stack(queries, 1), torch.stack(scores, 1))

    def _decode_sampled(
        self, memory: Tensor, source_mask: Tensor, target_in: Tensor, target_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Decoder outputs ``[B, M, decoder]`` and contexts ``[B, M, memory]`` of drawn weights, each fed onwards."""
        state, queries, contexts = self.start(memory, source_mask), [], []
        for number, word in enumerate(self.embed(target_in).unbind(1)):
            state, query, scores = self.step(state, word)
            with pyro.poutine.mask(mask=target_mask[:, number : number + 1]), _Numbered(number):
                context = self._attend(scores.unsqueeze(1), memory, source_mask)
            if context.dim() > 3:
                raise ValueError(
                    f"site '{self.attention.name}_{number}' has {len(context)} values at once, expected one: with "
                    f"input_feed='sampled' their number would grow exponentially in the words; draw single alignments "
                    f"by Categorical(enumerate=False) and ScoreFunctionELBO, do not vectorise particles, or use "
                    f"input_feed='expected'"
                )
            state = replace(state, context=context.squeeze(1))
            queries.append(query)
            contexts.append(context)
        return torch.stack(queries, 1), torch.cat(contexts, 1)

    def _attend(self, scores: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Contexts ``[..., B, M, memory]`` of attention scores ``[B, M, N]``: the latent site."""
        layout = Dense(source_mask[:, None, None], event_dim=2)
        memory = memory[:, None, None]  # keys and values [B, 1, 1, N, D], to scores [B, M, 1, N]
        return self.attention(scores.unsqueeze(-2), memory, keys=memory, layout=layout).context.squeeze(-2)


class _Numbered(Messenger):
    """Adds a number to the names of the sites inside."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def _pyro_sample(self, msg: Any) -> None:
        msg["name"] = f"{msg['name']}_{self.number}"
