"""Check of learned widths of attention weights: do they move when training continues with more draws?"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from pyro import poutine
from pyro.infer.elbo import ELBOModule
from torch import Tensor, nn

from pyro_attention._checks import check_count, check_kind, check_positive
from pyro_attention._typing import Args, Model, Trace
from pyro_attention.families.distribution import LogWeights
from pyro_attention.objectives.evidence import EvidenceELBO, log_likelihood_at_mean
from pyro_attention.objectives.gap import GapWatch, gap_problem
from pyro_attention.posterior.passes import seeded

__all__ = ["MOST_MOVE", "WidthReport", "check_width", "evidence_gap"]

MOST_MOVE = 0.1  # of a believable width, as a share of it
_DRAWS = 64  # of log S, for its standard deviation


@dataclass(frozen=True)
class WidthReport:
    """Report on learned widths of attention weights; prints as a few lines.

    Attributes:
        ratios: Width after training on with more draws, divided by the width before: geometric means in the thirds of
            the entries that are narrow, middle and wide, by the name of the site.
        draws: Number of draws of the training, and of the training that followed.
        gap: Part of the log evidence that the draws leave, in nats an item.
        signal: Log evidence of an item minus its log likelihood with the mean weights, in nats: the evidence of noise
            in the attention.
    """

    ratios: dict[str, tuple[float, float, float]]
    draws: tuple[int, int]
    gap: float
    signal: float

    @property
    def believable(self) -> bool:
        """Whether no third moved by more than 10 %, and the gap is at most 20 % of what the items say."""
        moves = [abs(ratio - 1) for ratios in self.ratios.values() for ratio in ratios]
        return max(moves) <= MOST_MOVE and gap_problem(self.gap, self.signal, self.draws[0]) is None

    def __str__(self) -> str:
        share = f"{self.gap / self.signal:.0%}" if self.signal > 0 else "all"
        lines = [
            f"site '{name}': from {self.draws[0]} to {self.draws[1]} draws, widths were multiplied by "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} (narrow, middle, wide third)"
            for name, ratios in self.ratios.items()
        ]
        lines.append(f"gap: {self.gap:.3g} nats an item, {share} of the {self.signal:.3g} that it says of the noise")
        verdict = "can be believed, as far as draws decide it"
        remedy = f"cannot be believed: train with num_particles={self.draws[1]} or more, or longer, and check again"
        return "\n".join([*lines, f"the widths {verdict if self.believable else remedy}"])


def check_width(
    loss: nn.Module,
    batches: Iterable[Args],
    *,
    factor: int = 4,
    steps: int = 200,
    learning_rate: float = 0.01,
    seed: int | None = 0,
) -> WidthReport:
    """Train a copy on with more draws, and report whether the widths of the attention weights move.

    A width that few draws made too small grows when there are more. If it does not, the draws were enough. Whether the
    model is right is another question: ask the data (:func:`check_coverage`, intervals of y).

    Args:
        loss: ``EvidenceELBO(...)(model, guide)``, trained; it stays as it is.
        batches: Arguments of the loss, an item for each batch; read once, and then gone through as often as needed.
        factor: Number of times as many draws.
        steps: Training steps of the copy, by Adam, with a learning rate that falls to zero.
        learning_rate: First learning rate: that of the training, or a little less.
        seed: Seed of this call alone.

    Raises:
        TypeError: The loss is not of an EvidenceELBO, or its model is no module, so that it cannot be copied.
        ValueError: There are no batches, no site with positive weights, or a number that is not positive.

    Example:
        >>> import pyro
        >>> from pyro_attention import AttentionGuide, Dense, FromPrior, LatentAttention, LogNormal, ScorePrior
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.attention = LatentAttention("attention", ScorePrior(LogNormal(scale=0.5, learnable=True)))
        ...     def forward(self, scores, values, y):
        ...         with pyro.plate("items", len(y)):
        ...             mean = self.attention(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
        ...             pyro.sample("y", pyro.distributions.Normal(mean, 0.5), obs=y)
        >>> model = Model()
        >>> loss = EvidenceELBO(max_plate_nesting=1)(model, AttentionGuide(model, FromPrior()))
        >>> data = torch.zeros(20, 1, 3), torch.randn(20, 1, 3, 1), torch.randn(20)
        >>> report = check_width(loss, [data], steps=5)
        >>> report.draws, len(report.ratios["attention"])
        ((16, 64), 3)
    """
    if not isinstance(loss, ELBOModule) or not isinstance(loss.elbo, EvidenceELBO):
        raise TypeError(f"loss is a {type(loss).__name__}, expected EvidenceELBO(...)(model, guide)")
    check_kind("the model of the loss", loss.model, nn.Module, "which is copied and trained on")
    check_positive("learning_rate", learning_rate)
    for name, count in (("factor", factor), ("steps", steps)):
        check_count(name, count)
    more = copy.deepcopy(loss)
    elbo = more.elbo
    assert isinstance(elbo, EvidenceELBO)
    elbo.num_particles *= factor
    elbo.gap_watch = GapWatch()
    with seeded(seed):
        batches = list(batches)  # a loader that shuffles has other items in each pass, and an iterator has one pass
        before = _widths(loss.model, batches)
        if not before:
            raise ValueError("batches are empty, or the model has no attention site with positive weights")
        gap, signal = evidence_gap(loss, batches)
        _train(more, batches, steps, learning_rate)
        after = _widths(more.model, batches)
    ratios = {name: _in_thirds(width, after[name]) for name, width in before.items()}
    return WidthReport(ratios, (loss.elbo.num_particles, elbo.num_particles), gap, signal)


def evidence_gap(loss: ELBOModule, batches: Iterable[Args]) -> tuple[float, float]:
    """Compare the gap of the log evidence with the evidence of noise in the attention.

    The gap is the part of an item's log evidence that the draws leave; the other number is the gain in log evidence
    over attention at its mean.

    Args:
        loss: ``EvidenceELBO(...)(model, guide)``.
        batches: Arguments of the loss, an item for each batch.

    Returns:
        Both as means over the items, in nats; a width can be learned where the first is at most 20 % of the second.
    """
    elbo = loss.elbo
    assert isinstance(elbo, EvidenceELBO)
    gaps, signals = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for batch in batches:
            loss(*batch)
            assert elbo.bounds is not None  # after an evaluation
            gaps.append(elbo.bounds.remainder.flatten())
            signals.append((elbo.bounds.value - log_likelihood_at_mean(loss.guide, tuple(batch), {})).flatten())
    return torch.cat(gaps).mean().item(), torch.cat(signals).mean().item()


def _train(loss: nn.Module, batches: Iterable[Args], steps: int, learning_rate: float) -> None:
    """Train a loss by Adam, with a learning rate that falls to zero; the batches are gone through again and again."""
    optimizer = torch.optim.Adam(
        [parameter for parameter in loss.parameters() if parameter.requires_grad], lr=learning_rate
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    with torch.enable_grad():
        for batch in islice(cycle(batches), steps):
            optimizer.zero_grad()
            loss(*batch).backward()
            optimizer.step()
            schedule.step()


def _widths(model: Model, batches: Iterable[Args]) -> dict[str, Tensor]:
    """Return the standard deviation of log S of every entry that counts, by site, from draws with one noise."""
    widths: dict[str, list[Tensor]] = {}
    for batch in batches:
        with torch.no_grad(), seeded(0):  # the same noise before and after
            trace: Trace = poutine.trace(model).get_trace(*batch)
            priors = {name: site["fn"] for name, site in trace.nodes.items() if site["type"] == "sample"}
            for name, prior in priors.items():
                if isinstance(prior, LogWeights):
                    widths.setdefault(name, []).append(_deviations(prior))
    return {name: torch.cat(parts) for name, parts in widths.items()}


def _deviations(prior: LogWeights) -> Tensor:
    """Return the standard deviation of draws of every entry that counts, flat and on the CPU."""
    deviations = prior.sample(torch.Size([_DRAWS])).std(0)
    counted = prior.layout.counted_entries
    if counted is not None:
        deviations = deviations[counted.expand(deviations.shape)]
    return deviations.flatten().cpu()


def _in_thirds(before: Tensor, after: Tensor) -> tuple[float, float, float]:
    """Return the geometric mean of after / before in the narrow, the middle and the wide third of the entries."""
    ratio = (after / before).log()
    low, middle, high = (ratio[part].mean().exp().item() for part in before.argsort().tensor_split(3))
    return low, middle, high
