"""Training steps of whole networks: classifiers, translation with latent alignments, MCAN, and a converted BERT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.elbo import ELBOModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention

from experiments.benchmarks.measuring import Benchmark, Step, training_step
from experiments.options import Precision
from experiments.training import resolve_precision
from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.nmt import Translation, TranslationSizes
from models.vqa import MCAN, MCANSizes
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    EvidenceELBO,
    FromPrior,
    LogNormal,
    MultiheadAttention,
    ScorePrior,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.likelihoods import TokenLikelihood
from pyro_attention.families.base import Family, Prior
from pyro_attention.families.key_network import KeyNetwork

# self-attention with this library, and written without it

CONCENTRATION, DROPOUT = 10.0, 0.1
BY_HAND, FUSED, MC_DROPOUT = "softmax, hand-written", "scaled_dot_product_attention", "MC dropout"
NAIVE, STOCK = "naive Bayesian, hand-written", "stock Pyro, two passes"
# families are made with each step: on torch's default device, as its network
OURS: dict[str, Callable[[], Family]] = {"soft, ours": Soft, "Weibull, ours": partial(Weibull, CONCENTRATION)}
CONTESTANTS = (BY_HAND, FUSED, MC_DROPOUT, *OURS, NAIVE, STOCK)


@dataclass(frozen=True)
class Classified:
    """Sizes of the classifier and its batch."""

    batch: int = 32
    length: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2
    classes: int = 2
    first: bool = False  # whether in the last layer the first position alone attends


class PeerAttention(nn.Module):
    """Multi-head attention of a contestant, written without this library.

    Bayesian contestants have Weibull weights S with mean softmax(scores) and a contextual Gamma prior for every query
    and key. By hand, the KL from torch's distributions evaluates lgamma of the prior at every query and key, though it
    depends on the key alone. With stock Pyro S is the value of a sample site.
    """

    def __init__(self, contestant: str, sizes: Classified, name: str) -> None:
        super().__init__()
        self.contestant, self.heads, self.name = contestant, sizes.heads, name
        self.in_guide, self.kl = False, torch.zeros(())
        self.query, self.key, self.value, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(4))
        if contestant in (NAIVE, STOCK):
            self.prior = KeyNetwork(sizes.width // sizes.heads)

    def forward(self, *vectors: Tensor, **_: bool) -> tuple[Tensor]:
        layers = self.query, self.key, self.value
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in zip(layers, vectors, strict=True))
        return (self.out(self._mix(q, k, v).transpose(1, 2).flatten(-2)),)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.contestant == FUSED:
            return scaled_dot_product_attention(q, k, v)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        if self.contestant == MC_DROPOUT:  # random weights without a posterior
            weights = dropout(weights, DROPOUT)
        elif self.contestant != BY_HAND:
            weights = self._sample(weights / math.gamma(1 + 1 / CONCENTRATION), k)
            weights = weights / weights.sum(-1, keepdim=True)
        return weights @ v

    def _sample(self, scale: Tensor, k: Tensor) -> Tensor:
        sample: Tensor
        if self.in_guide:
            sample = pyro.sample(self.name, dist.Weibull(scale, CONCENTRATION).to_event(3))
            return sample
        prior = self.prior(k, Dense()).exp().expand_as(scale)
        if self.contestant == STOCK:
            sample = pyro.sample(self.name, dist.Gamma(prior, 1.0).to_event(3))
            return sample
        posterior = TorchWeibull(scale, torch.full_like(scale, CONCENTRATION), validate_args=False)
        self.kl = kl_divergence(posterior, Gamma(prior, torch.ones_like(scale), validate_args=False)).sum()
        return posterior.rsample()


class Classifier(nn.Module):
    """Transformer encoder, mean over positions and linear classifier, as a Pyro model and by hand.

    Attention of this library has a contextual Gamma prior.
    """

    attention: Any

    def __init__(self, contestant: str, sizes: Classified) -> None:
        super().__init__()
        width, hidden, names = sizes.width, 4 * sizes.width, [f"layers.{i}" for i in range(sizes.layers)]
        self.attention = nn.ModuleList()
        for name in names:
            if contestant in OURS:
                prior = ContextualGammaPrior(width // sizes.heads)
                self.attention.append(MultiheadAttention(width, sizes.heads, name=name, prior=prior))
            else:
                self.attention.append(PeerAttention(contestant, sizes, name))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in names
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in 2 * names)
        self.out, self.first = nn.Linear(width, sizes.classes), sizes.first

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, classes]`` of vectors ``[B, N, D]``."""
        for i, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            rows = x[..., :1, :] if self.first and attention is self.attention[-1] else x
            x = self.norms[2 * i](rows + attention(rows, x, x, need_weights=False)[0])
            x = self.norms[2 * i + 1](x + feed_forward(x))
        logits: Tensor = self.out(x.mean(-2))
        return logits

    def forward(self, x: Tensor, labels: Tensor) -> None:
        with pyro.plate("batch", len(x)):
            pyro.sample("labels", dist.Categorical(logits=self.logits(x)), obs=labels)

    def guide(self, x: Tensor, labels: Tensor) -> None:  # noqa: ARG002
        """Run the network as the guide of stock Pyro, which needs a whole pass too."""
        for layer in self.attention:
            layer.in_guide = True
        with pyro.plate("batch", len(x)):
            self.logits(x)
        for layer in self.attention:
            layer.in_guide = False

    def loss_by_hand(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, summed over the batch, plus the KL that the attention layers leave behind."""
        loss = cross_entropy(self.logits(x), labels, reduction="sum")
        return loss + sum(layer.kl for layer in self.attention)


def make_loss(contestant: str, sizes: Classified) -> tuple[Classifier, Callable[..., Tensor]]:
    """Return a network, and the loss of inputs ``[B, N, D]`` and labels ``[B]``.

    Stock Pyro uses the KL of Weibull and Gamma that this library registers: torch and Pyro have none and would sample
    it.
    """
    network = Classifier(contestant, sizes)
    if contestant in OURS:
        return network, AttentionELBO()(network, AttentionGuide(network, OURS[contestant]()))
    if contestant == STOCK:
        return network, partial(TraceMeanField_ELBO().differentiable_loss, network, network.guide)
    return network, network.loss_by_hand


def _classified(sizes: Classified) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(sizes.batch, sizes.length, sizes.width), torch.randint(sizes.classes, (sizes.batch,))


def make_classifier_step(contestant: str, sizes: Classified) -> Step:
    """Make a training step (forward, backward, Adam) of a contestant, which returns the loss."""
    arguments = _classified(sizes)
    network, loss = make_loss(contestant, sizes)
    return training_step(network, *arguments, loss=loss)


CLASSIFIERS = Benchmark(
    title="Self-attention",
    text="Training steps of a two-layer transformer classifier: batch 32, 64 positions, width 128, 4 heads.",
    make_step=make_classifier_step,
    contestants=CONTESTANTS,
    sizes={"32 x 64 positions": Classified()},
    rounds=30,
    memory=False,
)

# Several draws of the evidence

DRAWS = 8
OF_LAST, OF_ALL = f"{DRAWS} draws of the last layer", f"{DRAWS} draws of all layers"


def make_evidence_step(contestant: str, sizes: Classified) -> Step | None:
    """Make a training step of soft attention, or of the evidence by draws of a learned width."""
    if contestant == OF_ALL and sizes.first:
        return None
    arguments, network = _classified(sizes), Classifier("soft, ours", sizes)
    drawn = {OF_LAST: list(network.attention)[-1:], OF_ALL: list(network.attention)}.get(contestant, [])
    for layer in drawn:
        layer.attention.prior = ScorePrior(LogNormal(0.5, learnable=True))
    families: dict[str, Family] = {layer.attention.name: FromPrior() for layer in drawn}
    guide = AttentionGuide(network, families if contestant == OF_ALL else {**families, "*": Soft()})
    elbo = EvidenceELBO(DRAWS, max_plate_nesting=1) if drawn else AttentionELBO()
    return training_step(network, *arguments, loss=elbo(network, guide))


EVIDENCE = Benchmark(
    title="Several draws of the evidence",
    text="Training steps of the classifier of the self-attention benchmark, by the evidence of LogNormal weights of a "
    "learned width. Its last layer is read by the mean over all positions, or at its first position, which alone "
    "attends there; the last of three layers is then a query behind two.",
    make_step=make_evidence_step,
    contestants=("soft", OF_LAST, OF_ALL),
    sizes={
        "two layers, by the mean": Classified(),
        "two layers, at the first position": Classified(first=True),
        "a query behind two layers": Classified(layers=3, first=True),
    },
    rounds=10,
    memory=False,
)

# Translation with latent alignments


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch and a network: source and target positions, sentences, width and vocabulary; the precision."""

    sources: int = 25
    targets: int = 25
    batch: int = 16
    width: int = 256
    vocabulary: int = 10_000
    precision: Precision = "32"


# Exact sums


class LastLayer(nn.Module):
    """Last layer of a translation model, p(token | alignment, states), with a prior of the alignment.

    It is a Pyro model whose enumerated site is the alignment.
    """

    def __init__(self, contestant: str, sizes: Sizes) -> None:
        super().__init__()
        self.contestant = contestant
        self.scores = nn.Parameter(torch.randn(sizes.batch, sizes.targets, sizes.sources))
        self.keys = nn.Parameter(torch.randn(sizes.batch, sizes.sources, sizes.width))
        self.states = nn.Parameter(torch.randn(sizes.batch, sizes.targets, sizes.width))
        self.output = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, token: Tensor) -> None:
        pyro.module("translation", self)
        batch, targets = token.shape
        with pyro.plate("batch", batch, dim=-2), pyro.plate("targets", targets, dim=-1):
            alignment = dist.Categorical(logits=self.scores)
            z = pyro.sample("z", alignment, infer={"enumerate": "parallel"})
            features = (self.keys[torch.arange(batch)[:, None], z] + self.states).tanh()
            if self.contestant == "TokenLikelihood":
                likelihood = TokenLikelihood(features, self.output.weight, self.output.bias)
            else:  # without its check of all logits, which would be slower still
                likelihood = dist.Categorical(logits=self.output(features), validate_args=False)
            pyro.sample("token", likelihood, obs=token)

    def loss_by_hand(self, token: Tensor) -> Tensor:
        """Return the negative log evidence from all logits, ``[sources, batch, targets, vocabulary]``."""
        features = (self.keys.transpose(0, 1).unsqueeze(2) + self.states).tanh()
        index = token.expand(*features.shape[:-1]).unsqueeze(-1)
        log_f = self.output(features).log_softmax(-1).gather(-1, index).squeeze(-1)
        return -(log_f + self.scores.log_softmax(-1).movedim(-1, 0)).logsumexp(0).sum()


def make_sum(contestant: str, sizes: Sizes) -> Step:
    """Make forward and backward of the negative log evidence, which the step returns."""
    torch.manual_seed(0)
    model = LastLayer(contestant, sizes)
    token = torch.randint(sizes.vocabulary, (sizes.batch, sizes.targets))
    if contestant == "logsumexp, by hand":
        return training_step(model, token, loss=model.loss_by_hand, optimizer=None)
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss
    return training_step(model, model, lambda *_: None, token, loss=loss, optimizer=None)


ENUMERATION = Benchmark(
    title="Exact enumeration of alignments",
    text="Forward and backward of the last layer of a translation model, the alignment summed out by Pyro: 16 "
    "sentences of 25 words, width 256, 10000 tokens; and the logsumexp over all logits, by hand and without Pyro.",
    make_step=make_sum,
    contestants=("logsumexp, by hand", "Categorical", "TokenLikelihood"),
    sizes={f"{sources} sources": Sizes(sources) for sources in (10, 25, 50)},
)

# Inference schemes


def _translation(sizes: Sizes, prior: Prior | None) -> Translation:
    widths = TranslationSizes(*[sizes.width] * 4)
    return Translation(sizes.vocabulary, sizes.vocabulary, sizes=widths, prior=prior)


def random_sentences(sizes: Sizes) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw the arguments of a translation model: source, mask ``[B, sources]``, target twice, mask ``[B, targets]``."""
    shapes = ((sizes.batch, sizes.sources), (sizes.batch, sizes.targets))
    source, target = (torch.randint(sizes.vocabulary, shape) for shape in shapes)
    masks = [torch.ones_like(words, dtype=torch.bool) for words in (source, target)]
    return source, masks[0], target, target, masks[1]


def scheme_loss(contestant: Any, sizes: Sizes) -> ELBOModule:
    """Return the negative ELBO of an untrained translation model, a function of the model's arguments."""
    scheme = build_scheme(contestant, top_k=3)
    model = _translation(sizes, scheme.prior(sizes.width, 1))
    network = None
    if scheme.amortized:
        network = AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=sizes.width)
    return scheme.objective()(model, scheme.guide(model, network))


def make_scheme_step(contestant: Any, sizes: Sizes) -> Step | None:
    """Make a training step of an untrained translation model, which returns the negative ELBO."""
    if resolve_precision(sizes.precision, torch.get_default_device()) != sizes.precision:
        return None
    torch.manual_seed(0)
    loss, arguments = scheme_loss(contestant, sizes), random_sentences(sizes)
    # without the backward pass, as in training
    mixed = torch.autocast(arguments[0].device.type, torch.bfloat16, enabled=sizes.precision == "bf16-mixed")
    return training_step(loss, *arguments, loss=mixed(loss), learning_rate=0.0)


PRECISIONS: dict[str, Precision] = {"32 bits": "32", "bfloat16": "bf16-mixed"}
SCHEMES = Benchmark(
    title="Training steps by inference scheme",
    text="Training steps (forward, backward, Adam) of a translation model, untrained, by inference scheme: 16 "
    "sentences of 25 words, width 256, two layers, 10000 tokens; in 32 bits, and with matrix products in bfloat16. "
    "Sparse alignments are top-k sparsemax with k = 3, and have so many keys at every word before training; marginal "
    "and categorical_enum sum over all sources.",
    make_step=make_scheme_step,
    contestants=("soft", "marginal", "sparse_marginal", "categorical_enum", "sparse_enum"),
    sizes={
        f"{sources} sources, {name}": Sizes(sources, precision=precision)
        for sources in (10, 25)
        for name, precision in PRECISIONS.items()
    },
)

# Posterior samples

SAMPLES = 32


def make_guides(sizes: Sizes) -> tuple[AttentionGuide, AttentionGuide, tuple[Any, ...]]:
    """Return guides of soft and Weibull attention over one translation model, and the arguments of a pass."""
    torch.manual_seed(0)
    model = _translation(sizes, ContextualGammaPrior(sizes.width)).eval()
    guides = AttentionGuide(model, Soft()), AttentionGuide(model, Weibull())
    return *guides, random_sentences(sizes)[:4]


def make_samples(contestant: str, sizes: Sizes) -> Step:
    """Make a pass of soft attention without the log probabilities of the words, or samples of Weibull attention."""
    soft, weibull, arguments = make_guides(sizes)
    if contestant == "deterministic pass":
        return torch.no_grad()(partial(soft.run, *arguments))
    chunk = 1 if "one at a time" in contestant else SAMPLES
    return partial(sample_posterior, weibull, *arguments, num_samples=SAMPLES, chunk_size=chunk)


SAMPLING = Benchmark(
    title="Posterior samples of an alignment",
    text="Posterior samples of the alignment of 16 sentences of 25 words, and one deterministic pass of the model.",
    make_step=make_samples,
    contestants=("deterministic pass", f"{SAMPLES} samples, one at a time", f"{SAMPLES} samples, chunked"),
    sizes={"25 words": Sizes()},
    memory=False,
)

# Predictions

PASS, ALL, LAST = "a pass", f"{SAMPLES} draws", f"{SAMPLES} draws of the last layer"


def make_predictions(contestant: str, sizes: Classified) -> Step:
    """Make a pass of the classifier without gradient, or predictions by draws of all layers or of the last one."""
    torch.manual_seed(0)
    network = Classifier("Weibull, ours", sizes).eval()
    x = torch.randn(sizes.batch, sizes.length, sizes.width)

    def logits(x: Tensor) -> Tensor:
        with pyro.plate("batch", sizes.batch):
            return network.logits(x)

    if contestant == PASS:
        return torch.no_grad()(partial(network.logits, x))
    guide = AttentionGuide(logits, OURS["Weibull, ours"]())
    last: dict[str, Any] = {"noise": [f"layers.{sizes.layers - 1}"], "chunk_size": SAMPLES}
    return partial(predict, guide, x, num_samples=SAMPLES, **last if contestant == LAST else {})


PREDICTIONS = Benchmark(
    title="Predictions by draws of the attention",
    text="Predictions of the classifier of the self-attention benchmark, with four layers, and a pass of it.",
    make_step=make_predictions,
    contestants=(PASS, ALL, LAST),
    sizes={"four layers": Classified(layers=4)},
    rounds=10,
    memory=False,
)

# MCAN and BERT

FAMILIES: dict[str, Callable[[], Family]] = {"soft": Soft, "Weibull": partial(Weibull, 10.0)}


@dataclass(frozen=True)
class Questions:
    """Sizes of a batch and of MCAN; the defaults are those of VQA v2."""

    batch: int = 16
    words: int = 14
    regions: int = 36
    features: int = 2048
    vocabulary: int = 20_000
    answers: int = 3129
    network: MCANSizes = field(default_factory=MCANSizes)
    dropout: float = 0.1


def random_questions(sizes: Questions) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw the arguments of MCAN: words, mask ``[B, words]``, regions, mask ``[B, regions]``, scores ``[B, answers]``.

    Questions have at least a quarter of the largest number of words, no region is padding, and a few answers have a
    score.
    """
    real = torch.arange(sizes.words) < torch.randint(max(1, sizes.words // 4), sizes.words + 1, (sizes.batch, 1))
    question = torch.randint(1, sizes.vocabulary, real.shape) * real
    regions = torch.randn(sizes.batch, sizes.regions, sizes.features)
    scores = (torch.rand(sizes.batch, sizes.answers) < 3 / sizes.answers).float()
    return question, real, regions, torch.ones(regions.shape[:-1], dtype=torch.bool), scores


def mcan_loss(contestant: str, sizes: Questions) -> ELBOModule:
    """Return the negative ELBO of MCAN with a contextual Gamma prior of all attention."""
    model = MCAN(sizes.vocabulary, sizes.features, sizes.answers, sizes=sizes.network, dropout=sizes.dropout)
    return AttentionELBO()(model, AttentionGuide(model, FAMILIES[contestant]()))


def make_mcan_step(contestant: str, sizes: Questions) -> Step:
    """Make a training step of MCAN on :func:`random_questions`, which returns the loss."""
    torch.manual_seed(0)
    arguments = random_questions(sizes)
    return training_step(mcan_loss(contestant, sizes), *arguments)


MCAN_STEPS = Benchmark(
    title="MCAN",
    text="Training steps (forward, backward, Adam) of MCAN at its published sizes, 6 layers of 8 heads, width 512, on "
    "16 questions of up to 14 words about 36 regions of 2048 features, in float32: all attention Bayesian, with a "
    "contextual Gamma prior, or soft.",
    make_step=make_mcan_step,
    contestants=tuple(FAMILIES),
    sizes={"16 questions": Questions()},
)

# Posterior and prior of the converted model; None is the attention of transformers with this name.
CONVERTED: dict[str, tuple[Callable[[], Family], str] | None] = {
    "soft": (Soft, "gamma_contextual"),
    "eager": None,
    "sdpa": None,
    "Weibull": (partial(Weibull, 10.0), "gamma_contextual"),
    "LogNormal": (partial(LogNormal, 0.1), "lognormal_contextual"),
}


@dataclass(frozen=True)
class Tokens:
    """Sizes of a BERT and of a batch; the defaults are MiniLM's."""

    layers: int = 6
    heads: int = 12
    width: int = 384
    hidden: int = 1536
    vocabulary: int = 30_522
    dropout: float = 0.1
    batch: int = 32
    length: int = 64
    precision: Precision = "32"


def random_tokens(sizes: Tokens) -> dict[str, Tensor]:
    """Draw the keyword arguments of a BERT: tokens and padding ``[B, N]``, and labels 0 or 1 ``[B]``.

    Lengths are between a quarter of ``length`` and ``length``.
    """
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.length))
    lengths = torch.randint(max(1, sizes.length // 4), sizes.length + 1, (sizes.batch, 1))
    padding = (torch.arange(sizes.length) < lengths).long()
    return {"input_ids": tokens, "attention_mask": padding, "labels": torch.randint(2, (sizes.batch,))}


def bert_loss(contestant: str, sizes: Tokens) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Return a BERT with random weights (or its ELBO), and its loss, summed over the batch."""
    from transformers import BertConfig, BertForSequenceClassification

    from pyro_attention.integrations.huggingface import bayesian

    config = BertConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, intermediate_size=sizes.hidden,
        hidden_dropout_prob=sizes.dropout, attention_probs_dropout_prob=sizes.dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config).train()
    model.set_attn_implementation("eager" if contestant == "eager" else "sdpa")
    if (scheme := CONVERTED[contestant]) is None:  # the loss of transformers is a mean over the batch, the ELBO a sum
        return model, lambda **batch: model(**batch).loss * sizes.batch
    bayesian(model, prior=scheme[1])
    elbo = AttentionELBO()(model, AttentionGuide(model, scheme[0]()))
    return elbo, elbo


def make_bert_step(contestant: str, sizes: Tokens) -> Step:
    """Make a training step (forward, backward, AdamW) of a BERT on :func:`random_tokens`, which returns the loss."""
    torch.manual_seed(0)
    batch = random_tokens(sizes)
    model, loss = bert_loss(contestant, sizes)
    mixed = torch.autocast(batch["labels"].device.type, torch.bfloat16, enabled=sizes.precision == "bf16-mixed")
    loss = partial(mixed(loss), **batch)
    return training_step(model, loss=loss, optimizer=torch.optim.AdamW, learning_rate=3e-5)


TRANSFORMER_STEPS = Benchmark(
    title="A pretrained transformer",
    text="Training steps (forward, backward, AdamW) of a BERT of MiniLM's size, 6 layers of 12 heads, width 384, at "
    "32 x 64 tokens with padding, in float32. Rows: the converted model under Soft, the original with eager and with "
    "fused (sdpa) attention, and the converted model with contextual priors.",
    make_step=make_bert_step,
    contestants=tuple(CONVERTED),
    sizes={"32 x 64 tokens": Tokens()},
    rounds=10,
)
