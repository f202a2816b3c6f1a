"""Regions of several detectors, brought together by attention from the first to each of the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.vqa.answers import AnswerModel, Likelihood
from pyro_attention import ContextualGammaPrior, Dense, LatentAttention, ScaledDotProduct, Softmax
from pyro_attention.families.base import Prior
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.noise import Dropout


class MultiView(AnswerModel):
    r"""Every region of the first view attends to the regions of each other view; the sum is normalised.

    .. math:: y_i = \mathrm{LN}\Big(x^{(0)}_i + \sum_{v \ge 1} \sum_j W^{(v)}_{ij} x^{(v)}_j\Big), \qquad
              \Phi^{(v)}_{ij} = \frac{(Q x^{(0)}_i) \cdot (K_v x^{(v)}_j)}{\sqrt d}

    The values are the features themselves. The question then looks at the regions :math:`y` (softmax weights, no latent
    site, as in Pythia), and the answer is read from the product of both. The sites are ``view.1``, ``view.2``, ...

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features, in every view.
        answers: Number of answers.
        views: Number of views.
        embedding: Width of a word vector.
        hidden: Width of queries, keys, the question and what the answer is read from.
        dropout: Dropout of attention weights and ahead of the output layer.
        likelihood: "scores" as in the paper, or "single".
        prior: Makes a prior network from (key width, heads); there is one head.
        normalizer: Makes a normalizer from the number of heads: softmax, doubly normalised or hybrid.

    Example:
        >>> from pyro_attention import AttentionGuide, DoublyNormalized, Soft
        >>> model = MultiView(9, 4, 3, views=3, hidden=8, normalizer=lambda heads: DoublyNormalized())
        >>> words, regions = torch.tensor([[5, 2]]), torch.randn(1, 3, 6, 4)
        >>> real = torch.ones(1, 3, 6, dtype=torch.bool)
        >>> AttentionGuide(model, Soft()).run(words, words > 0, regions, real).output.shape
        torch.Size([1, 3])

    Source: Ding et al. (2020), Attention that does not Explain Away, section 6.1 and appendix B; Jiang et al. (2018),
    Pythia v0.1.
    """

    region_dims = 4

    def __init__(
        self,
        vocabulary: int,
        features: int,
        answers: int,
        *,
        views: int = 3,
        embedding: int = 300,
        hidden: int = 512,
        dropout: float = 0.1,
        likelihood: Likelihood = "scores",
        prior: Callable[[int, int], Prior] = ContextualGammaPrior,
        normalizer: Callable[[int], Normalizer] = lambda heads: Softmax(),
    ) -> None:
        super().__init__(hidden, answers, likelihood)
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.query = nn.Linear(features, hidden)
        self.keys = nn.ModuleList(nn.Linear(features, hidden) for _ in range(views - 1))
        self.score = ScaledDotProduct()
        self.attention = nn.ModuleList(
            LatentAttention(f"view.{view + 1}", prior(hidden, 1), normalizer=normalizer(1), dropout=dropout)
            for view in range(views - 1)
        )
        self.norm = nn.LayerNorm(features)
        self.from_region, self.from_question = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.looking, self.seen = nn.Linear(hidden, 1), nn.Linear(features, hidden)
        self.asked = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        asked = self.last_state(self.lstm, self.embedding(question), question_mask)
        merged = self._merge(regions, region_mask)
        joint = self.from_region(merged).relu() * self.from_question(asked).relu().unsqueeze(-2)
        weights = Dense(region_mask[:, 0, None]).softmax(self.looking(self.dropout(joint)).transpose(-1, -2))
        seen = (weights @ merged).squeeze(-2)
        return self.dropout(self.seen(seen).relu() * self.asked(asked).relu())

    def _merge(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        """Regions of the first view, with what they attend to in the others, ``[..., B, N, features]``."""
        first, mask = regions[:, 0], region_mask[:, 0]
        merged, queries = first, self.query(first)
        for view, (key, attention) in enumerate(zip(self.keys, self.attention, strict=True), start=1):
            values, keys = regions[:, view].unsqueeze(1), key(regions[:, view]).unsqueeze(1)
            allowed = mask[:, None, :, None] & region_mask[:, view, None, None]
            context = attention(
                self.score(queries.unsqueeze(1), keys), values, keys=keys, layout=Dense(allowed)
            ).context
            merged = merged + context.squeeze(-3)
        return torch.as_tensor(self.norm(merged))
