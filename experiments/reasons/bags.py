"""Bags of handwritten digits, whose label says whether they hold a nine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions import Bernoulli
from sklearn.datasets import load_digits
from torch import Tensor, nn

from experiments.options import OptionError
from experiments.reasons.config import ReasonConfig
from experiments.reasons.scores import named, reason_scores
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
    """Bags of images, with as many bags for each of several networks as they have in common, or folds of them."""

    images: Tensor  # [F, B, N, 64]
    is_there: Tensor  # [F, B, N], whether there is an image
    y: Tensor  # [F, B], 1 for a bag that holds a nine
    nine: Tensor  # [F, B], which image is the nine


def make_bags(count: int, *, test: bool, seed: int) -> Bags:
    """Draw bags, of which every second one holds a nine; no image of a test bag is in a training bag.

    Returns:
        The bags, with one fold.
    """
    digits = load_digits()
    images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    generator = torch.Generator().manual_seed(2 * seed + test)
    half = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).chunk(2)[test]
    nines, without_nine = half[labels[half] == 9], half[labels[half] != 9]
    chosen = without_nine[torch.rand(count, len(without_nine), generator=generator).topk(SIZES[1]).indices]
    size = torch.randint(SIZES[0], SIZES[1] + 1, (count,), generator=generator)
    nine = (torch.rand(count, generator=generator) * size).long()
    y = torch.arange(count) % 2 == 0
    chosen[y, nine[y]] = nines[torch.randint(len(nines), (int(y.sum()),), generator=generator)]
    bags = images[chosen], torch.arange(SIZES[1]) < size.unsqueeze(-1), y.float(), nine
    return Bags(*(part.unsqueeze(0) for part in bags))


def load(config: ReasonConfig) -> tuple[Bags, Bags]:
    """Draw the training and test bags of a seed.

    Raises:
        OptionError: There are fewer bags than folds.
    """
    if config.bags < FOLDS:
        raise OptionError(f"bags is {config.bags}, expected {FOLDS} at least, as a fifth is held out")
    return (
        make_bags(config.bags, test=False, seed=config.seed),
        make_bags(TEST_BAGS, test=True, seed=config.seed),
    )


class Linear(nn.Module):
    """Linear map of every network, ``[..., F, B, N, width]`` to ``[..., F, B, N, out]``."""

    def __init__(self, networks: int, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(networks, width, out).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.empty(networks, 1, 1, out).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...sbni,sio->...sbno", x, self.weight) + self.bias


class Pooling(pyro.nn.PyroModule):
    """Attention pooling of Ilse et al. (2018), or max pooling, of several networks at once."""

    def __init__(self, prior: Prior, networks: int, *, largest: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Linear(networks, 64, 32), nn.ReLU())
        self.score = nn.Sequential(Linear(networks, 32, 16), nn.Tanh(), Linear(networks, 16, 1))
        self.head = Linear(networks, 32, 1)
        self.attention, self.largest = LatentAttention("instance", prior), largest

    def forward(self, bags: Bags) -> tuple[Tensor, Tensor]:
        h = self.encoder(bags.images)
        layout = Dense(bags.is_there.unsqueeze(-2), event_dim=2)
        of_images = self.head(h).squeeze(-1).masked_fill(~bags.is_there, -torch.inf)
        with pyro.plate("networks", len(h), dim=-2), pyro.plate("bags", h.size(1), dim=-1):
            output = self.attention(self.score(h).mT, h.unsqueeze(-3), layout=layout)
            logits = of_images.amax(-1) if self.largest else self.head(output.context).squeeze(-1).squeeze(-1)
            pyro.sample("y", Bernoulli(logits=logits), obs=bags.y)
        return of_images, logits


def train(model: Pooling, family: Family, bags: Bags, *, steps: int, weight_decay: float, kl_weight: float) -> Pooling:
    """Train networks, each on its fold of the bags at once."""
    guide = AttentionGuide(model, family)
    elbo = elbo_for(guide, max_plate_nesting=2)
    if isinstance(elbo, AttentionELBO):
        elbo.kl_weight = kl_weight
    loss = elbo(model, guide)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(bags).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def predicted(model: Pooling, family: Family, bags: Bags) -> tuple[Tensor, Tensor]:
    """Return probabilities before labels are known: of each bag to hold a nine, and of its images to be it.

    Returns:
        ``[F, B]`` and ``[F, B, N]``.
    """
    run = AttentionGuide(model, Soft()).run(bags)
    site: Any = run.trace.nodes["instance"]
    (of_images, logits), weights = run.output, attention_weights(site).squeeze(-2)
    p = (weights * of_images.sigmoid()).sum(-1) if isinstance(family, Marginal) else logits.sigmoid()
    return p, of_images.softmax(-1) if model.largest else weights


def split(bags: Bags) -> tuple[Bags, Bags]:
    """Return bags to train on and held-out ones, in FOLDS folds: every fifth of the bags is held out once."""
    size = bags.y.size(1) // FOLDS
    rolled = [torch.cat([part.roll(fold * size, 1) for fold in range(FOLDS)]) for part in bags]
    return Bags(*(part[:, size:] for part in rolled)), Bags(*(part[:, :size] for part in rolled))


def cross_fit(
    family: Family, bags: Bags, *, steps: int, kl_weight: float, seed: int = 0, largest: bool = False
) -> Pooling:
    """Train a network for each fold, with the weight decay by which it predicts the labels of its fold best."""
    (training, held_out), models, losses = split(bags), [], []
    prior = FixedGammaPrior() if isinstance(family, Weibull) else AlignmentPrior()
    for decay in DECAYS:
        torch.manual_seed(seed)
        model = Pooling(prior, len(training.y), largest=largest)
        models.append(train(model, family, training, steps=steps, weight_decay=decay, kl_weight=kl_weight))
        loss = nn.functional.binary_cross_entropy(predicted(model, family, held_out)[0], held_out.y, reduction="none")
        losses.append(loss.mean(-1))
    best = torch.stack(losses).argmin(0)
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        parameters[0].copy_(torch.stack(parameters)[best, torch.arange(len(best))])
    return models[0]


def score(config: ReasonConfig, data: tuple[Bags, Bags], _: Path) -> dict[str, float]:
    """Train a network for each fold, and score their explanations of the positive test bags, and their labels."""
    bags, test = data
    families: dict[str, Family] = {"soft": Soft(), "weibull": Weibull(10.0), "marginal": Marginal()}
    family, largest = families[config.guide], config.pooling == "max"
    model = cross_fit(family, bags, steps=config.steps, kl_weight=config.kl_weight, seed=config.seed, largest=largest)
    tests = Bags(*(torch.cat([part] * FOLDS) for part in test))
    p, weights = predicted(model, family, tests)
    if config.guide == "weibull":
        samples = sample_posterior(AttentionGuide(model, family), tests, num_samples=20, seed=0)["instance"]
        weights = samples.mean(0).squeeze(-2)
    explanations = {"mean": weights}
    if config.guide != "weibull" and not largest:
        explanations["posterior"] = exact_alignments(model, tests, max_plate_nesting=2)["instance"].squeeze(-2)
    # geometric means over the networks: arithmetic means of calibrated probabilities are too uncertain
    positive, logit = test.y[0] == 1, p.logit(eps=1e-6).mean(0)
    metrics = {"accuracy": ((logit > 0) == positive).float().mean().item()}
    for kind, instances in explanations.items():
        metrics |= named(kind, instance_scores(instances, test, positive))
    return metrics


def instance_scores(instances: Tensor, test: Bags, positive: Tensor) -> dict[str, float]:
    """Score probabilities of the images ``[F, B, N]`` to be the nine, in the ``positive`` bags.

    ``ece_floor`` is the ECE if the reasons were drawn from these probabilities.
    """
    is_there = test.is_there[0]
    logs = instances.clamp_min(1e-30).log().mean(0)
    shares = logs.masked_fill(~is_there, -torch.inf).softmax(-1).masked_fill(~is_there, torch.nan)[positive]
    drawn = shares.nan_to_num(0).multinomial(1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    return reason_scores(shares, test.nine[0, positive]) | {"ece_floor": reason_scores(shares, drawn)["ece"]}
