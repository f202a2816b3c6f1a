"""Which instance is the reason: bags of handwritten digits, whose label says whether they hold a nine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions import Bernoulli
from sklearn.datasets import load_digits
from torch import Tensor, nn

from experiments.folder import exclusive, open_run
from experiments.options import OptionError
from experiments.reasons.config import BagsConfig
from experiments.reasons.report import ACCURACY, AUROC, ECE, ECE_FLOOR, TOP_1, closing, publish, reason_scores, table
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
from pyro_attention.guide import attention_weights

SIZES = (8, 12)  # of a bag, at least and at most
TEST_BAGS, FOLDS, DECAYS = 500, 5, (0.3, 0.5, 1.0)  # folds of the training bags; weight decays


class Bags(NamedTuple):
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
    """A linear map a network: ``[..., S, B, N, width]`` to ``[..., S, B, N, out]``."""

    def __init__(self, networks: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(networks, width, out).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.empty(networks, 1, 1, out).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...sbni,sio->...sbno", x, self.weight) + self.bias


class Pooling(pyro.nn.PyroModule):
    """Attention pooling of Ilse et al. (2018), or max pooling; several networks at once."""

    def __init__(self, prior: Prior, networks: int, *, largest: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Linear(networks, 64, 32), nn.ReLU())
        self.score = nn.Sequential(Linear(networks, 32, 16), nn.Tanh(), Linear(networks, 16, 1))
        self.head = Linear(networks, 32, 1)
        self.attention, self.largest = LatentAttention("instance", prior), largest

    def forward(self, bags: Bags) -> tuple[Tensor, Tensor]:
        h = self.encoder(bags.images)
        layout = Dense(bags.there.unsqueeze(-2), event_dim=2)
        each = self.head(h).squeeze(-1).masked_fill(~bags.there, -torch.inf)
        with pyro.plate("networks", len(h), dim=-2), pyro.plate("bags", h.size(1), dim=-1):
            output = self.attention(self.score(h).mT, h.unsqueeze(-3), layout=layout)
            logits = each.amax(-1) if self.largest else self.head(output.context).squeeze(-1).squeeze(-1)
            pyro.sample("y", Bernoulli(logits=logits), obs=bags.y)
        return each, logits


def train(model: Pooling, family: Family, bags: Bags, *, steps: int, weight_decay: float) -> Pooling:
    """Train networks on all of their bags at once."""
    guide = AttentionGuide(model, family)
    elbo = elbo_for(guide, max_plate_nesting=2)
    if isinstance(elbo, AttentionELBO):
        elbo.kl_weight = 0.01
    loss = elbo(model, guide)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(bags).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def predicted(model: Pooling, family: Family, bags: Bags) -> tuple[Tensor, Tensor]:
    """Probability of every bag to hold a nine ``[S, B]``, and of its images to be it, before that is known."""
    run = AttentionGuide(model, Soft()).run(bags)
    site: Any = run.trace.nodes["instance"]
    (each, logits), weights = run.output, attention_weights(site).squeeze(-2)
    p = (weights * each.sigmoid()).sum(-1) if isinstance(family, Marginal) else logits.sigmoid()
    return p, each.softmax(-1) if model.largest else weights


def split(bags: Bags) -> tuple[Bags, Bags]:
    """Bags to train on and held-out ones, FOLDS times as many: every fold of a seed's bags is held out once."""
    size = bags.y.size(1) // FOLDS
    rolled = [torch.cat([each.roll(fold * size, 1) for fold in range(FOLDS)]) for each in bags]
    return Bags(*(each[:, size:] for each in rolled)), Bags(*(each[:, :size] for each in rolled))


def cross_fit(family: Family, bags: Bags, *, steps: int, largest: bool = False) -> Pooling:
    """A network a fold and seed, each with the weight decay by which it predicts the labels of its fold best."""
    (training, held_out), models, losses = split(bags), [], []
    prior = FixedGammaPrior() if isinstance(family, Weibull) else AlignmentPrior()
    for decay in DECAYS:
        torch.manual_seed(0)
        model = Pooling(prior, len(training.y), largest=largest)
        models.append(train(model, family, training, steps=steps, weight_decay=decay))
        loss = nn.functional.binary_cross_entropy(predicted(model, family, held_out)[0], held_out.y, reduction="none")
        losses.append(loss.mean(-1))
    best = torch.stack(losses).argmin(0)
    for same in zip(*(model.parameters() for model in models), strict=True):
        same[0].copy_(torch.stack(same)[best, torch.arange(len(best))])
    return models[0]


def scores(count: int, seeds: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Scores of every row and seed: of the instances of positive test bags, and of the labels of all test bags."""
    bags, test = make_bags(count, test=False, seeds=seeds), make_bags(TEST_BAGS, test=True, seeds=seeds)
    tests = Bags(*(torch.cat([each] * FOLDS) for each in test))
    found = dict[str, list[dict[str, float]]]()

    def add(row: str, p: Tensor, instances: Tensor) -> None:
        # geometric means over the networks of a seed: arithmetic means of calibrated probabilities are too uncertain
        logs = p.logit(eps=1e-6), instances.clamp_min(1e-30).log()
        logit, score = (each.unflatten(0, (FOLDS, -1)).mean(0) for each in logs)
        shown = score.masked_fill(~test.there, -torch.inf).softmax(-1).masked_fill(~test.there, torch.nan)
        positive = test.y == 1
        right = ((logit > 0) == positive).float().mean(-1)
        found[row] = []
        for of, nine, has, share in zip(shown, test.nine, positive, right.tolist(), strict=True):
            drawn = of[has].nan_to_num(0).multinomial(1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
            floor = reason_scores(of[has], drawn)["ece"]
            found[row].append({**reason_scores(of[has], nine[has]), "ece_floor": floor, "accuracy": share})

    def add_exact(family: Family, prior: str, posterior: str) -> None:
        model = cross_fit(family, bags, steps=steps)
        p, weights = predicted(model, family, tests)
        add(prior, p, weights)
        add(posterior, p, exact_alignments(model, tests, max_plate_nesting=2)["instance"].squeeze(-2))

    add_exact(Soft(), "attention pooling", "attention pooling, exact posterior")
    add("max pooling", *predicted(cross_fit(Soft(), bags, steps=steps, largest=True), Soft(), tests))
    drawn, family = cross_fit(Weibull(10.0), bags, steps=steps), Weibull(10.0)
    samples = sample_posterior(AttentionGuide(drawn, family), tests, num_samples=20, seed=0)["instance"]
    add("Weibull", predicted(drawn, family, tests)[0], samples.mean(0).squeeze(-2))
    add_exact(Marginal(), "Marginal, prior", "Marginal, exact posterior")
    return found


@exclusive
def run(config: BagsConfig) -> dict[str, float]:
    """Train all networks, print the table, and write metrics, report and results/."""
    if min(config.bags) < FOLDS:
        raise OptionError(f"bags is {config.bags}, expected numbers from {FOLDS}, as a fifth is held out")
    open_run(config.out or Path("runs", "reasons", "bags"), config, free=("results",))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for count in config.bags:
        runs[str(count)] = scores(count, config.seeds, config.steps)
        print(f"{count} bags: done", flush=True)
    text = (
        f"Bags of {SIZES[0]} to {SIZES[1]} of scikit-learn's digits; half of them hold one nine, which is the label. A "
        f"hidden layer of width 32 and attention pooling of Ilse et al. (2018); {config.steps} steps of Adam. Rows are "
        f"geometric means over {FOLDS} networks a seed, each trained without another fifth of the bags; the weight "
        f"decay of a network, one of {', '.join(map(str, DECAYS))}, is that by which it predicts the labels of this "
        f"fifth best. Scores are those of {TEST_BAGS} bags of images that no training bag has. The reason is looked "
        f"for in the positive ones, by attention, by the softmax over the logits of max pooling, or by the exact "
        f"posterior given the label; each is a probability of every instance to be the nine. Weibull: concentration "
        f"10, fixed Gamma prior, KL weight .01, 20 samples. "
        f"{closing(config.seeds, TOP_1, AUROC, ECE, ECE_FLOOR)}"
    )
    rows = table("pooling", "training bags", runs, (AUROC, TOP_1, ECE, ECE_FLOOR, ACCURACY), AUROC)
    report = Report("Which instance is the reason: bags of digits", "bags", [Part(text=text, rows=rows, labels=2)])
    return publish(config, "bags", report, runs)
