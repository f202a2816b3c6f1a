"""Visual question answering: a question and the regions of a photograph give an answer; three models of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyro
import torch
from pyro.distributions import Bernoulli
from torch import Tensor, nn

from pyro_attention import (
    AlignmentPrior,
    ContextualGammaPrior,
    Dense,
    LatentAttention,
    MultiheadAttention,
    TokenLikelihood,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.families.base import Prior
from pyro_attention.layers.scores import Additive, ScaledDotProduct
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.layers import encode_sequence
from pyro_attention.ops.noise import Dropout

Likelihood = Literal["single", "scores"]
MakePrior = Callable[[int, int], Prior]
MakeNormalizer = Callable[[int], Normalizer]


class AnswerModel(nn.Module):
    r"""Answer to a question about regions: the site ``answer``, in a plate over questions.

    .. math:: a \sim \mathrm{Categorical}(\mathrm{softmax}(W h + b)) \quad\text{or}\quad
              s_a \sim \mathrm{Bernoulli}(\sigma(W h + b)_a)

    With "single" an answer is one class. With "scores" it is a soft score in [0, 1] for each class, such as
    :math:`\min(\text{number of humans} / 3, 1)`; the log probability is then the binary cross-entropy, summed over
    classes. A subclass computes the features ``h`` in :meth:`features`, where its attention sites are.

    Args:
        width: Width of the features.
        answers: Number of answers.
        likelihood: "single" or "scores".

    Raises:
        ValueError: At a call: shapes that do not fit, a question without a word, or a photograph without a region.

    Source: Teney et al. (2018), Tips and Tricks for Visual Question Answering, section 3.2 (scores); Deng et al.
    (2018), Latent Alignment and Variational Attention, appendix B (single).
    """

    region_dims = 3  # [B, N, F]; a model of several views has one more

    def __init__(self, width: int, answers: int, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood: Likelihood = likelihood
        self.output = nn.Linear(width, answers)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        """What an answer is read from, ``[..., B, width]``; called in the plate over questions."""
        raise NotImplementedError

    def forward(
        self,
        question: Tensor,
        question_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Logits of all answers.

        Args:
            question: Ids of words ``[B, M]``.
            question_mask: True at words, False at the padding behind them, ``[B, M]``.
            regions: Features ``[B, N, F]``, or ``[B, V, N, F]`` of a model of several views.
            region_mask: True at regions, False at padding, shaped like the regions without their features.
            answer: Classes ``[B]``, or with the likelihood "scores" soft scores ``[B, answers]``; drawn when omitted.

        Returns:
            ``[..., B, answers]``.
        """
        self._check(question, question_mask, regions, region_mask)
        pyro.module("answermodel", self)
        with pyro.plate("questions", question.size(0), dim=-1):
            features = self.features(question, question_mask, regions, region_mask)
            if self.likelihood == "single":
                likelihood = TokenLikelihood(features, self.output.weight, self.output.bias)
                pyro.sample("answer", likelihood, obs=answer)
                return likelihood.logits
            logits: Tensor = self.output(features)
            # soft scores lie between the two values that a Bernoulli variable has, so its own check is off
            pyro.sample("answer", Bernoulli(logits=logits, validate_args=False).to_event(1), obs=self._scores(answer))
        return logits

    def last_state(self, lstm: nn.LSTM, words: Tensor, mask: Tensor) -> Tensor:
        """State ``[B, hidden]`` of an LSTM after the last word of every question."""
        states = encode_sequence(lstm, words, mask)
        return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]

    def _scores(self, answer: Tensor | None) -> Tensor | None:
        validates = torch.distributions.Distribution._validate_args  # each look at a value waits for the device
        if validates and answer is not None and not bool(((answer >= 0) & (answer <= 1)).all()):
            low, high = answer.min().item(), answer.max().item()
            raise ValueError(f"answer has soft scores from {low} to {high}, expected numbers in [0, 1]")
        return answer

    def _check(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> None:
        if (
            question_mask.shape != question.shape
            or regions.dim() != self.region_dims
            or region_mask.shape != regions.shape[:-1]
            or len(regions) != len(question)
        ):
            shapes = ", ".join(str(tuple(one.shape)) for one in (question, question_mask, regions, region_mask))
            views = "" if self.region_dims == 3 else "views, "
            raise ValueError(
                f"question, question_mask, regions and region_mask have shapes {shapes}, expected [questions, words] "
                f"twice, [questions, {views}regions, features], and the same without the features"
            )
        if not torch.distributions.Distribution._validate_args:
            return
        for name, mask in (("questions without a word", question_mask), ("photographs without a region", region_mask)):
            empty = ~mask.flatten(0, -2).any(-1)
            if empty.any():
                raise ValueError(
                    f"the batch has {name}, at places {empty.nonzero().flatten().tolist()}; leave them out"
                )


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
        prior: MakePrior = ContextualGammaPrior,
        normalizer: MakeNormalizer = lambda heads: Softmax(),
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
