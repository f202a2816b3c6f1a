"""The gap that few draws leave: its record, when training warns, and what it costs the training: nothing random."""

import math
import warnings

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    Amortized,
    AttentionGuide,
    Dense,
    EvidenceELBO,
    FromPrior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    check_model,
)
from pyro_attention.objectives.correction import EvidenceBound, evidence_bound
from pyro_attention.objectives.evidence import log_likelihood_at_mean
from pyro_attention.objectives.gap import GapRecord, GapWarning, GapWatch, draws_to_take, gap_problem


class Regression(nn.Module):
    """Numbers around the mean of random values of four keys, whose weights have one width."""

    def __init__(self, width=1.0, noise=0.5, dropout=0.0):
        super().__init__()
        self.attention = LatentAttention("attention", ScorePrior(LogNormal(scale=width, learnable=True)))
        self.noise, self.dropout = noise, nn.Dropout(dropout)

    def forward(self, values, y=None):
        with pyro.plate("items", len(values), dim=-1):
            scores = torch.zeros(len(values), 1, values.size(-2))
            mean = self.attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-2)
            return pyro.sample("y", Normal(self.dropout(mean), self.noise).to_event(1), obs=y)


def drawn(width, noise, items=1000, size=3):
    torch.manual_seed(0)
    values = torch.randn(items, 1, 4, size)
    return values, poutine.trace(Regression(width, noise)).get_trace(values).nodes["y"]["value"].detach()


def parts(model, **options):
    guide = AttentionGuide(model, FromPrior())
    return guide, EvidenceELBO(max_plate_nesting=1, **options)


def test_record_counts_items():
    log_weights = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.2, 9.0, 0.0], [0.0, 0.1, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    bound = evidence_bound(log_weights, corrected=True)
    record = GapRecord.of(bound)
    assert record.mean.item() == pytest.approx(bound.remainder.mean().item())
    assert record.largest.item() == pytest.approx(bound.gap[2].item() - 0.3, abs=1e-3)
    assert record.share.item() == 0.5


def test_record_of_an_evaluation():
    """Of the corrected objective what is left, of the other one the whole gap; many draws leave little."""
    data, means = drawn(1.0, 0.5), {}
    for draws, correction in ((8, None), (8, "jackknife"), (128, None)):
        guide, elbo = parts(Regression(1.0, 0.5), num_particles=draws, correction=correction)
        assert elbo.gap_record is None
        torch.manual_seed(0)
        elbo.loss(guide.model, guide, *data)
        means[draws, correction] = elbo.gap_record.mean.item()
        assert elbo.gap_record.largest >= elbo.gap_record.mean
        assert 0 <= elbo.gap_record.share <= 1
    assert means[8, "jackknife"] < 0.6 * means[8, None]
    assert means[128, None] < 0.2 * means[8, None]


def test_likelihood_at_the_mean_is_that_of_ordinary_attention():
    values, y = drawn(1.0, 0.5)
    guide, _ = parts(Regression(1.0))
    expected = Normal(values.mean(-2).squeeze(-2), 0.5).log_prob(y).sum(-1)
    conditioned = poutine.condition(guide, {"y": y})
    for run, args in ((guide.model, (values, y)), (guide, (values, y)), (conditioned, (values,))):
        torch.testing.assert_close(log_likelihood_at_mean(run, args, {}).flatten(), expected)
    assert not hasattr(guide, "trace")


def test_likelihood_at_the_mean_is_that_of_the_prior_also_under_a_guide_that_sees_more():
    values, y = drawn(1.0, 0.5, items=5)
    model, network = Regression(1.0), nn.Module()
    network.forward = lambda values, y: torch.arange(4.0).expand(len(y), 1, 4)
    guide = AttentionGuide(model, Amortized(network, LogNormal(0.3)))
    torch.testing.assert_close(*(log_likelihood_at_mean(run, (values, y), {}) for run in (guide, model)))


def test_observations_that_a_handler_around_the_guide_gives_are_no_gap():
    """The gain over mean attention counts them on both sides."""
    values, y = drawn(0.7, 0.5, items=2000, size=1)
    model = Regression(0.7, 0.5)
    guide, elbo = parts(model)
    assert check_model(model, guide, values, y, elbo=elbo).ok
    assert check_model(model, poutine.condition(guide, {"y": y}), values, elbo=elbo).ok


def test_problem_and_the_draws_to_take():
    assert gap_problem(0.01, 0.1, 16) is None
    assert "8 draws are too few" in gap_problem(0.03, 0.1, 8)
    assert "30% of its 0.1 nats" in gap_problem(0.03, 0.1, 8)
    assert "more than its 0 nats" in gap_problem(0.03, -0.1, 8)
    assert [draws_to_take(gap, 0.1, 8) for gap in (0.03, 0.1, 0.5, 100.0)] == [32, 64, 256, 512]
    assert draws_to_take(0.03, 0.0, 8) == 512


def bound(gap, value, items=64):
    """Items of two draws, whose gap is that of the jackknife by hand."""
    share = torch.tensor(0.25 * (1 - math.sqrt(1 - math.exp(-2 * gap))) * 2).double()
    weights = torch.stack([share, 1 - share]).log().unsqueeze(1).expand(2, items)
    made = EvidenceBound(torch.full((items,), value).double(), weights, corrected=False)
    assert made.remainder.mean().item() == pytest.approx(gap, rel=1e-6)
    return made


def test_watch_warns_at_steps_that_double_and_once_for_a_number_of_draws():
    watch, at = GapWatch(), []
    for step in range(1, 900):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.step(
                bound(0.01 if step <= 200 else 0.1 if step <= 400 else 0.3, -1.0), 8, lambda: torch.full((64,), -1.1)
            )
        at += [(step, str(warning.message)) for warning in caught]
    assert [step for step, _ in at] == [400, 800]
    assert "num_particles=64" in at[0][1]
    assert "num_particles=128" in at[1][1]
    assert all(issubclass(GapWarning, UserWarning) for _ in at)


def test_watch_doubts_a_signal_that_is_noise():
    """The mean of what the items say is small, but so uncertain that it may well be large enough.

    The signals have the mean 0.06 and its standard error 0.227; a fifth of the mean and two errors is 0.103.
    """
    for gap, due in ((0.02, False), (0.095, False), (0.11, True)):
        watch, signals = GapWatch(), iter([0.5, -0.4, 0.6, -0.5, 0.1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(100):
                watch.step(bound(gap, 0.0), 8, lambda signals=signals: torch.full((64,), -next(signals)))
        assert watch.steps == 100
        assert [warning.category for warning in caught] == [GapWarning] * due
        assert watch.warned == 32 * due


def train(model, data, steps, **options):
    guide, elbo = parts(model, **options)
    loss = elbo(model, guide)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(*data).backward()
        optimizer.step()
    return elbo


def test_training_with_too_few_draws_warns_and_check_model_says_so():
    """Four plain draws for one number an item; the corrected sixteen are enough, for the same data."""
    data = drawn(0.7, 0.5, items=2000, size=1)
    model = Regression(0.7, 0.5)
    with pytest.warns(GapWarning, match=r"^4 draws are too few to learn the width.*Take num_particles=\d+"):
        elbo = train(model, data, 100, num_particles=4, correction=None)
    assert elbo.gap_watch.warned >= 16
    report = check_model(model, AttentionGuide(model, FromPrior()), *data, elbo=elbo)
    assert any("4 draws are too few" in problem for problem in report.problems)
    better = Regression(0.7, 0.5)
    elbo = train(better, data, 100)  # a warning would be an error
    assert check_model(better, AttentionGuide(better, FromPrior()), *data, elbo=elbo).ok


def test_looking_at_the_gap_changes_no_random_number(monkeypatch):
    """Dropout and attention draw what they would have drawn."""
    data, ends = drawn(1.0, 0.5, items=50), []
    for every in (3, 10**9):
        monkeypatch.setattr("pyro_attention.objectives.gap._EVERY", every)
        model = Regression(dropout=0.2)
        train(model, data, 10)
        ends.append([value.clone() for value in model.parameters()] + [torch.rand(())])
    assert all(first.equal(second) for first, second in zip(*ends, strict=True))
