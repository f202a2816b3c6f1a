"""Which instance is the reason: bags of handwritten digits, whose label says whether they hold a nine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.distributions import Bernoulli
from sklearn.datasets import load_digits
from torch import Tensor, nn

from experiments.harness.folder import exclusive, open_run
from experiments.reasons.config import BagsConfig
from experiments.reasons.report import ACCURACY, AUROC, DEFINITIONS, ECE, TOP_1, publish, reason_scores, table
from experiments.report.report import Part, Report
from pyro_attention import (
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Dense,
    FixedGammaPrior,
    LatentAttention,
    Marginal,
    Soft,
    Weibull,
    elbo_for,
    exact_alignments,
    sample_posterior,
)
from pyro_attention.families.base import Family, Prior

SIZES = (8, 12)  # of a bag, at least and at most
TEST_BAGS = 500


@dataclass(frozen=True)
class Bags:
    """Images ``[S, B, N, 64]`` of bags of each seed, which are there, whether a bag holds a nine, and where it is."""

    images: Tensor
    there: Tensor
    y: Tensor
    nine: Tensor


def make_bags(count: int, *, test: bool, seeds: int) -> Bags:
    """Half of the bags of each seed hold one nine; images of test bags are others than those of training bags."""
    digits = load_digits()
    images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    found = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(2 * seed + test)
        half = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).chunk(2)[test]
        nines, others = half[labels[half] == 9], half[labels[half] != 9]
        chosen = others[torch.rand(count, len(others), generator=generator).topk(SIZES[1]).indices]
        size = torch.randint(SIZES[0], SIZES[1] + 1, (count,), generator=generator)
        nine = (torch.rand(count, generator=generator) * size).long()
        y = torch.arange(count) % 2 == 0
        chosen[y, nine[y]] = nines[torch.randint(len(nines), (int(y.sum()),), generator=generator)]
        found.append((images[chosen], torch.arange(SIZES[1]) < size.unsqueeze(-1), y.float(), nine))
    return Bags(*map(torch.stack, zip(*found, strict=True)))


class Linear(nn.Module):
    """A linear map a seed: ``[..., S, B, N, width]`` to ``[..., S, B, N, out]``."""

    def __init__(self, seeds: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seeds, 1, width, out).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.empty(seeds, 1, 1, out).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Pooling(pyro.nn.PyroModule):
    """Attention pooling of Ilse et al. (2018), a network a seed, all of them at once."""

    def __init__(self, prior: Prior, seeds: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Linear(seeds, 64, 32), nn.ReLU())
        self.score = nn.Sequential(Linear(seeds, 32, 16), nn.Tanh(), Linear(seeds, 16, 1))
        self.head = Linear(seeds, 32, 1)
        self.attention = LatentAttention("instance", prior)

    def forward(self, bags: Bags) -> tuple[Tensor, Tensor]:
        h = self.encoder(bags.images)
        layout = Dense(bags.there.unsqueeze(-2), event_dim=2)
        with pyro.plate("seeds", len(h), dim=-2), pyro.plate("bags", h.size(1), dim=-1):
            output = self.attention(self.score(h).mT, h.unsqueeze(-3), layout=layout)
            logits = self.head(output.context).squeeze(-1).squeeze(-1)
            pyro.sample("y", Bernoulli(logits=logits), obs=bags.y)
        return self.head(h).squeeze(-1).masked_fill(~bags.there, -torch.inf), logits


def train(model: Pooling, family: Family | None, bags: Bags, *, steps: int) -> Pooling:
    """Train a network on all bags at once, max pooling where there is no family of attention."""
    guide = AttentionGuide(model, Soft() if family is None else family)
    elbo = elbo_for(guide, max_plate_nesting=2)
    if isinstance(elbo, AttentionELBO):
        elbo.kl_weight = 0.01
    loss = elbo(model, guide)
    optimizer = torch.optim.Adam(model.parameters(), 0.003, weight_decay=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        if family is None:
            largest = model(bags)[0].amax(-1)
            nn.functional.binary_cross_entropy_with_logits(largest, bags.y, reduction="sum").backward()
        else:
            loss(bags).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def scores(count: int, seeds: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Scores of every row and seed: of the instances of positive test bags, and of the labels of all test bags."""
    bags, test = make_bags(count, test=False, seeds=seeds), make_bags(TEST_BAGS, test=True, seeds=seeds)
    found = dict[str, list[dict[str, float]]]()

    def add(row: str, p: Tensor, instances: Tensor) -> None:
        positive, shown = test.y == 1, instances.masked_fill(~test.there, torch.nan)
        right = ((p > 0.5) == positive).float().mean(-1)
        items = zip(shown, test.nine, positive, right.tolist(), strict=True)
        found[row] = [{**reason_scores(of[has], nine[has]), "accuracy": share} for of, nine, has, share in items]

    def trained(family: Family | None, prior: Prior) -> tuple[Pooling, Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = train(Pooling(prior, seeds), family, bags, steps=steps)
        run = AttentionGuide(model, Soft()).run(test)
        site: Any = run.trace.nodes["instance"]
        each, logits = run.output
        return model, each, logits.sigmoid(), site["infer"]["prior"].weights(site["value"]).squeeze(-2)

    soft, _, p, weights = trained(Soft(), AlignmentPrior())
    add("attention pooling", p, weights)
    add("attention pooling, exact posterior", p, _posterior(soft, test))
    _, each, _, _ = trained(None, AlignmentPrior())
    add("max pooling", each.amax(-1).sigmoid(), each.softmax(-1))
    drawn, _, p, _ = trained(Weibull(10.0), FixedGammaPrior())
    guide = AttentionGuide(drawn, Weibull(10.0))
    add("Weibull", p, sample_posterior(guide, test, num_samples=20, seed=0)["instance"].mean(0).squeeze(-2))
    exact, each, _, weights = trained(Marginal(), AlignmentPrior())
    p = (weights * each.sigmoid()).sum(-1)
    add("Marginal, prior", p, weights)
    add("Marginal, exact posterior", p, _posterior(exact, test))
    return found


def _posterior(model: Pooling, bags: Bags) -> Tensor:
    return exact_alignments(model, bags, max_plate_nesting=2)["instance"].squeeze(-2)


@exclusive
def run(config: BagsConfig) -> dict[str, float]:
    """Train all networks, print the table, and write metrics, report and results/."""
    open_run(config.out or Path("runs", "reasons", "bags"), config, free=("results",))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for count in config.bags:
        runs[str(count)] = scores(count, config.seeds, config.steps)
        print(f"{count} bags: done", flush=True)
    text = (
        f"Bags of {SIZES[0]} to {SIZES[1]} of scikit-learn's digits; half of them hold one nine, which is the label. A "
        f"hidden layer of width 32 and attention pooling of Ilse et al. (2018); {config.steps} steps of Adam on all "
        f"bags. Scores are those of {TEST_BAGS} bags of images that no training bag has. The reason is looked for in "
        f"the positive ones, by attention, by the softmax over the logits of max pooling, or by the exact posterior "
        f"given the label; each is a probability of every instance to be the nine. Weibull: concentration 10, fixed "
        f"Gamma prior, KL weight .01, 20 samples. Top-1: {DEFINITIONS['top_1']}. AUROC: {DEFINITIONS['auroc']}. ECE: "
        f"{DEFINITIONS['ece']}. Mean ± standard deviation over {config.seeds} seeds; differences seed by seed with "
        f"their 95 % interval (Student's t)."
    )
    shown = Part(
        text=text, rows=table("pooling", "training bags", runs, (AUROC, TOP_1, ECE, ACCURACY), AUROC), labels=2
    )
    report = Report("Which instance is the reason: bags of digits", "bags", [shown])
    return publish(config, "bags", report, runs)
