"""A small Transformer encoder of sentences with latent attention: masked language model and classifier."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from torch import Tensor, nn

from pyro_attention import ContextualGammaPrior, MultiheadAttention, TokenLikelihood
from pyro_attention.families.base import Prior
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.noise import Dropout


class TextEncoder(nn.Module):
    r"""Pre-norm Transformer encoder with learned positions; the attention sites are ``layers.0``, ``layers.1``, ...

    .. math:: h \leftarrow h + \mathrm{Attention}(\mathrm{LN}(h)), \qquad h \leftarrow h + \mathrm{FFN}(\mathrm{LN}(h))

    The weights of a layer are one event (heads, queries, keys) of each sentence. Call it inside a plate over sentences,
    as :class:`MaskedLanguageModel` and :class:`TextClassifier` do.

    Args:
        vocabulary: Number of tokens.
        width: Width of a token's vector.
        heads: Number of heads; divides the width.
        layers: Number of layers.
        positions: Most tokens of a sentence.
        dropout: Dropout of embeddings, attention weights, and of what each half of a layer adds.
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads, such as ``Hybrid``.

    Raises:
        ValueError: At a call, a sentence longer than ``positions``.

    Source: Vaswani et al. (2017), Attention is all you need, section 3; layer norm first: Xiong et al. (2020).
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        positions: int = 64,
        dropout: float = 0.1,
        prior: Callable[[int, int], Prior] = ContextualGammaPrior,
        normalizer: Callable[[int], Normalizer] = lambda heads: Softmax(),
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList()
        for number in range(layers):
            attention = MultiheadAttention(
                width, heads, dropout,
                name=f"layers.{number}", prior=prior(width // heads, heads), normalizer=normalizer(heads),
            )  # fmt: skip
            self.layers.append(_Layer(attention, dropout))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Features of every token.

        Args:
            tokens: Ids ``[B, N]``.
            mask: True at tokens, False at padding, ``[B, N]``.

        Returns:
            ``[..., B, N, width]``; what stands at padding means nothing.
        """
        if tokens.size(1) > self.positions.num_embeddings:
            most = self.positions.num_embeddings
            raise ValueError(f"a sentence has {tokens.size(1)} tokens, expected {most} at most, the positions; cut it")
        embedded = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        hidden: Tensor = self.dropout(embedded * self.tokens.embedding_dim**0.5)
        for layer in self.layers:
            hidden = layer(hidden, ~mask)
        return self.norm(hidden)


class _Layer(nn.Module):
    """Attention and a feed-forward network of four times the width, each added to its input."""

    def __init__(self, attention: MultiheadAttention, dropout: float) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention, self.dropout = attention, Dropout(dropout)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, padding: Tensor) -> Tensor:
        normed = self.attention_norm(hidden)
        attended, _ = self.attention(normed, normed, normed, padding, need_weights=False, query_padding_mask=padding)
        hidden = hidden + self.dropout(attended)
        added: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        return hidden + added


class MaskedLanguageModel(nn.Module):
    r"""Predicts tokens that are hidden from it, given the others; all of a batch are the site ``target``.

    .. math:: S_l \sim p(S_l \mid x_{\setminus m}), \qquad
              x_m \sim \mathrm{softmax}(E h_m + b), \qquad
              o \sim \mathrm{softmax}(W_2 \tanh(W_1 h_0))

    E are the token embeddings. Only hidden tokens have logits. With ``sentence_order`` a sentence is a pair of
    segments, ``<s> A </s> B </s>``, and the site ``order`` says whether they are swapped, as read from the first token.
    All orders of a batch count as much as all its hidden tokens, since BERT and ALBERT add the means of both losses.

    Args:
        encoder: Encoder of the sentences.
        sentence_order: Whether the order of two segments is predicted, too.

    Example:
        >>> from pyro_attention import AttentionELBO, AttentionGuide, Weibull
        >>> model = MaskedLanguageModel(TextEncoder(10, width=8, heads=2))
        >>> tokens, hidden = torch.tensor([[1, 5, 3, 2]]), torch.tensor([[False, False, True, False]])
        >>> loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))
        >>> loss(tokens, tokens > 0, hidden, torch.tensor([6])).dim()
        0

    Source: Devlin et al. (2019), BERT, section 3.1, task 1; tied embeddings: Press and Wolf (2017); the order: Lan et
    al. (2020), ALBERT, section 3.1.
    """

    def __init__(self, encoder: TextEncoder, *, sentence_order: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.bias = nn.Parameter(torch.zeros(encoder.tokens.num_embeddings))
        width = encoder.tokens.embedding_dim
        self.order = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)) if sentence_order else None

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        hidden: Tensor,
        target: Tensor | None = None,
        order: Tensor | None = None,
    ) -> Tensor:
        """Features of the hidden tokens, K in the batch; :meth:`likelihood` makes their distribution of them.

        With ``sentence_order`` the features of the first token of every sentence stand behind them;
        :meth:`order_logits` makes logits of them.

        Args:
            tokens: Ids ``[B, N]`` with something else at hidden tokens.
            mask: True at tokens, False at padding, ``[B, N]``.
            hidden: True at tokens to predict, ``[B, N]``.
            target: Their ids ``[K]``, sentence after sentence; drawn when omitted.
            order: 0 or 1, where the segments are swapped, ``[B]``; drawn when omitted.

        Returns:
            ``[..., K, width]``, with ``sentence_order`` ``[..., K + B, width]``.
        """
        pyro.module("maskedlanguagemodel", self)
        with pyro.plate("sentences", tokens.size(0), dim=-1):
            encoded: Tensor = self.encoder(tokens, mask)
        features = encoded.flatten(-3, -2)[..., hidden.flatten().nonzero()[:, 0], :]
        with pyro.plate("hidden", features.size(-2), dim=-1):
            pyro.sample("target", self.likelihood(features), obs=target)
        if self.order is None:
            return features
        first = encoded[..., 0, :]
        with (
            pyro.plate("pairs", tokens.size(0), dim=-1),
            poutine.scale(scale=features.size(-2) / tokens.size(0)),
        ):
            pyro.sample("order", Categorical(logits=self.order_logits(first)), obs=order)
        return torch.cat([features, first], -2)

    def order_logits(self, features: Tensor) -> Tensor:
        """Return logits ``[..., 2]`` that two segments are in order, or swapped, of features of first tokens.

        Raises:
            TypeError: The model has no ``sentence_order``.
        """
        if self.order is None:
            raise TypeError("the model predicts no order of sentences; make it with sentence_order=True")
        return torch.as_tensor(self.order(features))

    def likelihood(self, features: Tensor) -> TokenLikelihood:
        """Distribution of tokens of these features ``[..., width]``."""
        return TokenLikelihood(features, self.encoder.tokens.weight, self.bias)


class TextClassifier(nn.Module):
    r"""Class of a sentence from the mean of its tokens' features: the site ``labels``.

    .. math:: S_l \sim p(S_l \mid x), \qquad y \sim \mathrm{Categorical}(\mathrm{softmax}(W \bar h + b))

    Args:
        encoder: Encoder of the sentences, as of a :class:`MaskedLanguageModel` (its weights are not copied).
        num_classes: Number of classes.
        dropout: Dropout ahead of the output layer.

    Example:
        >>> from pyro_attention import AttentionGuide, Soft
        >>> model = TextClassifier(TextEncoder(10, width=8, heads=2), 2)
        >>> run = AttentionGuide(model, Soft()).run(torch.tensor([[1, 5, 2]]), torch.ones(1, 3, dtype=torch.bool))
        >>> run.output.shape
        torch.Size([1, 2])
    """

    def __init__(self, encoder: TextEncoder, num_classes: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.dropout = encoder, Dropout(dropout)
        self.output = nn.Linear(encoder.tokens.embedding_dim, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits of every sentence.

        Args:
            tokens: Ids ``[B, N]``.
            mask: True at tokens, False at padding, ``[B, N]``; every sentence has a token.
            labels: Classes ``[B]``; drawn when omitted.

        Returns:
            ``[..., B, num_classes]``.
        """
        pyro.module("textclassifier", self)
        with pyro.plate("sentences", tokens.size(0), dim=-1):
            features = self.encoder(tokens, mask)
            mean = (features * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True)
            logits: Tensor = self.output(self.dropout(mean))
            pyro.sample("labels", Categorical(logits=logits), obs=labels)
        return logits
