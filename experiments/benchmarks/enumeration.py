"""Enumerated alignments of a translation batch: by hand, and by Pyro with Categorical and with TokenLikelihood."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("enumeration", "EnumerationConfig")

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn

from experiments.benchmarks.config import EnumerationConfig
from experiments.benchmarks.measuring import Outcome, command, measure, progress, rows_by_size, training_step
from pyro_attention.likelihoods import TokenLikelihood

CONTESTANTS = ("logsumexp, by hand", "Categorical", "TokenLikelihood")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch: source and target positions, sentences, width of the network and vocabulary."""

    sources: int = 25
    targets: int = 25
    batch: int = 16
    width: int = 256
    vocabulary: int = 10_000


class Translation(nn.Module):
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


def make_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward and backward of the negative log evidence, which is returned."""
    torch.manual_seed(0)
    model = Translation(contestant, sizes)
    token = torch.randint(sizes.vocabulary, (sizes.batch, sizes.targets))
    if contestant == "logsumexp, by hand":
        return training_step(model, token, loss=model.loss_by_hand, optimizer=None)
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss
    return training_step(model, model, lambda *_: None, token, loss=loss, optimizer=None)


@command
def run(config: EnumerationConfig) -> Outcome:
    """Measure by the number of sources."""
    metrics, sizes = dict[str, float](), Sizes(vocabulary=config.vocabulary)
    for n in progress(config.sources, "size"):
        size = replace(sizes, sources=n)
        metrics |= measure(f"{n}_sources", make_step, CONTESTANTS, size, rounds=config.rounds, processes=3)
    return Outcome(
        metrics=metrics,
        rows=rows_by_size(metrics, "sources", {f"{n}_sources": str(n) for n in config.sources}, CONTESTANTS),
        name="enumeration",
        title="Exact enumeration of alignments",
        reference="that of logsumexp by hand",
        memory="beyond that before the first one (median of three processes)",
        text=f"Forward and backward of the last layer of a translation model, the alignment summed out by Pyro: "
        f"{sizes.batch} sentences of {sizes.targets} words, width {sizes.width}, {sizes.vocabulary} tokens. Medians of "
        f"{config.rounds} interleaved rounds, ratios to logsumexp over all logits, by hand and without Pyro, in each "
        f"round (10-90 %); memory at the peak beyond that before, median of three processes.",
    )
