"""Translation with latent alignments: exact sums by hand and by Pyro, inference schemes, posterior samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn

from experiments.benchmarks.measuring import Benchmark, Step, training_step
from experiments.harness.options import Precision
from experiments.harness.training import resolve_precision
from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.nmt import Translation, TranslationSizes
from pyro_attention import AttentionGuide, ContextualGammaPrior, Soft, Weibull, sample_posterior
from pyro_attention.families.base import Prior
from pyro_attention.likelihoods import TokenLikelihood


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch: source and target positions, sentences, width of the network and vocabulary; the arithmetic."""

    sources: int = 25
    targets: int = 25
    batch: int = 16
    width: int = 256
    vocabulary: int = 10_000
    precision: Precision = "32"


# Exact sums


class LastLayer(nn.Module):
    """The last layer of a translation model, p(token | alignment, states), with a prior of the alignment.

    Called, it is a Pyro model whose enumerated site is the alignment.
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
        """Negative log evidence from the logits of all alignments, ``[sources, batch, targets, vocabulary]``."""
        features = (self.keys.transpose(0, 1).unsqueeze(2) + self.states).tanh()
        index = token.expand(*features.shape[:-1]).unsqueeze(-1)
        log_f = self.output(features).log_softmax(-1).gather(-1, index).squeeze(-1)
        return -(log_f + self.scores.log_softmax(-1).movedim(-1, 0)).logsumexp(0).sum()


def make_sum(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward and backward of the negative log evidence, which is returned."""
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


def _translation(sizes: Sizes, prior: Prior | None) -> tuple[Translation, Tensor, Tensor]:
    """An untrained model, and words of sources and targets."""
    widths = TranslationSizes(*[sizes.width] * 4)
    model = Translation(sizes.vocabulary, sizes.vocabulary, sizes=widths, prior=prior)
    shapes = ((sizes.batch, sizes.sources), (sizes.batch, sizes.targets))
    source, target = (torch.randint(sizes.vocabulary, shape) for shape in shapes)
    return model, source, target


def make_scheme_step(contestant: Any, sizes: Sizes) -> Callable[[], Tensor] | None:
    """Forward, backward and Adam of an untrained translation model; the step returns the negative ELBO."""
    if resolve_precision(sizes.precision, torch.device("cpu")) != sizes.precision:
        return None
    torch.manual_seed(0)
    scheme = build_scheme(contestant, top_k=3)
    model, source, target = _translation(sizes, scheme.prior(sizes.width, 1))
    network = None
    if scheme.amortised:
        network = AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=sizes.width)
    masks = [torch.ones_like(words, dtype=torch.bool) for words in (source, target)]
    loss = scheme.elbo(model, scheme.guide(model, network))
    # without the backward pass, as in training
    mixed = torch.autocast(source.device.type, torch.bfloat16, enabled=sizes.precision == "bf16-mixed")
    return training_step(loss, source, masks[0], target, target, masks[1], loss=mixed(loss), learning_rate=0.0)


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
    """Soft and Weibull attention over one translation model, and the arguments of a teacher-forced pass."""
    torch.manual_seed(0)
    model, source, target = _translation(sizes, ContextualGammaPrior(sizes.width))
    model.eval()
    guides = AttentionGuide(model, Soft()), AttentionGuide(model, Weibull())
    return *guides, (source, torch.ones_like(source, dtype=torch.bool), target, target)


def make_samples(contestant: str, sizes: Sizes) -> Step:
    """A pass of soft attention, without the log probabilities of the words, or samples of Weibull attention."""
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
