"""check_width: widths that too few draws made too small move when there are more; others stay."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Dense,
    EvidenceELBO,
    FromPrior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    Soft,
)
from pyro_attention.analysis import check_width
from pyro_attention.analysis.widths import WidthReport, evidence_gap


class Regression(nn.Module):
    """Numbers around the mean of random values of four keys, whose weights have one width; some keys are hidden."""

    def __init__(self, width):
        super().__init__()
        self.attention = LatentAttention("attention", ScorePrior(LogNormal(scale=width, learnable=True)))

    def forward(self, values, mask, y=None):
        with pyro.plate("items", len(values), dim=-1):
            scores, layout = torch.zeros(len(values), 1, 4), Dense(mask, event_dim=2)
            mean = self.attention(scores, values, layout=layout).context.squeeze(-2)
            return pyro.sample("y", Normal(mean, 0.5).to_event(1), obs=y)


def problem(draws, steps=150, **options):
    """A trained loss, and its data in two batches; the true width is 1."""
    torch.manual_seed(0)
    values, mask = torch.randn(1500, 1, 4, 2), torch.ones(1500, 1, 4, dtype=torch.bool)
    mask[::2, :, 3] = False
    y = poutine.trace(Regression(1.0)).get_trace(values, mask).nodes["y"]["value"].detach()
    model = Regression(0.8)
    loss = EvidenceELBO(draws, max_plate_nesting=1, **options)(model, AttentionGuide(model, FromPrior()))
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    batches = [(values[half], mask[half], y[half]) for half in (slice(0, 750), slice(750, 1500))]
    for step in range(steps):
        optimizer.zero_grad()
        loss(*batches[step % 2]).backward()
        optimizer.step()
    return loss, batches


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*draws are too few")
def test_widths_of_too_few_draws_move_and_those_of_the_default_stay():
    few, batches = problem(4, correction=None)
    before = [value.clone() for value in few.parameters()]
    report = check_width(few, batches, steps=100, learning_rate=0.02)
    assert report.draws == (4, 16)
    assert min(report.ratios["attention"]) > 1.15
    assert not report.believable
    assert "cannot be believed: train with num_particles=16" in str(report)
    assert all(value.equal(old) for value, old in zip(few.parameters(), before, strict=True))  # a copy was trained
    enough, batches = problem(16)
    report = check_width(enough, batches, steps=100, learning_rate=0.02)
    assert report.believable, str(report)
    assert str(report).endswith("the widths can be believed, as far as draws decide it")
    assert str(check_width(enough, batches, steps=100, learning_rate=0.02)) == str(report)  # by its seed


@pytest.mark.parametrize(
    ("ratio", "gap", "believable"), [(1.05, 0.01, True), (1.2, 0.01, False), (0.8, 0.01, False), (1.05, 0.03, False)]
)
def test_thresholds(ratio, gap, believable):
    assert WidthReport({"a": (1.0, 1.0, ratio), "b": (1.0, 1.0, 1.0)}, (16, 64), gap, 0.1).believable is believable


def test_gap_is_a_mean_over_the_items_of_all_batches():
    loss, batches = problem(16, steps=1)
    torch.manual_seed(0)
    gap, signal = evidence_gap(loss, batches)
    torch.manual_seed(0)
    halves = [evidence_gap(loss, [batch]) for batch in batches]
    assert gap == pytest.approx((halves[0][0] + halves[1][0]) / 2)
    assert signal == pytest.approx((halves[0][1] + halves[1][1]) / 2)
    assert 0 <= gap < 0.2 * signal


def test_mistakes():
    loss, batches = problem(16, steps=1)
    model = loss.model
    for wrong in (model, AttentionELBO()(model, AttentionGuide(model, Soft()))):
        with pytest.raises(TypeError, match="expected EvidenceELBO"):
            check_width(wrong, batches)
    plain = lambda *data: model(*data)  # noqa: E731
    with pytest.raises(TypeError, match="the model of the loss"):
        check_width(EvidenceELBO(max_plate_nesting=1)(plain, AttentionGuide(plain, FromPrior())), batches)
    with pytest.raises(ValueError, match="batches are empty"):
        check_width(loss, [])
    for options in ({"factor": 0}, {"factor": 1.5}, {"steps": 2.5}):
        with pytest.raises(ValueError, match=r"(factor|steps) is .*, expected an integer of at least 1"):
            check_width(loss, batches, **options)


class Shuffled:
    """Batches in another order in each pass, as of a loader with ``shuffle=True``."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter([self.batches[i] for i in torch.randperm(len(self.batches))])


@pytest.mark.filterwarnings("ignore:.*draws are too few")
@pytest.mark.parametrize("kind", [list, Shuffled, iter])
def test_the_same_items_are_compared_whatever_gives_the_batches(kind):
    """Widths of each item differ here, and no training moves them."""

    class Items(Regression):
        def forward(self, values, mask, y=None):
            family = self.attention.prior.family
            width = values.abs().amax((-1, -2)).unsqueeze(-1) + 0.1
            family.value = lambda _: width + 0 * family.log_value
            return super().forward(values, mask, y)

    torch.manual_seed(0)
    data = torch.randn(40, 1, 4, 2), torch.rand(40, 1, 4) < 0.8, torch.randn(40, 2)
    model = Items(1.0)
    loss = EvidenceELBO(4, max_plate_nesting=1)(model, AttentionGuide(model, FromPrior()))
    batches = list(zip(*(part.split(4) for part in data), strict=True))
    report = check_width(loss, kind(batches), steps=3)
    assert report.ratios["attention"] == pytest.approx((1.0, 1.0, 1.0))
