"""Training with AttentionELBO: by SVI, as a module, and in the limits of its KL term."""

import copy
import re
import warnings

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import SVI
from pyro.infer.util import is_validation_enabled
from pyro.optim import SGD, Adam
from torch import nn

from models.gat import GAT
from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    FixedGammaPrior,
    LogNormal,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.families.lognormal import ContextualLogNormalPrior, FixedLogNormalPrior
from pyro_attention.objectives import validation
from tests.helpers import log_mean
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences


@pytest.fixture
def data():
    return Sequences.random()


@pytest.mark.parametrize("graph", [False, True])
def test_svi_and_a_torch_optimizer_train_alike(graph):
    """With the same draws they have the same losses."""
    if graph:
        model, arguments = GAT(5, 3, hidden=4, heads=2, dropout=0.0), GraphData.random().arguments
    else:
        data = Sequences.random(batch=40)
        model, arguments = SelfAttention(), (data.x, data.y, data.padding)
    other, losses = copy.deepcopy(model), ([], [])
    family, twin = (Weibull(5.0, learnable=True) for _ in range(2))
    options = {"kl_weight": 0.01, "num_particles": 2, "vectorize_particles": not graph, "max_plate_nesting": 1}
    svi = SVI(model, AttentionGuide(model, family), Adam({"lr": 0.02}), AttentionELBO(**options))
    loss = AttentionELBO(**options)(other, AttentionGuide(other, twin))
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    for step in range(25):
        torch.manual_seed(step)
        losses[0].append(svi.step(*arguments))
        torch.manual_seed(step)
        optimizer.zero_grad()
        value = loss(*arguments)
        value.backward()
        optimizer.step()
        losses[1].append(value.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert family.log_value.item() == pytest.approx(twin.log_value.item(), rel=1e-3)
    assert abs(family.log_value.exp().item() - 5) > 0.05


class Raw:
    """A plain model function over layers that Pyro does not know of."""

    def __init__(self, register):
        self.register, self.layers = register, nn.ModuleList([nn.Linear(4, 4), MultiheadAttention(4, 2)])

    def __call__(self, x, y):
        if self.register:
            pyro.module("layers", self.layers)
        with pyro.plate("batch", x.size(0)):
            h = self.layers[0](x)
            pyro.sample("y", Normal(self.layers[1](h, h, h)[0].sum((-1, -2)), 1.0), obs=y)


@pytest.mark.parametrize("family", [Weibull(), Weibull(learnable=True)], ids=str)
def test_layers_that_nobody_would_train(family, data):
    """The guide's own parameter alone is not enough either."""
    model, elbo = Raw(register=False), AttentionELBO()
    guide = AttentionGuide(model, family)
    message = r"\d+ of \d+ parameters .* are no param sites, so SVI would not train them; make the model a PyroModule"
    with pytest.raises(ValueError, match=message):
        SVI(model, guide, Adam({"lr": 0.01}), elbo).step(data.x, data.y)
    with pytest.raises(ValueError, match=r"\d+ of \d+ parameters .* belong to no module of the loss"):
        elbo(model, guide)(data.x, data.y)
    pyro.clear_param_store()
    model = Raw(register=True)
    before = copy.deepcopy(model.layers.state_dict())
    SVI(model, AttentionGuide(model, family), Adam({"lr": 0.01}), elbo).step(data.x, data.y)
    assert all(not v.equal(before[name]) for name, v in model.layers.state_dict().items() if "log_rate" not in name)
    # Pyro's param store gives a second model the parameters of the first, by their names
    second = Raw(register=True)
    guide = AttentionGuide(second, Weibull(torch.ones(2), learnable=True))
    with pytest.raises(ValueError, match=r"call pyro\.clear_param_store\(\) first"):
        SVI(second, guide, Adam({"lr": 0.01}), elbo).step(data.x, data.y)


@pytest.mark.parametrize("elbo", [AttentionELBO(), AlignmentELBO()], ids=["attention", "alignment"])
def test_the_guide_of_another_model(elbo, data):
    model, guide = SelfAttention(), AttentionGuide(SelfAttention(), Soft())
    for train in (elbo(model, guide), SVI(model, guide, Adam({}), elbo).step):
        with pytest.raises(ValueError, match="the model is not that of the guide"):
            train(data.x, data.y)
    elbo(guide.model, poutine.scale(guide, 1.0))
    elbo(poutine.scale(guide.model, 1.0), guide)


def test_an_input_may_need_a_gradient(data):
    model = SelfAttention()
    data.x.requires_grad_()
    AttentionELBO()(model, AttentionGuide(model, Soft()))(data.x, data.y).backward()
    assert data.x.grad.abs().max() > 0


def test_a_kl_that_outweighs_the_data_warns_once(data):
    """It names a weight of at most a tenth of the data, and more than a hundredth."""
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())

    def steps(elbo):
        loss = elbo(model, guide)
        return [loss(data.x, data.y) for _ in range(3)][-1]

    elbo = AttentionELBO(kl_weight=2.0)
    with pytest.warns(UserWarning, match="the KL outweighs the data") as caught:
        value = steps(elbo)
    kl = sum(elbo.kl_record.values())
    (message,) = (str(warning.message) for warning in caught)
    weight = float(re.search(r"kl_weight=([\d.e-]+)", message)[1])
    assert 0.01 < weight * kl / (value - 2 * kl) < 0.1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the KL outweighs")
        AttentionELBO().loss(model, guide, data.x, data.y)  # no training
        for light in (0, weight):
            steps(AttentionELBO(kl_weight=light))


@pytest.mark.parametrize(
    ("family", "prior"),
    [(Weibull(1e6), ContextualGammaPrior), (LogNormal(1e-6), ContextualLogNormalPrior)],
    ids=["weibull", "lognormal"],
)
def test_without_noise_and_kl_it_is_soft_attention_run_for_run(family, prior):
    data = Sequences.random(batch=12)
    soft = SelfAttention(prior=prior)
    start, narrow, wide = (copy.deepcopy(soft) for _ in range(3))
    for model, chosen in ((soft, Soft()), (narrow, family), (wide, type(family)(1.0))):
        pyro.clear_param_store()
        svi = SVI(model, AttentionGuide(model, chosen), SGD({"lr": 0.003}), AttentionELBO(kl_weight=0))
        for _ in range(20):
            svi.step(data.x, data.y, data.padding)

    def distance(one, other):
        return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters(), strict=True))

    assert distance(soft, start) > 0.1
    assert distance(soft, narrow) < 1e-4
    assert distance(soft, wide) > 1e-2


PRIORS = {
    "gamma_contextual": (lambda: ContextualGammaPrior(4, rate=3.0), Weibull(5.0)),
    "lognormal_contextual": (lambda: ContextualLogNormalPrior(4, scale=0.5), LogNormal(0.3)),
    "gamma_fixed": (lambda: FixedGammaPrior(2.0, 5.0), Weibull(5.0)),
    "lognormal_fixed": (lambda: FixedLogNormalPrior(-1.0, 0.5), LogNormal(0.3)),
}


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
@pytest.mark.parametrize("name", PRIORS)
def test_a_strong_kl_drives_attention_to_the_prior(name):
    """The likelihood wants all attention on the first key."""
    make_prior, family = PRIORS[name]
    target = torch.zeros(1, 3, 4)
    target[..., 0] = 1
    peaked = FreeScores(make_prior().requires_grad_(False))
    pulled = copy.deepcopy(peaked)
    for model, weight in ((peaked, 0.0), (pulled, 1000.0)):
        pyro.clear_param_store()
        svi = SVI(model, AttentionGuide(model, family), Adam({"lr": 0.1}), AttentionELBO(kl_weight=weight))
        for _ in range(120):
            svi.step(target)
    prior = poutine.trace(pulled).get_trace().nodes["attention"]["fn"]
    expected = log_mean(prior).softmax(-1) if "contextual" in name else torch.full((1, 3, 4), 0.25)
    torch.testing.assert_close(pulled.scores.detach().softmax(-1), expected.detach(), atol=0.02, rtol=0)
    assert (peaked.scores.softmax(-1) - expected).abs().max() > 0.2
    assert peaked.scores.softmax(-1)[..., 0].min() > 0.9


def test_values_are_looked_at_in_the_first_evaluations_of_a_guide_and_then_now_and_then(data, monkeypatch):
    """Where Pyro validates: a look waits for the device. Another guide is looked at from its first evaluation on."""
    monkeypatch.setattr(validation, "_FIRST", 2)
    monkeypatch.setattr(validation, "_EVERY", 5)
    network, elbo, actual = SelfAttention(), AttentionELBO(), []

    def model(*args):
        actual.append(is_validation_enabled())
        return network(*args)

    def evaluate(guide, times):
        actual.clear()
        for _ in range(times):
            elbo.differentiable_loss(model, guide, data.x, data.y)
        return actual[:: len(actual) // times]

    for guide in (AttentionGuide(model, Weibull()), AttentionGuide(model, Weibull())):
        assert evaluate(guide, 11) == [True, True, False, False, True, False, False, False, False, True, False]
    with pyro.validation_enabled(False):
        assert not any(evaluate(guide, 5))
