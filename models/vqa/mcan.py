"""MCAN: modular co-attention over a question and the regions of a photograph, with latent weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.vqa.answers import AnswerModel, Likelihood
from pyro_attention import ContextualGammaPrior, Dense, LatentAttention, MultiheadAttention, Softmax
from pyro_attention.families.base import Prior
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout

MakePrior = Callable[[int, int], Prior]
MakeNormalizer = Callable[[int], Normalizer]


@dataclass(frozen=True)
class MCANSizes:
    """Sizes of the network; those of the paper by default.

    Attributes:
        embedding: Width of a word vector.
        width: Width of every layer.
        heads: Heads of the attention; divides the width.
        layers: Layers over the question, and layers over the regions.
        feed_forward: Width inside a feed-forward network.
        reduced: Width of what question and regions are reduced to.
    """

    embedding: int = 300
    width: int = 512
    heads: int = 8
    layers: int = 6
    feed_forward: int = 2048
    reduced: int = 1024


class MCAN(AnswerModel):
    r"""Self-attention over the question, then self- and guided attention over the regions, both reduced and fused.

    .. math:: X^{(l)} = \mathrm{SA}(X^{(l-1)}), \qquad Y^{(l)} = \mathrm{GA}(\mathrm{SA}(Y^{(l-1)}), X^{(L)}), \qquad
              h = \mathrm{LN}(W_x \textstyle\sum_i w_i x_i + W_y \sum_j w'_j y_j)

    Every attention is a latent site. Their names are ``question.0``, ``regions.0.self``, ``regions.0.guided``, ... and
    ``reduce.question``, ``reduce.regions``: where the reduction of the regions looks is what the answer is read from.
    A guide with patterns makes some of them Bayesian and others soft:
    ``AttentionGuide(model, {"*guided": Weibull(), "*": Soft()})``.

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features.
        answers: Number of answers.
        sizes: Widths and numbers of layers.
        dropout: Dropout of attention weights and of what every layer adds.
        likelihood: "scores" as in the paper, or "single".
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads; the two reductions, which have one query each, keep
            softmax.

    Example:
        >>> from pyro_attention import AttentionELBO, AttentionGuide, Weibull
        >>> model = MCAN(9, 4, 3, sizes=MCANSizes(8, 8, 2, 1, 16, 8), likelihood="single")
        >>> words, regions = torch.tensor([[5, 2]]), torch.randn(1, 6, 4)
        >>> loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))
        >>> loss(words, words > 0, regions, torch.ones(1, 6, dtype=torch.bool), torch.tensor([2])).dim()
        0

    Source: Yu et al. (2019), Deep Modular Co-Attention Networks for Visual Question Answering, section 3; latent
    weights from Fan et al. (2020), Bayesian Attention Modules, section 4.2.
    """

    question_layers: Any  # a ModuleList of ModuleDicts, whose items are not typed
    region_layers: Any

    def __init__(
        self,
        vocabulary: int,
        features: int,
        answers: int,
        *,
        sizes: MCANSizes | None = None,
        dropout: float = 0.1,
        likelihood: Likelihood = "scores",
        prior: MakePrior = ContextualGammaPrior,
        normalizer: MakeNormalizer = lambda heads: Softmax(),
    ) -> None:
        self.sizes = sizes = MCANSizes() if sizes is None else sizes
        super().__init__(sizes.reduced, answers, likelihood)
        width = sizes.width

        def attention(name: str) -> _Attention:
            return _Attention(
                MultiheadAttention(
                    width, sizes.heads, dropout,
                    name=name, prior=prior(width // sizes.heads, sizes.heads), normalizer=normalizer(sizes.heads),
                ),
                dropout,
            )  # fmt: skip

        def feed_forward() -> _FeedForward:
            return _FeedForward(width, sizes.feed_forward, dropout)

        self.embedding = nn.Embedding(vocabulary, sizes.embedding, padding_idx=0)
        self.lstm = nn.LSTM(sizes.embedding, width, batch_first=True)
        self.region = nn.Linear(features, width)
        numbers = range(sizes.layers)
        self.question_layers = nn.ModuleList(
            nn.ModuleDict({"self": attention(f"question.{number}"), "feed_forward": feed_forward()})
            for number in numbers
        )
        self.region_layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "self": attention(f"regions.{number}.self"),
                    "guided": attention(f"regions.{number}.guided"),
                    "feed_forward": feed_forward(),
                }
            )
            for number in numbers
        )
        self.reduce_question = _Reduction("reduce.question", sizes, dropout, prior)
        self.reduce_regions = _Reduction("reduce.regions", sizes, dropout, prior)
        self.fused = nn.LayerNorm(sizes.reduced)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        words = encode_sequence(self.lstm, self.embedding(question), question_mask)
        seen: Tensor = self.region(regions)
        no_word, no_region = ~question_mask, ~region_mask
        for layer in self.question_layers:
            words = layer["feed_forward"](layer["self"](words, words, no_word, no_word))
        for layer in self.region_layers:
            seen = layer["self"](seen, seen, no_region, no_region)
            seen = layer["feed_forward"](layer["guided"](seen, words, no_region, no_word))
        reduced = self.reduce_question(words, question_mask) + self.reduce_regions(seen, region_mask)
        return torch.as_tensor(self.fused(reduced))


class _Attention(nn.Module):
    """Attention that is added to its queries, and normalised behind."""

    def __init__(self, attention: MultiheadAttention, dropout: float) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = attention, Dropout(dropout), nn.LayerNorm(attention.embed_dim)

    def forward(self, queries: Tensor, keys: Tensor, no_query: Tensor, no_key: Tensor) -> Tensor:
        attended, _ = self.attention(queries, keys, keys, no_key, need_weights=False, query_padding_mask=no_query)
        return torch.as_tensor(self.norm(queries + self.dropout(attended)))


class _FeedForward(nn.Module):
    def __init__(self, width: int, inside: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, inside), nn.ReLU(), Dropout(dropout), nn.Linear(inside, width))
        self.dropout, self.norm = Dropout(dropout), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.as_tensor(self.norm(hidden + self.dropout(self.layers(hidden))))


class _Reduction(nn.Module):
    """All parts become one, by attention whose scores are a small network's of each part."""

    def __init__(self, name: str, sizes: MCANSizes, dropout: float, prior: MakePrior) -> None:
        super().__init__()
        width = sizes.width
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), Dropout(dropout), nn.Linear(width, 1))
        self.attention = LatentAttention(name, prior(width, 1))
        self.merge = nn.Linear(width, sizes.reduced)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(parts).transpose(-1, -2).unsqueeze(-2)  # [..., B, 1, 1, N]
        values = parts.unsqueeze(-3)  # one head
        context = self.attention(scores, values, keys=values, layout=Dense(mask[:, None, None])).context
        return torch.as_tensor(self.merge(context.flatten(-3)))
