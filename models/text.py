"""Transformer encoder of sentences with latent attention, as masked language model and as classifier."""

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
    r"""Pre-norm Transformer encoder with learned positions, and the attention sites ``layers.0``, ``layers.1``, ...

    .. math:: h \leftarrow h + \mathrm{Attention}(\mathrm{LN}(h)), \qquad h \leftarrow h + \mathrm{FFN}(\mathrm{LN}(h))

    The weights of a layer l have the prior :math:`p(S_l \mid x, S_{<l})`, and are one event (heads, queries, keys) of
    each sentence. The encoder must be called inside a plate over sentences, as by :class:`MaskedLanguageModel` and
    :class:`TextClassifier`.

    Args:
        vocabulary: Number of tokens.
        width: Width of the vector of a token.
        heads: Number of heads; divides the width.
        layers: Number of layers.
        positions: Largest number of tokens of a sentence.
        dropout: Dropout of embeddings, attention weights, and of the output of each half of a layer.
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads, such as ``Hybrid``.

    Raises:
        ValueError: At a call, a sentence is longer than ``positions``.

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
        """Return the features of every token.

        Args:
            tokens: Ids ``[B, N]``.
            mask: True at tokens, False at padding, ``[B, N]``.

        Returns:
            ``[..., B, N, width]``, with arbitrary values at the padding.
        """
        if tokens.size(1) > self.positions.num_embeddings:
            largest = self.positions.num_embeddings
            raise ValueError(
                f"a sentence has {tokens.size(1)} tokens, expected {largest} at most, the positions; cut it"
            )
        embedded = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        hidden: Tensor = self.dropout(embedded * self.tokens.embedding_dim**0.5)
        for layer in self.layers:
            hidden = layer(hidden, ~mask)
        return self.norm(hidden)


class _Layer(nn.Module):
    """Layer of an encoder: attention and a feed-forward network of four times the width, both with skip connections."""

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
    r"""Masked language model, which predicts hidden tokens given all other tokens.

    .. math:: p(x_m, S \mid x_{\setminus m}) = \prod_l p(S_l \mid x_{\setminus m})\,
              \prod_{k \in m} \mathrm{softmax}(E h_k + b)_{x_k}

    m are the hidden tokens and E the token embeddings. The hidden tokens of a batch are the site ``target``. Logits are
    computed for hidden tokens only.
    With ``sentence_order`` a sentence is a pair of segments, ``<s> A </s> B </s>``, and the site ``order`` says whether
    they are swapped, as read from the first token: :math:`o \sim \mathrm{softmax}(W_2 \tanh(W_1 h_0))`. All orders of a
    batch count as much as all its hidden tokens, since BERT and ALBERT add the means of both losses.

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
        """Sample or observe the K hidden tokens of the batch, and return their features; see :meth:`likelihood`.

        With ``sentence_order`` the features of the first token of every sentence stand behind them;
        :meth:`order_logits` makes logits of them.

        Args:
            tokens: Ids ``[B, N]``, with other ids at most hidden tokens.
            mask: True at tokens, False at padding, ``[B, N]``.
            hidden: True at tokens to predict, ``[B, N]``.
            target: Ids of the hidden tokens ``[K]``, sentence after sentence; drawn when omitted.
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
        """Return the distribution of tokens for features ``[..., width]``."""
        return TokenLikelihood(features, self.encoder.tokens.weight, self.bias)


class TextClassifier(nn.Module):
    r"""Classifier of sentences by the mean feature of their tokens, with the classes as site ``labels``.

    .. math:: p(y, S \mid x) = \prod_l p(S_l \mid x)\, \mathrm{softmax}(W \bar h + b)_y

    Args:
        encoder: Encoder of the sentences, for example that of a :class:`MaskedLanguageModel`; it is not copied.
        num_classes: Number of classes.
        dropout: Dropout before the output layer.

    Example:
        >>> from pyro_attention import AttentionGuide, Soft
        >>> model = TextClassifier(TextEncoder(10, width=8, heads=2), 2)
        >>> run = AttentionGuide(model, Soft()).run(torch.tensor([[1, 5, 2]]), torch.ones(1, 3, dtype=torch.bool))
        >>> run.output.shape
        torch.Size([1, 2])

    Source: Socher et al. (2013), Recursive Deep Models for Semantic Compositionality, for the task; latent weights from
    Fan et al. (2020), Bayesian Attention Modules.
    """

    def __init__(self, encoder: TextEncoder, num_classes: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.dropout = encoder, Dropout(dropout)
        self.output = nn.Linear(encoder.tokens.embedding_dim, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """Sample or observe the classes, and return the logits of every sentence.

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
