"""check_coverage: ranks of exact posteriors are uniform, those of others are not; masks, ties, runs, statistics."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Categorical as Labels
from pyro.distributions import Normal
from scipy.stats import chisquare, kstest

from pyro_attention import (
    AlignmentPrior,
    Amortized,
    AttentionGuide,
    Dense,
    FromPrior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    Weibull,
    exact_alignments,
)
from pyro_attention.analysis import check_coverage
from pyro_attention.analysis.coverage import _coverage
from pyro_attention.families.lognormal import FixedLogNormalPrior

NOISE = 0.7


class Ratio(torch.nn.Module):
    """Two keys, whose log ratio of weights is Normal(0, sqrt 2) and observed with noise."""

    def __init__(self, prior=None, mask=None):
        super().__init__()
        self.attention = LatentAttention("attention", prior or FixedLogNormalPrior())
        self.layout = Dense(mask, event_dim=2)

    def forward(self, scores, y):
        with pyro.plate("items", len(y)):
            values = torch.eye(scores.size(-1)).unsqueeze(0)
            weights = self.attention(scores, values, layout=self.layout).weights.squeeze(-2)
            pyro.sample("y", Normal(weights[..., 0].log() - weights[..., 1].log(), NOISE), obs=y)


def inputs(items=3000, keys=2):
    return torch.zeros(items, 1, keys), torch.zeros(items)


def exact(observations, scores, y, *, draws=99, factor=1.0):
    """Draws of the closed-form posterior of the log ratio, with their deviation multiplied by a factor."""
    share = 2 / (2 + NOISE**2)
    ratio = share * observations["y"] + factor * (share * NOISE**2) ** 0.5 * torch.randn(draws, len(scores))
    return {"attention": torch.stack([ratio.sigmoid(), (-ratio).sigmoid()], -1).unsqueeze(-2)}


def test_ranks_of_the_exact_posterior_are_uniform():
    found = check_coverage(Ratio(), *inputs(20_000), infer=exact, levels=(0.5, 0.9), seed=0)["attention"]
    assert found.p_value > 1e-3
    assert kstest((found.ranks + torch.rand(len(found.ranks))) / 100, "uniform").pvalue > 1e-3
    for level, share in found.coverage.items():
        assert abs(share - level) < 3 * found.errors[level]
        # a weight and one minus it are one piece of news
        assert found.errors[level] == pytest.approx((level * (1 - level) / 20_000) ** 0.5, rel=0.05)
    statistic, p_value = chisquare(torch.bincount(found.ranks // 5, minlength=20))
    assert (found.chi_square, found.p_value) == pytest.approx((statistic, p_value), rel=1e-4)


@pytest.mark.parametrize(("draws", "bins"), [(19, 20), (99, 20), (20, 21), (99, 10)])
@pytest.mark.parametrize("level", [0.05, 0.1, 0.5, 0.68, 0.8, 0.9, 0.95, 0.99])
def test_ranks_that_are_uniform_have_every_level(draws, bins, level):
    """Also a level whose interval ends between two ranks."""
    ranks = torch.arange(draws + 1).repeat(5 * bins).unsqueeze(1)
    found = _coverage([(ranks, torch.ones_like(ranks, dtype=torch.bool))], draws, (level,), bins, "attention")
    assert found.coverage[level] == pytest.approx(level)


@pytest.mark.parametrize(("factor", "sign"), [(0.5, -1), (2.0, 1)])
def test_widths_that_are_wrong(factor, sign):
    def infer(*args):
        return exact(*args, factor=factor)

    found = check_coverage(Ratio(), *inputs(), infer=infer, seed=0)["attention"]
    assert found.p_value < 1e-6
    assert sign * (found.coverage[0.8] - 0.8) > 10 * found.errors[0.8]
    ends = (found.ranks < 10).sum() + (found.ranks >= 90).sum()
    assert sign * (0.2 * len(found.ranks) - ends) > 0


def test_a_width_that_was_chosen_fails_and_the_prior_passes():
    model = Ratio()
    chosen = check_coverage(AttentionGuide(model, Weibull(10.0)), *inputs(), seed=0)["attention"]
    assert chosen.p_value < 1e-6
    assert chosen.coverage[0.9] < 0.3
    # E[S] = exp(score) moves both keys alike
    prior = check_coverage(AttentionGuide(model, LogNormal(scale=1.0)), *inputs(), seed=0)["attention"]
    assert prior.p_value > 1e-3


class GivenY(torch.nn.Module):
    """Scores of the closed-form posterior of the log ratio."""

    def forward(self, scores, y):
        return torch.stack([2 / (2 + NOISE**2) * y, torch.zeros_like(y)], -1).unsqueeze(-2)


@pytest.mark.parametrize("by_name", [False, True])
def test_an_inference_network_sees_what_was_drawn(by_name):
    """The guide is the exact posterior, given the observations that its network reads among the arguments."""
    width = (NOISE**2 / (2 + NOISE**2)) ** 0.5
    guide = AttentionGuide(Ratio(), Amortized(GivenY(), LogNormal(scale=width)))
    scores, y = inputs()
    args, kwargs = ((scores,), {"y": y}) if by_name else ((scores, y), {})
    found = check_coverage(guide, *args, seed=0, **kwargs)["attention"]
    assert found.p_value > 1e-3
    assert (y == 0).all()


def test_an_input_that_is_observed_stays_as_it_is_without_an_inference_network():
    model, inputs_of_model = Ratio(), []

    def copies(x):
        inputs_of_model.append(x)
        model(torch.zeros(len(x), 1, 2), x)

    x = torch.randn(100)
    check_coverage(AttentionGuide(copies, LogNormal(scale=1.0)), x, num_draws=19, seed=0)
    assert len(inputs_of_model) == 20
    assert all(value is x for value in inputs_of_model)


def test_an_inference_network_that_would_not_see_what_was_drawn():
    model = Ratio()
    guide = AttentionGuide(lambda scores, y: model(scores, 1 * y), Amortized(GivenY(), LogNormal(scale=0.3)))
    with pytest.raises(ValueError, match=r"inference network.* observation 'y' is none of them.* pass infer="):
        check_coverage(guide, *inputs(400))


class Shifted(torch.nn.Module):
    """A latent shift moves the weights by far, and y is news of neither; so draws of the prior are exact."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (LatentAttention(name, ScorePrior(LogNormal(1.0))) for name in ("first", "second"))

    def forward(self, scores, y=None):
        values, layout = torch.eye(2).unsqueeze(0), Dense(event_dim=2)
        with pyro.plate("items", len(scores)):
            shift = pyro.sample("shift", Normal(0.0, 3.0))
            pair = torch.stack([shift, -shift], -1).unsqueeze(-2)
            context = self.first(scores + pair, values, layout=layout).context  # [items, 1, 2]
            self.second(scores + 5 * context, values, layout=layout)
            pyro.sample("y", Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize("place", ["condition around the guide", "do inside the model"])
def test_a_latent_that_a_handler_gives(place):
    """It was drawn from its prior in the simulation, and had the given value in the inference."""
    (scores, y), given = inputs(2000), {"shift": torch.full((2000,), 2.0)}
    if place == "condition around the guide":
        guide = poutine.condition(AttentionGuide(Shifted(), FromPrior(), keep_prior="shift"), data=given)
    else:
        guide = AttentionGuide(poutine.do(Shifted(), data=given), FromPrior(), keep_prior="shift")
    found = check_coverage(guide, scores, y, num_draws=19, seed=0)
    assert {name: coverage.p_value > 1e-3 for name, coverage in found.items()} == {"first": True, "second": True}


def test_observations_that_a_handler_around_the_guide_gives():
    scores, y = inputs(2000)
    guide = poutine.condition(AttentionGuide(Shifted(), FromPrior(), keep_prior="shift"), data={"y": y})
    found = check_coverage(guide, scores, num_draws=19, seed=0)
    # the shift is inferred by its prior
    assert all(coverage.p_value > 1e-3 for coverage in found.values())


@pytest.mark.parametrize("place", ["around the guide", "inside the model"])
def test_attention_that_is_given_is_drawn_with_the_data(place):
    scores, y = inputs(2000)
    net, given = Shifted(), {"first": torch.randn(2000, 1, 2), "shift": y}
    if place == "around the guide":
        guide = poutine.condition(AttentionGuide(net, FromPrior()), data=given)
    else:
        guide = AttentionGuide(poutine.condition(net, data=given), FromPrior())
    found = check_coverage(guide, scores, y, num_draws=19, seed=0)
    assert list(found) == ["second"]
    assert found["second"].p_value > 1e-3
    with pytest.raises(ValueError, match="no latent attention site"):
        check_coverage(poutine.condition(guide, data={"second": torch.randn(2000, 1, 2)}), scores, y)


def test_noted_values_are_drawn_anew_in_the_inference():
    """A value of ``pyro.deterministic`` is no observation: given to the guide, it would tell what was drawn."""
    first, second = (LatentAttention(name, FixedLogNormalPrior()) for name in ("first", "second"))
    values, layout, noted = torch.eye(2).unsqueeze(0), Dense(event_dim=2), []

    def model(scores, y):
        with pyro.plate("items", len(y)):
            context = pyro.deterministic("context", first(scores, values, layout=layout).context, event_dim=2)
            noted.append(context)
            ratio = second(10 * context, values, layout=layout).weights.squeeze(-2).log()
            pyro.sample("y", Normal(ratio[..., 0] - ratio[..., 1], NOISE), obs=y)

    check_coverage(AttentionGuide(model, LogNormal(scale=1.0)), *inputs(100), num_draws=19, seed=0)
    assert len(noted) == 20
    assert all((context != noted[0]).all() for context in noted[1:])


class Noisy(Ratio):
    """Beside dropout: a weight that no one drops out in evaluation mode, and a module whose mode is its own."""

    def __init__(self):
        super().__init__()
        self.dropout, self.frozen = torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(1).eval()

    def forward(self, scores, y):
        with pyro.plate("items", len(y)):
            weights = self.attention(scores, torch.eye(2).unsqueeze(0), layout=self.layout).weights.squeeze(-2)
            ratio = self.dropout(weights[..., 0].log() - weights[..., 1].log())
            pyro.sample("y", Normal(ratio + self.frozen(torch.zeros(2, 1)).sum(), NOISE), obs=y)


@pytest.mark.parametrize("as_function", [False, True])
def test_dropout_is_off_in_simulation_and_inference_and_modes_come_back(as_function):
    """In training mode half of the data would be of another model than the closed form, which has no dropout."""
    net = Noisy().train()
    net.frozen.eval()
    seen = []

    def infer(observations, scores, y):
        net(scores, y)  # what runs in it is in evaluation mode, too
        seen.append(net.dropout.training)
        return exact(observations, scores, y)

    model = (lambda *args: net(*args)) if as_function else net
    found = check_coverage(model, *inputs(), infer=infer, seed=0)["attention"]
    assert found.p_value > 1e-3
    assert abs(found.coverage[0.9] - 0.9) < 4 * found.errors[0.9]
    assert seen == [False]
    assert (net.training, net.dropout.training, net.frozen.training) == (True, True, False)
    with pytest.raises(ZeroDivisionError):
        check_coverage(model, *inputs(), infer=lambda *_: 1 / 0, seed=0)
    assert (net.training, net.dropout.training, net.frozen.training) == (True, True, False)


def test_masked_weights_do_not_count():
    mask = torch.tensor([[True, True, False]])
    guide = AttentionGuide(Ratio(mask=mask), LogNormal(scale=1.0))
    found = check_coverage(guide, *inputs(keys=3), seed=1)["attention"]
    assert found.p_value > 1e-3
    assert abs(found.coverage[0.5] - 0.5) < 4 * found.errors[0.5]


def test_alignments_have_ties():
    attention, values = LatentAttention("attention", AlignmentPrior()), torch.eye(3).unsqueeze(0)

    def model(scores, y):
        with pyro.plate("items", len(y)):
            context = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-2)
            pyro.sample("y", Labels(logits=2 * context), obs=y)

    def infer(observations, scores, y):
        posterior = exact_alignments(model, scores, observations["y"])["attention"]
        keys = posterior.flatten(0, -2).multinomial(19, replacement=True).T.view(19, *posterior.shape[:-1])
        return {"attention": torch.nn.functional.one_hot(keys, 3).float()}

    scores, y = torch.randn(3000, 1, 3), torch.zeros(3000, dtype=torch.long)
    found = check_coverage(model, scores, y, infer=infer, num_draws=19, seed=1)["attention"]
    assert found.p_value > 1e-3


def test_runs_of_a_model_without_plates():
    attention = LatentAttention("attention", FixedLogNormalPrior())

    def model(scores, y):
        weights = attention(scores, torch.eye(2).unsqueeze(0)).weights
        pyro.sample("y", Normal(weights[0, 0, 0], 1.0), obs=y)

    guide = AttentionGuide(model, LogNormal(scale=1.0))
    options = {"num_simulations": 60, "num_draws": 9, "bins": 5, "levels": (0.8,), "seed": 0}
    found = check_coverage(guide, torch.zeros(1, 1, 2), torch.zeros(()), **options)["attention"]
    assert len(found.ranks) == 60
    assert found.p_value > 1e-3


def test_the_picture_shows_the_ranks():
    pytest.importorskip("matplotlib")
    from matplotlib.patches import Rectangle

    found = check_coverage(Ratio(), *inputs(400), infer=exact, seed=0)["attention"]
    ax = found.plot()
    bars = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    heights = [bar.get_height() for bar in bars if bar.get_width() == pytest.approx(0.05)]
    assert heights == pytest.approx((torch.bincount(found.ranks // 5, minlength=20) / 400).tolist())
    assert found.plot(ax) is ax


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draws": 100}, "expected one less than a multiple of bins"),
        ({"bins": 0}, "expected one less than a multiple of bins"),
        ({"bins": 1}, "expected one less than a multiple of bins"),
        ({"num_simulations": 0}, "num_simulations is 0, expected an integer of at least 1"),
        ({"levels": (90,)}, "level is 90"),
        ({"bins": 100}, r"site 'attention': 400 items for 100 bins, expected at least 500; raise num_simulations"),
        ({"infer": lambda *_: {"attention": torch.zeros(9)}}, r"infer gave draws of shape \(9,\)"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        check_coverage(Ratio(), *inputs(400), **{"infer": exact, **options})


def test_models_that_cannot_be_checked():
    attention = LatentAttention("attention", FixedLogNormalPrior())
    with pytest.raises(TypeError, match="model is a Ratio, expected an AttentionGuide, or infer="):
        check_coverage(Ratio(), *inputs(400))
    with pytest.raises(ValueError, match="the model has no observed site"):
        check_coverage(lambda scores: attention(scores, torch.eye(2)[None]), torch.zeros(1, 1, 2), infer=exact)
    with pytest.raises(ValueError, match="the model has no latent attention site"):
        check_coverage(lambda: pyro.sample("y", Normal(0.0, 1.0), obs=torch.zeros(())), infer=exact)
