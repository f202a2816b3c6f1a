"""AttentionELBO: its value against Pyro's own ELBOs, KL weights and records, handlers, and what it refuses."""

import gc
import math
import weakref
from contextlib import nullcontext

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import Adam
from torch import nn

from models.gat import GAT
from pyro_attention import (
    AlignmentELBO,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Gamma,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    Weibull,
    elbo_for,
)
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.schedules import Linear
from tests.helpers import assert_mean
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences

FAMILIES = [Soft(), Weibull(5.0), Gamma(5.0), LogNormal(0.3), {"layers.0": Soft(), "*": Weibull(5.0)}]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


def self_attention():
    data = Sequences.random()
    return SelfAttention(), (data.x, data.y, data.padding)


def graph_attention():
    return GAT(5, 3, hidden=4, heads=2, dropout=0.0), GraphData.random().arguments


every_model = pytest.mark.parametrize("make", [self_attention, graph_attention])


def seeded(elbo, model, guide, arguments, seed=0):
    torch.manual_seed(seed)
    return elbo.differentiable_loss(model, guide, *arguments)


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@every_model
@every_family
def test_equals_the_stock_mean_field_elbo(make, family):
    model, arguments = make()
    guide = AttentionGuide(model, family)
    losses = [seeded(elbo, model, guide, arguments) for elbo in (AttentionELBO(), TraceMeanField_ELBO())]
    torch.testing.assert_close(*losses)
    for mine, theirs in zip(*(gradients(loss, model) for loss in losses), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@every_model
@pytest.mark.parametrize("family", [Weibull(3.0), LogNormal(0.5)], ids=str)
def test_agrees_in_mean_with_sampled_kl(make, family):
    model, arguments = make()
    guide = AttentionGuide(model, family)
    with torch.no_grad():
        closed, sampled = (
            torch.stack([seeded(elbo, model, guide, arguments, seed) for seed in range(60)])
            for elbo in (AttentionELBO(), AttentionELBO(kl="sampled"))
        )
        trace = seeded(Trace_ELBO(), model, guide, arguments)
    torch.testing.assert_close(sampled[0], trace)
    assert_mean(sampled - closed, 0.0)
    assert closed.std() < sampled.std()


@every_model
@pytest.mark.parametrize("weight", [0.5, 2])
def test_kl_weight_scales_the_term(make, weight):
    model, arguments = make()
    guide = AttentionGuide(model, Weibull())
    elbos = [AttentionELBO(kl_weight=each) for each in (0, weight, 1)]
    none, weighted, whole = (seeded(elbo, model, guide, arguments) for elbo in elbos)
    assert elbos[0].kl_record == {}
    assert set(elbos[1].kl_record) == {"layers.0", "layers.1"}
    kl = sum(elbos[1].kl_record.values())
    assert kl > 1
    torch.testing.assert_close(weighted - none, weight * kl)
    torch.testing.assert_close(whole - none, kl)
    torch.testing.assert_close(elbos[1].kl_record, elbos[2].kl_record)


def test_kl_weight_zero_skips_what_is_infinite():
    """Zero times an infinite KL would be NaN."""
    model = FreeScores(FixedGammaPrior(), normalize_scores=False)
    nn.init.constant_(model.scores, 200.0)  # E[S] = e^200 is infinite in float32
    guide, y = AttentionGuide(model, Weibull()), torch.zeros(1, 3, 4)
    with pytest.raises(ValueError, match="the KL of 'attention' overflows"):
        AttentionELBO().differentiable_loss(model, guide, y)
    loss = AttentionELBO(kl_weight=0).differentiable_loss(model, guide, y)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(loss, model))


@pytest.mark.parametrize("step", [4, 20])
def test_kl_weight_may_be_a_schedule_of_the_callers_step(step):
    model, arguments = self_attention()
    guide = AttentionGuide(model, Weibull())
    elbo = AttentionELBO(kl_weight=Linear(warmup=10))
    losses = []
    for elbo.step in (0, 0, step):
        losses.append(seeded(elbo, model, guide, arguments))
        assert elbo.step in (0, step)  # never counted inside
        assert elbo.current_kl_weight() == min(1, elbo.step / 10)
    whole = seeded(AttentionELBO(), model, guide, arguments)
    torch.testing.assert_close(losses[2] - losses[0], min(1, step / 10) * (whole - losses[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"kl_weight": weight}, r"kl_weight is .* at step 0, expected a finite number >= 0")
            for weight in (-0.1, float("nan"), float("inf"), lambda step: -1.0)
        ),
        ({"kl": "exact"}, "kl is 'exact', expected 'closed_form' or 'sampled'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionELBO(**options)


def test_subsampling_scales_likelihood_and_kl():
    data = Sequences.random(batch=6)
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())
    records = []
    for size, factor in ((None, 1), (60, 10)):
        model.size, elbo = size, AttentionELBO()
        loss = seeded(elbo, model, guide, (data.x, data.y))
        records.append((loss / factor, {name: kl / factor for name, kl in elbo.kl_record.items()}))
    torch.testing.assert_close(*records)


def test_handlers_around_the_guide():
    model, (x, y, padding) = self_attention()
    guide = AttentionGuide(model, Weibull())
    keep = torch.tensor([True, False, True, True, False, False])
    total = seeded(AttentionELBO(), model, guide, (x, y, padding))
    torch.testing.assert_close(seeded(AttentionELBO(), model, poutine.scale(guide, 3.0), (x, y, padding)), 3 * total)
    kept, dropped = (
        seeded(AttentionELBO(), model, poutine.mask(guide, mask), (x, y, padding)) for mask in (keep, ~keep)
    )
    torch.testing.assert_close(kept + dropped, total)
    other = torch.where(keep, y, 100.0)
    torch.testing.assert_close(
        seeded(AttentionELBO(), model, poutine.mask(guide, keep), (x, other, padding)), kept
    )  # the likelihood of the others does not count
    assert seeded(AttentionELBO(), model, poutine.mask(guide, mask=False), (x, y, padding)) == 0


@pytest.mark.parametrize("elbo", [AttentionELBO(), AttentionELBO(kl="sampled")], ids=lambda elbo: elbo.kl)
def test_plain_callable_guide(elbo):
    """A guide written as a function runs in a pass of its own, as in stock Pyro."""
    model, y = FreeScores(FixedLogNormalPrior()), torch.zeros(1, 3, 4)

    def guide(y):
        loc = pyro.param("loc", torch.zeros(1, 3, 4))
        pyro.sample("attention", LogNormalWeights(loc, torch.tensor(0.1)))

    stock = {"closed_form": TraceMeanField_ELBO(), "sampled": Trace_ELBO()}[elbo.kl]
    torch.testing.assert_close(seeded(elbo, model, guide, (y,)), seeded(stock, model, guide, (y,)))
    SVI(model, guide, Adam({"lr": 0.01}), elbo).step(y)
    assert (pyro.param("loc") != 0).all()


class WeibullPrior(FixedGammaPrior):
    def forward(self, scores, keys, layout):
        return WeibullWeights(self.log_rate, self.log_concentration.exp(), layout=layout, shape=scores.shape)


def test_missing_closed_form():
    model, y = FreeScores(WeibullPrior()), torch.zeros(1, 3, 4)
    guide = AttentionGuide(model, Weibull())
    message = r"site 'attention': KL\(WeibullWeights \|\| WeibullWeights\) has no closed form; .* kl='sampled'"
    with pytest.raises(ValueError, match=message):
        AttentionELBO().loss(model, guide, y)
    sampled = seeded(AttentionELBO(kl="sampled"), model, guide, (y,))
    torch.testing.assert_close(sampled, seeded(Trace_ELBO(), model, guide, (y,)))


@pytest.mark.filterwarnings("ignore:Encountered")
@pytest.mark.parametrize("value", [math.nan, -math.inf], ids=str)
def test_not_finite(value):
    layer = FreeScores(FixedGammaPrior())

    def model(value):
        layer(torch.zeros(1, 3, 4))
        pyro.sample("x", Normal(0.0, 1.0, validate_args=False), obs=torch.tensor(value))

    guide = AttentionGuide(model, Weibull())
    message = (
        rf"the ELBO is {value} \(KL per site: .*'attention': .*; log likelihood per site: .*'x': {value}.*look for"
    )
    for evaluate in (AttentionELBO().differentiable_loss, AttentionELBO().loss):
        with pytest.raises(ValueError, match=message):
            evaluate(model, guide, value)


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
def test_nothing_to_train():
    model, arguments = self_attention()
    model.requires_grad_(False)
    svi = SVI(model, AttentionGuide(model, Weibull()), Adam({"lr": 0.01}), AttentionELBO())
    with pytest.raises(ValueError, match="nothing to train: the loss depends on no parameter"):
        svi.step(*arguments)
    assert svi.evaluate_loss(*arguments) > 0


@pytest.mark.parametrize("learning", ["svi", "module"])
def test_no_graph_outlives_a_step(learning):
    seen = []
    model, arguments = self_attention()
    model.layers[1].attention.register_forward_hook(lambda *args: seen.append(weakref.ref(args[-1].weights)))
    guide = AttentionGuide(model, Weibull())
    if learning == "svi":
        SVI(model, guide, Adam({"lr": 0.01}), AttentionELBO()).step(*arguments)
    else:
        AttentionELBO()(model, guide)(*arguments).backward()
    gc.collect()
    assert len(seen) == 1
    assert seen[0]() is None
    assert not hasattr(guide, "trace")


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        (Weibull(), AttentionELBO),
        ({"a": Soft(), "*": Marginal()}, AlignmentELBO),
        (Amortised(torch.nn.Identity(), Categorical()), AlignmentELBO),
        (Amortised(torch.nn.Identity(), Categorical(enumerate=False)), ScoreFunctionELBO),
        ({"a": Marginal(), "*": Categorical(enumerate=False)}, None),
    ],
    ids=str,
)
def test_the_objective_that_goes_with_a_guide(families, expected):
    guide = pyro.poutine.scale(AttentionGuide(lambda: None, families), scale=2.0)
    with pytest.raises(ValueError, match="sums alignments out") if expected is None else nullcontext():
        assert type(elbo_for(guide, num_particles=2)) is expected
