"""Headlines of texts by a Transformer with latent attention in its encoder, and optionally in its decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from models.text import TextEncoder
from pyro_attention import FixedGammaPrior, MultiheadAttention, TokenLikelihood
from pyro_attention.families.base import Prior
from pyro_attention.ops.noise import Dropout

Memory = tuple[Tensor, Tensor]  # keys and values of a layer, each [B, H, N, width of a head]


@dataclass(frozen=True)
class HeadlineState:
    """State of the decoder, which the next word depends on, with a row for each sequence of words.

    Its tensors are never changed in place.

    Attributes:
        memory: Encoded text, ``[B, N, width]``.
        mask: False at the padding of the text, ``[B, N]``.
        text: Keys and values of the text for each layer.
        words: Keys and values of the previous words for each layer; none at first.
        length: Number of previous words.
    """

    memory: Tensor
    mask: Tensor
    text: tuple[Memory, ...]
    words: tuple[Memory, ...] = ()
    length: int = 0

    def reorder(self, rows: Tensor) -> HeadlineState:
        """Return the state whose row i is row ``rows[i]``, which must belong to the same text."""
        return replace(self, words=_rows(self.words, rows))

    def select(self, rows: Tensor) -> HeadlineState:
        """Return the given rows with their text; a row may be left out or repeated."""
        text = _rows(self.text, rows)
        return replace(self.reorder(rows), memory=self.memory[rows], mask=self.mask[rows], text=text)


class HeadlineWriter(nn.Module):
    r"""Network that writes headlines, with latent attention in the encoder, and a causal decoder.

    .. math:: p(y, S \mid x) = \prod_l p(S_l \mid x)\, \prod_t \mathrm{softmax}(E h_t + b)_{y_t}, \qquad
              h_t = \mathrm{decoder}(y_{<t}, \mathrm{encoder}(x, S))

    E are the token embeddings, which encoder, decoder and output share. The attention sites of the encoder are
    ``layers.0``, ``layers.1``, and so on; those of the decoder are ``decoder.0.words``, ``decoder.0.text``, and so on.
    The decoder's attention is always normalized by softmax, since normalization over queries would let a word see the
    next ones. A guide with ``{"decoder.*": Soft()}`` gives an ordinary decoder. All words of a batch without the
    padding are the site ``target``.

    Args:
        encoder: Encoder of the texts.
        layers: Layers of the decoder, which has the width and the heads of the encoder.
        positions: Largest number of words of a headline, the end token included.
        dropout: Dropout of embeddings, attention weights, and of the output of each part of a layer.
        prior: Makes a prior network of the decoder's attention from (key width, heads); fixed by default.

    Raises:
        ValueError: At a call, a headline longer than ``positions``.

    Example:
        >>> from pyro_attention import AttentionELBO, AttentionGuide, Soft, Weibull
        >>> model = HeadlineWriter(TextEncoder(10, width=8, heads=2))
        >>> guide = AttentionGuide(model, {"layers.*": Weibull(), "decoder.*": Soft()})
        >>> text, words = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 6]])
        >>> real = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
        >>> AttentionELBO()(model, guide)(text, real[0], words, torch.tensor([[6, 2]]), real[1]).dim()
        0

    Source: Vaswani et al. (2017), Attention is all you need; on headlines, with doubly normalized attention in the
    encoder: Ding et al. (2020), Attention that does not Explain Away, section 6.3.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        layers: int = 2,
        positions: int = 32,
        dropout: float = 0.1,
        prior: Callable[[int, int], Prior] = lambda *_: FixedGammaPrior(),
    ) -> None:
        super().__init__()
        first: Any = encoder.layers[0]
        width, heads = encoder.tokens.embedding_dim, first.attention.num_heads
        self.encoder = encoder
        self.positions = nn.Embedding(positions, width)
        nn.init.normal_(self.positions.weight, std=width**-0.5)
        self.dropout = Dropout(dropout)

        def attention(name: str) -> MultiheadAttention:
            return MultiheadAttention(width, heads, dropout, name=name, prior=prior(width // heads, heads))

        self.layers = nn.ModuleList(
            _Layer(attention(f"decoder.{number}.words"), attention(f"decoder.{number}.text"), dropout)
            for number in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(encoder.tokens.num_embeddings))

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        target_in: Tensor,
        target_out: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Sample or observe the words, and return the features of the K words of the batch without the padding.

        Args:
            source: Ids of the texts, ``[B, N]``.
            source_mask: False at the padding of the texts, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the previous words, beginning with the begin token.
            target_out: Ids ``[B, M]`` of the words; drawn when omitted.
            target_mask: False at the padding of the headlines, ``[B, M]``; no padding when omitted.

        Returns:
            ``[..., K, width]``, headline after headline; :meth:`likelihood` gives the distributions of the words.
        """
        pyro.module("headlinewriter", self)
        if target_mask is None:
            target_mask = torch.ones_like(target_in, dtype=torch.bool)
        with pyro.plate("sentences", source.size(0), dim=-1):
            memory = self.encoder(source, source_mask)
            features = self.decode(memory, source_mask, target_in, target_mask)
        real = target_mask.flatten().nonzero()[:, 0]
        features = features.flatten(-3, -2)[..., real, :]
        with pyro.plate("words", len(real), dim=-1):
            observed = None if target_out is None else target_out.flatten()[real]
            pyro.sample("target", self.likelihood(features), obs=observed)
        return features

    def decode(self, memory: Tensor, source_mask: Tensor, target_in: Tensor, target_mask: Tensor) -> Tensor:
        """Return the features ``[..., B, M, width]`` of every word, by teacher forcing.

        Args:
            memory: Encoded texts, ``[..., B, N, width]``.
            source_mask: False at the padding of the texts, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the previous words.
            target_mask: False at the padding of the headlines, ``[B, M]``.
        """
        hidden = self._embed(target_in, 0)
        for layer in self.layers:
            hidden = layer(hidden, memory, ~target_mask, ~source_mask)
        return self.norm(hidden)

    def likelihood(self, features: Tensor) -> TokenLikelihood:
        """Return the distribution of words for features ``[..., width]``."""
        return TokenLikelihood(features, self.encoder.tokens.weight, self.bias)

    def start(self, source: Tensor, source_mask: Tensor) -> HeadlineState:
        """Return the state before the first word for :func:`search_words`, with the attention at its posterior mean."""
        memory = self.encoder(source, source_mask)
        layers: Any = self.layers
        return HeadlineState(memory, source_mask, tuple(layer.read(layer.text, memory) for layer in layers))

    def advance(self, state: HeadlineState, words: Tensor) -> tuple[Tensor, HeadlineState]:
        """Return the log probabilities ``[B, V]`` of the next words after words ``[B]``, and the state after these."""
        hidden, memories = self._embed(words.unsqueeze(1), state.length), []
        layer: Any
        for number, layer in enumerate(self.layers):
            previous = state.words[number] if state.words else None
            hidden, memory = layer.advance(hidden, previous, state.text[number], state.mask)
            memories.append(memory)
        log_probs = self.likelihood(self.norm(hidden).squeeze(1)).logits
        return log_probs, replace(state, words=tuple(memories), length=state.length + 1)

    def _embed(self, words: Tensor, first: int) -> Tensor:
        """Return the vectors ``[B, M, width]`` of words ``[B, M]`` at the positions from ``first``."""
        last = first + words.size(1)
        if last > self.positions.num_embeddings:
            largest = self.positions.num_embeddings
            raise ValueError(f"a headline has {last} words, expected {largest} at most, the positions; cut it")
        tokens = self.encoder.tokens
        embedded: Tensor = (tokens(words) + self.positions.weight[first:last]) * tokens.embedding_dim**0.5
        return self.dropout(embedded)


class _Layer(nn.Module):
    """Layer of the decoder: attention to the previous words and to the text, and a feed-forward network."""

    def __init__(self, words: MultiheadAttention, text: MultiheadAttention, dropout: float) -> None:
        super().__init__()
        width = words.embed_dim
        self.words, self.text, self.dropout = words, text, Dropout(dropout)
        self.words_norm, self.text_norm, self.feed_forward_norm = (nn.LayerNorm(width) for _ in range(3))
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, memory: Tensor, padding: Tensor, source_padding: Tensor) -> Tensor:
        normed = self.words_norm(hidden)
        masks = {"need_weights": False, "query_padding_mask": padding}
        attended, _ = self.words(normed, normed, normed, padding, is_causal=True, **masks)
        hidden = hidden + self.dropout(attended)
        attended, _ = self.text(self.text_norm(hidden), memory, memory, source_padding, **masks)
        hidden = hidden + self.dropout(attended)
        added: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        return hidden + added

    def advance(self, hidden: Tensor, previous: Memory | None, text: Memory, mask: Tensor) -> tuple[Tensor, Memory]:
        """Return the output for one more word, and keys and values of the words up to it.

        Args:
            hidden: Input of the layer for the word, ``[B, 1, width]``.
            previous: Keys and values of the previous words; None at first.
            text: Keys and values of the text.
            mask: False at the padding of the text, ``[B, N]``.
        """
        normed = self.words_norm(hidden)
        memory = self.read(self.words, normed)
        if previous is not None:
            keys, values = (torch.cat(pair, -2) for pair in zip(previous, memory, strict=True))
            memory = keys, values
        hidden = hidden + _attend(self.words, normed, memory)
        hidden = hidden + _attend(self.text, self.text_norm(hidden), text, mask[:, None, None])
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), memory

    @staticmethod
    def read(attention: MultiheadAttention, hidden: Tensor) -> Memory:
        """Return keys and values of inputs ``[B, N, width]``."""
        return _heads(attention, attention.k_proj(hidden)), _heads(attention, attention.v_proj(hidden))


def _heads(attention: MultiheadAttention, projected: Tensor) -> Tensor:
    return projected.unflatten(-1, (attention.num_heads, -1)).transpose(-3, -2)


def _attend(attention: MultiheadAttention, query: Tensor, memory: Memory, mask: Tensor | None = None) -> Tensor:
    """Return the output of an attention layer at the mean of its weights, for given keys and values."""
    queries = _heads(attention, attention.q_proj(query))
    contexts = nn.functional.scaled_dot_product_attention(queries, *memory, attn_mask=mask)
    output: Tensor = attention.out_proj(contexts.transpose(-3, -2).flatten(-2))
    return output


def _rows(memories: tuple[Memory, ...], rows: Tensor) -> tuple[Memory, ...]:
    return tuple((keys[rows], values[rows]) for keys, values in memories)
