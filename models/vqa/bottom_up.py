"""One latent alignment from a question to the region that answers it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.vqa.answers import AnswerModel, Likelihood
from pyro_attention import Additive, AlignmentPrior, Dense, LatentAttention, SparseAlignmentPrior
from pyro_attention.families.base import Prior
from pyro_attention.ops.noise import Dropout


class BottomUp(AnswerModel):
    r"""A question looks at one region, the latent alignment; the answer is read from that region and the question.

    .. math:: \tilde x = \mathrm{LSTM}(q), \qquad z \sim \mathrm{softmax}(v^\top \tanh(W_q \tilde x + W_r r)), \qquad
              h = \mathrm{ReLU}(W [r_z; \tilde x])

    The site ``alignment`` lies in the plate over questions; the alignments can be summed out, drawn or relaxed, or the
    weights be those of a Gamma or LogNormal prior.

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features.
        answers: Number of answers.
        embedding: Width of a word vector.
        hidden: Width of the question, of the attention and of what the answer is read from.
        context_layers: Layers of a Transformer encoder in which the regions see each other first; none in the paper,
            whose regions are boxes that an object detector has looked around. Where a region is only its own pixels,
            it cannot know otherwise what is left of it.
        heads: Heads of these layers.
        dropout: Dropout ahead of the output layer.
        likelihood: "single" as in the paper, or "scores".
        prior: Prior of the attention: that of the scores by default.

    Example:
        >>> from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
        >>> model = BottomUp(9, 4, 3, embedding=8, hidden=8)
        >>> words, regions = torch.tensor([[5, 2]]), torch.randn(1, 6, 4)
        >>> loss = AlignmentELBO(max_plate_nesting=1)(model, AttentionGuide(model, Marginal()))
        >>> loss(words, words > 0, regions, torch.ones(1, 6, dtype=torch.bool), torch.tensor([2])).dim()
        0

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 4 and appendix B; Anderson et al.
    (2018), Bottom-Up and Top-Down Attention.
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        answers: int,
        *,
        embedding: int = 300,
        hidden: int = 1024,
        context_layers: int = 0,
        heads: int = 4,
        dropout: float = 0.5,
        likelihood: Likelihood = "single",
        prior: Prior | None = None,
    ) -> None:
        super().__init__(hidden, answers, likelihood)
        self.context = _Context(features, hidden, heads, context_layers) if context_layers else None
        features = hidden if context_layers else features
        self.region_features = features
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.score = Additive(hidden, features, hidden)
        self.attention = LatentAttention("alignment", AlignmentPrior() if prior is None else prior)
        self.hidden = nn.Linear(features + hidden, hidden)
        self.dropout = Dropout(dropout)

    def encode_question(self, question: Tensor, question_mask: Tensor) -> Tensor:
        """State ``[B, hidden]`` after the last word."""
        return self.last_state(self.lstm, self.embedding(question), question_mask)

    def encode_regions(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        """What can be seen of the regions, ``[B, N, region_features]``."""
        return regions if self.context is None else torch.as_tensor(self.context(regions, region_mask))

    def look(
        self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The question ``[B, hidden]``, what can be seen ``[B, N, features]``, and its scores ``[B, 1, N]``."""
        encoded = self.encode_question(question, question_mask)
        seen = self.encode_regions(regions, region_mask)
        return encoded, seen, self.score(encoded.unsqueeze(-2), seen)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        encoded, seen, scores = self.look(question, question_mask, regions, region_mask)
        values, layout = seen.unsqueeze(-3), Dense(region_mask[:, None], event_dim=2)
        context = self.attention(scores, values, keys=values, layout=layout).context.squeeze(-2)
        return self._read(context, encoded)

    def mixture(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        r"""Log probabilities of all answers when the alignment is summed out, ``[B, answers]``.

        .. math:: \log \sum_z p(z \mid q, r)\, f(a \mid r_z, q)
        """
        encoded, seen, scores = self.look(question, question_mask, regions, region_mask)
        scores, prior = scores.squeeze(-2), self.attention.prior
        if isinstance(prior, SparseAlignmentPrior):
            log_prior = prior.soft_weights(scores, Dense(region_mask)).log()
        else:
            log_prior = scores.masked_fill(~region_mask, -torch.inf).log_softmax(-1)
        logits = self.output(self._read(seen, encoded.unsqueeze(-2)))
        log_f = logits.log_softmax(-1) if self.likelihood == "single" else nn.functional.logsigmoid(logits)
        return torch.logsumexp(log_prior.unsqueeze(-1) + log_f, -2)

    def _read(self, context: Tensor, encoded: Tensor) -> Tensor:
        both = torch.cat([context, encoded.expand(*context.shape[:-1], -1)], -1)
        return self.dropout(self.hidden(both).relu())


class _Context(nn.Module):
    """A Transformer encoder over the regions."""

    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.region = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        seen: Tensor = self.encoder(self.region(regions), src_key_padding_mask=~region_mask)
        return seen
