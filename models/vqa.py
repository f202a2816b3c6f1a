"""Three models of visual question answering, from a question and the regions of a photograph to an answer."""

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
Merge = Literal["attention", "concatenation", "first"]


class AnswerModel(nn.Module):
    r"""Base class of models whose site ``answer`` is the answer to a question, in the plate ``questions``.

    .. math:: p(y, S \mid x) = p(S \mid x)\, \mathrm{softmax}(W h + b)_y \quad\text{or}\quad
              p(S \mid x) \prod_a \mathrm{Bernoulli}(y_a; \sigma(W h + b)_a)

    x are the question and the regions. With "single" an answer is one class. With "scores" it is a soft score in [0, 1]
    for each class, such as :math:`\min(\text{number of people} / 3, 1)`; the log probability is then the binary
    cross-entropy, summed over classes. A subclass computes the features h in :meth:`features`, with its attention
    sites.

    Args:
        width: Width of the features.
        answers: Number of answers.
        likelihood: "single" or "scores".

    Raises:
        ValueError: At a call, shapes do not fit, a question has no word, or a photograph has no region.

    Source: Teney et al. (2018), Tips and Tricks for Visual Question Answering, section 3.2 (scores); Deng et al.
    (2018), Latent Alignment and Variational Attention, appendix B (single).
    """

    region_dims = 3  # dimensions [B, N, F] of the regions; a model of several views has one more

    def __init__(self, width: int, answers: int, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood: Likelihood = likelihood
        self.output = nn.Linear(width, answers)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        """Return the features ``[..., B, width]`` for the answer; called in the plate over questions."""
        raise NotImplementedError

    def forward(
        self,
        question: Tensor,
        question_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Sample or observe the answers, and return the logits of all answers.

        Args:
            question: Ids of words ``[B, M]``.
            question_mask: True at words, False at the padding, which comes last, ``[B, M]``.
            regions: Features ``[B, N, F]``, or ``[B, V, N, F]`` for a model of several views.
            region_mask: True at regions, False at padding, with the shape of the regions without features.
            answer: Classes ``[B]``, or soft scores ``[B, answers]`` for the likelihood "scores"; drawn when omitted.

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
            # soft scores lie between 0 and 1, which the validation of Bernoulli would refuse
            pyro.sample("answer", Bernoulli(logits=logits, validate_args=False).to_event(1), obs=self._scores(answer))
        return logits

    def last_state(self, lstm: nn.LSTM, words: Tensor, mask: Tensor) -> Tensor:
        """Return the state ``[B, hidden]`` of an LSTM after the last word of every question."""
        states = encode_sequence(lstm, words, mask)
        return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]

    def _scores(self, answer: Tensor | None) -> Tensor | None:
        validates = torch.distributions.Distribution._validate_args  # reading a value would wait for the device
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
            arguments = (question, question_mask, regions, region_mask)
            shapes = ", ".join(str(tuple(argument.shape)) for argument in arguments)
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
                    f"the batch has {name}, at indices {empty.nonzero().flatten().tolist()}; leave them out"
                )


class BottomUp(AnswerModel):
    r"""Model that answers a question from the question and one region, whose index is the latent alignment.

    .. math:: p(y, z \mid q, r) = p(z \mid q, r)\, p(y \mid h), \qquad \tilde x = \mathrm{LSTM}(q), \\
              p(z \mid q, r) = \mathrm{softmax}(v^\top \tanh(W_q \tilde x + W_r r)), \qquad
              h = \mathrm{ReLU}(W [r_z; \tilde x])

    The site ``alignment`` lies in the plate over questions. Alignments can be summed out, drawn or relaxed. Under a
    Gamma or LogNormal prior the weights of the regions are random instead.

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features.
        answers: Number of answers.
        embedding: Width of a word vector.
        hidden: Width of the question, of the attention and of the features for the answer.
        context_layers: Layers of a Transformer encoder over the regions; none in the paper, whose regions are boxes of
            an object detector that has seen their surroundings. Regions that are only pixels need these layers to
            represent what is next to them.
        heads: Heads of these layers.
        dropout: Dropout before the output layer.
        likelihood: "single" as in the paper, or "scores".
        prior: Prior of the attention; an alignment prior by default.

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
        """Return the state ``[B, hidden]`` after the last word."""
        return self.last_state(self.lstm, self.embedding(question), question_mask)

    def encode_regions(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        """Return the features of the regions for the attention, ``[B, N, region_features]``."""
        return regions if self.context is None else torch.as_tensor(self.context(regions, region_mask))

    def look(
        self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return question ``[B, hidden]``, regions ``[B, N, region_features]``, and their scores ``[B, 1, N]``."""
        encoded = self.encode_question(question, question_mask)
        encoded_regions = self.encode_regions(regions, region_mask)
        return encoded, encoded_regions, self.score(encoded.unsqueeze(-2), encoded_regions)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        encoded, encoded_regions, scores = self.look(question, question_mask, regions, region_mask)
        values, layout = encoded_regions.unsqueeze(-3), Dense(region_mask[:, None], event_dim=2)
        context = self.attention(scores, values, keys=values, layout=layout).context.squeeze(-2)
        return self._answer_features(context, encoded)

    def mixture(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        r"""Compute the log probabilities of all answers with the alignment summed out, ``[B, answers]``.

        .. math:: \log \sum_z p(z \mid q, r)\, f(a \mid r_z, q)
        """
        encoded, encoded_regions, scores = self.look(question, question_mask, regions, region_mask)
        scores, prior = scores.squeeze(-2), self.attention.prior
        if isinstance(prior, SparseAlignmentPrior):
            log_prior = prior.soft_weights(scores, Dense(region_mask)).log()
        else:
            log_prior = scores.masked_fill(~region_mask, -torch.inf).log_softmax(-1)
        logits = self.output(self._answer_features(encoded_regions, encoded.unsqueeze(-2)))
        log_f = logits.log_softmax(-1) if self.likelihood == "single" else nn.functional.logsigmoid(logits)
        return torch.logsumexp(log_prior.unsqueeze(-1) + log_f, -2)

    def _answer_features(self, context: Tensor, question: Tensor) -> Tensor:
        joined = torch.cat([context, question.expand(*context.shape[:-1], -1)], -1)
        return self.dropout(self.hidden(joined).relu())


class _Context(nn.Module):
    """Transformer encoder over the regions."""

    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.region = nn.Linear(features, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(self.region(regions), src_key_padding_mask=~region_mask)
        return encoded


@dataclass(frozen=True)
class MCANSizes:
    """Sizes of an MCAN; the defaults are those of the paper.

    Attributes:
        embedding: Width of a word vector.
        width: Width of every layer.
        heads: Heads of the attention; divides the width.
        layers: Layers over the question, and layers over the regions.
        feed_forward: Hidden width of a feed-forward network.
        reduced: Width of the reduced question and the reduced regions.
    """

    embedding: int = 300
    width: int = 512
    heads: int = 8
    layers: int = 6
    feed_forward: int = 2048
    reduced: int = 1024


class MCAN(AnswerModel):
    r"""Modular co-attention network: self-attention over question and regions, guided attention, and their fusion.

    .. math:: p(y, S \mid x) = p(y \mid h) \prod_l p(S_l \mid x, S_{<l}), \qquad
              X^{(l)} = \mathrm{SA}(X^{(l-1)}), \\
              Y^{(l)} = \mathrm{GA}(\mathrm{SA}(Y^{(l-1)}), X^{(L)}), \qquad
              h = \mathrm{LN}(W_x \textstyle\sum_i w_i x_i + W_y \sum_j w'_j y_j)

    X are the words of the question and Y the regions. Every attention l is a latent site, with the names
    ``question.0``, ``regions.0.self``, ``regions.0.guided``, ..., ``reduce.question`` and ``reduce.regions``. The
    answer is read from the regions with the weights of ``reduce.regions``. A guide with patterns makes some sites
    Bayesian and others soft:
    ``AttentionGuide(model, {"*guided": Weibull(), "*": Soft()})``.

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features.
        answers: Number of answers.
        sizes: Widths and numbers of layers.
        dropout: Dropout of attention weights and of the output of every layer.
        likelihood: "scores" as in the paper, or "single".
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads. The two reductions, which have one query each, always
            use softmax.

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
        encoded: Tensor = self.region(regions)
        no_word, no_region = ~question_mask, ~region_mask
        for layer in self.question_layers:
            words = layer["feed_forward"](layer["self"](words, words, no_word, no_word))
        for layer in self.region_layers:
            encoded = layer["self"](encoded, encoded, no_region, no_region)
            encoded = layer["feed_forward"](layer["guided"](encoded, words, no_region, no_word))
        reduced = self.reduce_question(words, question_mask) + self.reduce_regions(encoded, region_mask)
        return torch.as_tensor(self.fused(reduced))


class _Attention(nn.Module):
    """Attention layer with a skip connection, followed by layer norm."""

    def __init__(self, attention: MultiheadAttention, dropout: float) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = attention, Dropout(dropout), nn.LayerNorm(attention.embed_dim)

    def forward(self, queries: Tensor, keys: Tensor, no_query: Tensor, no_key: Tensor) -> Tensor:
        attended, _ = self.attention(queries, keys, keys, no_key, need_weights=False, query_padding_mask=no_query)
        return torch.as_tensor(self.norm(queries + self.dropout(attended)))


class _FeedForward(nn.Module):
    """Feed-forward network with a skip connection, followed by layer norm."""

    def __init__(self, width: int, inside: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, inside), nn.ReLU(), Dropout(dropout), nn.Linear(inside, width))
        self.dropout, self.norm = Dropout(dropout), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.as_tensor(self.norm(hidden + self.dropout(self.layers(hidden))))


class _Reduction(nn.Module):
    """Weighted mean of all words or regions, by attention with scores from a small network."""

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
    r"""Model of several views of a photograph, in which the regions of the first view attend to those of other views.

    .. math:: p(y, S \mid x) = p(y \mid h) \prod_{v \ge 1} p(S^{(v)} \mid \Phi^{(v)}), \qquad
              \Phi^{(v)}_{ij} = \frac{(Q x^{(0)}_i) \cdot (K_v x^{(v)}_j)}{\sqrt d}, \\
              m_i = \mathrm{LN}\Big(x^{(0)}_i + \sum_{v \ge 1} \sum_j W^{(v)}_{ij} x^{(v)}_j\Big)

    The values are the features; of several heads, each weighs its part of the features. The question then attends to
    the merged regions m by softmax weights without a latent site, as in Pythia. The features h are the product of
    question and attended regions. The sites are ``view.1``, ``view.2``, and so on. Without attention between views the
    question attends to the regions of all views side by side, or to those of the first view, and this attention is the
    site ``regions``.

    Args:
        vocabulary: Number of words; 0 is the padding.
        features: Width of a region's features, in every view.
        answers: Number of answers.
        views: Number of views.
        merge: How the views come together: by "attention" of the regions of the first view to the others, by
            "concatenation" of the regions of all views, or not at all, with the "first" view alone.
        heads: Number of heads of the attention to another view; divides ``hidden``.
        embedding: Width of a word vector.
        hidden: Width of queries, keys, the question and the features for the answer.
        dropout: Dropout of attention weights and before the output layer.
        likelihood: "scores" as in the paper, or "single".
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads, such as softmax, doubly normalized or hybrid.

    Raises:
        ValueError: The number of heads does not divide ``hidden``.

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
        merge: Merge = "attention",
        heads: int = 1,
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
        self.merge, self.heads = merge, heads
        if merge == "attention":
            if hidden % heads:
                raise ValueError(
                    f"hidden is {hidden}, and heads is {heads}; expected a number of heads that divides it"
                )
            self.query = nn.Linear(features, hidden)
            self.keys = nn.ModuleList(nn.Linear(features, hidden) for _ in range(views - 1))
            self.score = ScaledDotProduct()
            self.attention = nn.ModuleList(
                LatentAttention(
                    f"view.{view + 1}", prior(hidden // heads, heads), normalizer=normalizer(heads), dropout=dropout
                )
                for view in range(views - 1)
            )
            self.norm = nn.LayerNorm(features)
        else:
            self.reading = LatentAttention("regions", prior(features, 1))
        self.from_region, self.from_question = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.looking, self.seen = nn.Linear(hidden, 1), nn.Linear(features, hidden)
        self.asked = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)

    def features(self, question: Tensor, question_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Tensor:
        asked = self.last_state(self.lstm, self.embedding(question), question_mask)
        if self.merge == "concatenation":
            merged, mask = regions.flatten(1, 2), region_mask.flatten(1, 2)
        else:
            merged, mask = regions[:, 0], region_mask[:, 0]
        if self.merge == "attention":
            merged = self._attended(regions, region_mask)
        joint = self.from_region(merged).relu() * self.from_question(asked).relu().unsqueeze(-2)
        scores = self.looking(self.dropout(joint)).transpose(-1, -2)  # [..., B, 1, N]
        if self.merge == "attention":
            attended = (Dense(mask[:, None]).softmax(scores) @ merged).squeeze(-2)
        else:
            values, layout = merged.unsqueeze(-3), Dense(mask[:, None, None])  # one head
            attended = self.reading(scores.unsqueeze(-3), values, keys=values, layout=layout).context.flatten(-3)
        return self.dropout(self.seen(attended).relu() * self.asked(asked).relu())

    def _attended(self, regions: Tensor, region_mask: Tensor) -> Tensor:
        """Return the regions of the first view plus their contexts in all other views, ``[..., B, N, features]``."""
        first, mask = regions[:, 0], region_mask[:, 0]
        merged, width = first, first.size(-1)
        queries = self._by_head(self.query(first))
        for view, (key, attention) in enumerate(zip(self.keys, self.attention, strict=True), start=1):
            values, keys = self._by_head(regions[:, view]), self._by_head(key(regions[:, view]))
            allowed = mask[:, None, :, None] & region_mask[:, view, None, None]
            context = attention(self.score(queries, keys), values, keys=keys, layout=Dense(allowed)).context
            merged = merged + context.transpose(-3, -2).flatten(-2)[..., :width]
        return torch.as_tensor(self.norm(merged))

    def _by_head(self, vectors: Tensor) -> Tensor:
        """Divide vectors ``[B, N, F]`` into equal parts of the heads, ``[B, heads, N, part]``; zeros fill the last."""
        filled = nn.functional.pad(vectors, (0, -vectors.size(-1) % self.heads))
        return filled.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
