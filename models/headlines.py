"""Headlines of texts: a Transformer whose encoder, and if wished whose decoder, has latent attention."""

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

Memory = tuple[Tensor, Tensor]  # keys and values of a layer, each [B, heads, length, width of a head]


@dataclass(frozen=True)
class HeadlineState:
    """All that the next word depends on, a row for each sequence of words; nothing in it is ever changed in place.

    Attributes:
        memory: The encoded text, ``[B, N, width]``.
        mask: True at what is no padding of it, ``[B, N]``.
        text: Keys and values that each layer makes of the text.
        words: Keys and values that each layer has made of the words before; none at first.
        length: Number of words before.
    """

    memory: Tensor
    mask: Tensor
    text: tuple[Memory, ...]
    words: tuple[Memory, ...] = ()
    length: int = 0

    def reorder(self, rows: Tensor) -> HeadlineState:
        """Row ``rows[i]`` in the place of row i, which must belong to the same text."""
        return replace(self, words=_rows(self.words, rows))

    def select(self, rows: Tensor) -> HeadlineState:
        """These rows, text and all; a row may be left out or come many times."""
        text = _rows(self.text, rows)
        return replace(self.reorder(rows), memory=self.memory[rows], mask=self.mask[rows], text=text)


class HeadlineWriter(nn.Module):
    r"""Writes headlines: an encoder with latent attention, and a causal decoder that looks at what it has encoded.

    .. math:: S_l \sim p(S_l \mid x), \qquad
              y_t \sim \mathrm{softmax}(E h_t + b), \quad h_t = \mathrm{decoder}(y_{<t}, \mathrm{encoder}(x, S))

    E are the token embeddings of encoder, decoder and output. The attention sites of the encoder are ``layers.0``,
    ``layers.1``, ...; those of the decoder ``decoder.0.words`` and ``decoder.0.text``, ..., always normalised by
    softmax: normalised over queries, a word would look at the ones behind it. A guide with
    ``{"decoder.*": Soft()}`` makes the decoder an ordinary one. All real words of a batch are the site ``target``.

    Args:
        encoder: Encoder of the texts.
        layers: Layers of the decoder; as many heads and as wide as the encoder.
        positions: Most words of a headline, the end token among them.
        dropout: Dropout of embeddings, attention weights, and of what each part of a layer adds.
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

    Source: Vaswani et al. (2017), Attention is all you need; on headlines, with doubly normalised attention in the
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
        """Features of all real words of the headlines, K in the batch, given the ones before them.

        Args:
            source: Ids of the texts, ``[B, N]``.
            source_mask: True at what is no padding, ``[B, N]``.
            target_in: Ids ``[B, M]`` of the words before, from the begin token on.
            target_out: Ids ``[B, M]`` of the words; drawn when omitted.
            target_mask: True at words, ``[B, M]``; everywhere when omitted.

        Returns:
            ``[..., K, width]``, headline after headline; :meth:`likelihood` makes distributions of them.
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
            said = None if target_out is None else target_out.flatten()[real]
            pyro.sample("target", self.likelihood(features), obs=said)
        return features

    def decode(self, memory: Tensor, source_mask: Tensor, target_in: Tensor, target_mask: Tensor) -> Tensor:
        """Features ``[..., B, M, width]`` of every word, by teacher forcing; arguments as of a call."""
        hidden = self._embed(target_in, 0)
        for layer in self.layers:
            hidden = layer(hidden, memory, ~target_mask, ~source_mask)
        return self.norm(hidden)

    def likelihood(self, features: Tensor) -> TokenLikelihood:
        """Distribution of words of these features ``[..., width]``."""
        return TokenLikelihood(features, self.encoder.tokens.weight, self.bias)

    def start(self, source: Tensor, source_mask: Tensor) -> HeadlineState:
        """State before the first word, the attention at its posterior mean, for :func:`search_words`."""
        memory = self.encoder(source, source_mask)
        layers: Any = self.layers
        return HeadlineState(memory, source_mask, tuple(layer.read(layer.text, memory) for layer in layers))

    def advance(self, state: HeadlineState, words: Tensor) -> tuple[Tensor, HeadlineState]:
        """Log probabilities ``[B, V]`` of the next words, after words ``[B]``, and the state after these."""
        hidden, seen = self._embed(words.unsqueeze(1), state.length), []
        layer: Any
        for number, layer in enumerate(self.layers):
            before = state.words[number] if state.words else None
            hidden, made = layer.advance(hidden, before, state.text[number], state.mask)
            seen.append(made)
        log_probs = self.likelihood(self.norm(hidden).squeeze(1)).logits
        return log_probs, replace(state, words=tuple(seen), length=state.length + 1)

    def _embed(self, words: Tensor, first: int) -> Tensor:
        """Vectors of words ``[B, M]``, of which the first stands at a place."""
        last = first + words.size(1)
        if last > self.positions.num_embeddings:
            most = self.positions.num_embeddings
            raise ValueError(f"a headline has {last} words, expected {most} at most, the positions; cut it")
        tokens = self.encoder.tokens
        embedded: Tensor = (tokens(words) + self.positions.weight[first:last]) * tokens.embedding_dim**0.5
        return self.dropout(embedded)


class _Layer(nn.Module):
    """Attention to the words before, attention to the text, and a feed-forward network, each added to its input."""

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

    def advance(self, hidden: Tensor, before: Memory | None, text: Memory, mask: Tensor) -> tuple[Tensor, Memory]:
        """One more word ``[B, 1, width]``, given what :meth:`read` made of those before, and what it makes with it."""
        normed = self.words_norm(hidden)
        made = self.read(self.words, normed)
        if before is not None:
            keys, values = (torch.cat(both, -2) for both in zip(before, made, strict=True))
            made = keys, values
        hidden = hidden + _attend(self.words, normed, made)
        hidden = hidden + _attend(self.text, self.text_norm(hidden), text, mask[:, None, None])
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), made

    @staticmethod
    def read(attention: MultiheadAttention, hidden: Tensor) -> Memory:
        """Keys and values of what is attended to, ``[B, N, width]``."""
        return _heads(attention, attention.k_proj(hidden)), _heads(attention, attention.v_proj(hidden))


def _heads(attention: MultiheadAttention, projected: Tensor) -> Tensor:
    return projected.unflatten(-1, (attention.num_heads, -1)).transpose(-3, -2)


def _attend(attention: MultiheadAttention, query: Tensor, memory: Memory, mask: Tensor | None = None) -> Tensor:
    """What the layer itself gives at the mean of its weights, for keys and values that are there already."""
    queries = _heads(attention, attention.q_proj(query))
    found = nn.functional.scaled_dot_product_attention(queries, *memory, attn_mask=mask)
    context: Tensor = attention.out_proj(found.transpose(-3, -2).flatten(-2))
    return context


def _rows(memories: tuple[Memory, ...], rows: Tensor) -> tuple[Memory, ...]:
    return tuple((keys[rows], values[rows]) for keys, values in memories)
