"""Training with AttentionELBO: by SVI, as a module, on two processes, and in the limits of its KL term."""

import copy
import math
import re
import warnings

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import SVI
from pyro.optim import SGD, Adam
from torch import nn
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.distributions import kl_divergence
from torch.nn.parallel import DistributedDataParallel

from models.gat import GAT
from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    FixedGammaPrior,
    FixedLogNormalPrior,
    LogNormal,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.check import KLWarning
from pyro_attention.schedules import Linear
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences

LAYERS = ("layers.0", "layers.1")


def test_svi_trains_self_attention():
    data = Sequences.random(batch=40)
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull(5.0, learnable=True))
    svi = SVI(model, guide, Adam({"lr": 0.02}), AttentionELBO(kl_weight=0.1))
    losses = [svi.step(data.x, data.y, data.padding) for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]
    assert svi.evaluate_loss(data.x, data.y, data.padding) == pytest.approx(losses[-1], rel=0.2)


def test_a_torch_optimiser_trains_a_graph():
    data = GraphData.random()
    model = GAT(5, 3, hidden=4, heads=2, dropout=0.0)
    loss = AttentionELBO(kl_weight=0.01)(model, AttentionGuide(model, Weibull()))
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(*data.arguments)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("vectorize", [False, True])
def test_svi_and_module_give_the_same_gradients(vectorize):
    data = Sequences.random()
    model = SelfAttention()
    other = copy.deepcopy(model)
    options = {"num_particles": 2, "vectorize_particles": vectorize, "max_plate_nesting": 1}
    guide = AttentionGuide(model, Weibull())
    torch.manual_seed(0)
    loss = AttentionELBO(**options).loss_and_grads(model, guide, data.x, data.y)
    pyro.clear_param_store()
    torch.manual_seed(0)
    value = AttentionELBO(**options)(other, AttentionGuide(other, Weibull()))(data.x, data.y)
    value.backward()
    assert value.item() == pytest.approx(loss)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


class Raw:
    """A plain model function over layers that Pyro does not know of."""

    def __init__(self, register):
        self.register = register
        self.layers = nn.ModuleList([nn.Linear(4, 4), MultiheadAttention(4, 2)])

    def __call__(self, x, y):
        if self.register:
            pyro.module("layers", self.layers)
        with pyro.plate("batch", x.size(0)):
            h = self.layers[0](x)
            pyro.sample("y", Normal(self.layers[1](h, h, h)[0].sum((-1, -2)), 1.0), obs=y)


def trained(layers, before):
    return [not value.equal(before[name]) for name, value in layers.state_dict().items() if "log_rate" not in name]


def test_raw_module_under_svi():
    data = Sequences.random()
    model = Raw(register=False)
    svi = SVI(model, AttentionGuide(model, Weibull()), Adam({"lr": 0.01}), AttentionELBO())
    message = r"\d+ of \d+ parameters .* are no param sites, so SVI would not train them; make the model a PyroModule"
    with pytest.raises(ValueError, match=message):
        svi.step(data.x, data.y)
    # the guide's own parameter alone is not enough either
    guide = AttentionGuide(model, Weibull(learnable=True))
    with pytest.raises(ValueError, match=message):
        SVI(model, guide, Adam({"lr": 0.01}), AttentionELBO()).step(data.x, data.y)


def test_a_second_model_in_one_process():
    """Pyro's param store gives it the parameters of the first, by their names."""
    data, optimizer = Sequences.random(), Adam({"lr": 0.01})
    for family in (Weibull(5.0, learnable=True), Weibull(torch.ones(2), learnable=True)):
        model = Raw(register=True)
        svi = SVI(model, AttentionGuide(model, family), optimizer, AttentionELBO())
        if family.log_value.dim():
            with pytest.raises(ValueError, match=r"call pyro\.clear_param_store\(\) first"):
                svi.step(data.x, data.y)
            pyro.clear_param_store()
        svi.step(data.x, data.y)


def test_registered_module_under_svi():
    data = Sequences.random()
    model = Raw(register=True)
    before = copy.deepcopy(model.layers.state_dict())
    svi = SVI(model, AttentionGuide(model, Weibull()), Adam({"lr": 0.01}), AttentionELBO())
    svi.step(data.x, data.y)
    assert all(trained(model.layers, before))


@pytest.mark.parametrize("register", [False, True])
@pytest.mark.parametrize("family", [Weibull(), Weibull(learnable=True)], ids=str)
def test_raw_module_with_a_torch_optimiser(family, register):
    """The parameters of the loss would be those of the family alone."""
    data = Sequences.random()
    model = Raw(register)
    before = copy.deepcopy(model.layers.state_dict())
    elbo, guide = AttentionELBO(), AttentionGuide(model, family)
    with pytest.raises(ValueError, match=r"\d+ of \d+ parameters .* belong to no module of the loss"):
        elbo(model, guide)(data.x, data.y)
    optimizer = torch.optim.Adam([*model.layers.parameters(), *family.parameters()], lr=0.01)
    elbo.differentiable_loss(model, guide, data.x, data.y).backward()
    optimizer.step()
    assert all(trained(model.layers, before))


@pytest.mark.parametrize("elbo", [AttentionELBO(), AlignmentELBO()], ids=["attention", "alignment"])
def test_the_guide_of_another_model(elbo):
    data, model = Sequences.random(), SelfAttention()
    guide = AttentionGuide(SelfAttention(), Soft())
    with pytest.raises(ValueError, match="the model is not that of the guide"):
        elbo(model, guide)
    with pytest.raises(ValueError, match="the model is not that of the guide"):
        SVI(model, guide, Adam({"lr": 0.01}), elbo).step(data.x, data.y)
    elbo(guide.model, poutine.scale(guide, 1.0))
    elbo(poutine.scale(guide.model, 1.0), guide)


def test_an_input_may_need_a_gradient():
    data, model = Sequences.random(), SelfAttention()
    data.x.requires_grad_()
    AttentionELBO()(model, AttentionGuide(model, Soft()))(data.x, data.y).backward()
    assert data.x.grad.abs().max() > 0


def test_a_kl_that_outweighs_the_data_warns_once():
    """It names a weight of at most a tenth of the data, and more than a hundredth."""
    data = Sequences.random()
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())

    def steps(elbo):
        loss = elbo(model, guide)
        for _ in range(3):
            value = loss(data.x, data.y)
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("error", KLWarning)
        AttentionELBO().loss(model, guide, data.x, data.y)  # no training
        steps(AttentionELBO(kl_weight=0))
    elbo = AttentionELBO(kl_weight=2.0)
    with pytest.warns(KLWarning, match="the KL outweighs the data") as caught:
        value = steps(elbo)
    kl = sum(elbo.kl_record.values())
    (message,) = (str(warning.message) for warning in caught)
    weight = float(re.search(r"kl_weight=([\d.e-]+)", message)[1])
    assert 0.01 < weight * kl / (value - 2 * kl) < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", KLWarning)
        steps(AttentionELBO(kl_weight=weight))


def test_mean_kl():
    """By hand: of an item, the mean over its attention weights and the two layers."""
    data = Sequences.random()
    model = SelfAttention()
    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=0.3, kl_mean=True)
    torch.manual_seed(0)
    run = guide.run(data.x, data.y, data.padding)
    pairs = [kl_divergence(site["fn"], site["infer"]["prior"]) for site in map(run.trace.nodes.get, LAYERS)]
    weights = 2 * 5 * (~data.padding).sum(-1)  # heads, queries and keys
    expected = 0.3 * (sum(pairs) / (2 * weights)).sum() - run.trace.nodes["y"]["fn"].log_prob(data.y).sum()
    torch.manual_seed(0)
    torch.testing.assert_close(elbo(model, guide)(data.x, data.y, data.padding), expected)


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
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    assert distance(soft, start) > 0.1
    assert distance(soft, narrow) < 1e-4
    assert distance(soft, wide) > 1e-2


def fit(model, family, kl_weight, target, steps=150):
    """Mean attention weights after training."""
    pyro.clear_param_store()
    svi = SVI(model, AttentionGuide(model, family), Adam({"lr": 0.1}), AttentionELBO(kl_weight=kl_weight))
    for _ in range(steps):
        svi.step(target)
    return model.scores.detach().softmax(-1)


PRIORS = {
    "gamma_fixed": (lambda: FixedGammaPrior(2.0, 5.0), Weibull(5.0)),
    "gamma_contextual": (lambda: ContextualGammaPrior(4, rate=3.0), Weibull(5.0)),
    "lognormal_fixed": (lambda: FixedLogNormalPrior(-1.0, 0.5), LogNormal(0.3)),
    "lognormal_contextual": (lambda: ContextualLogNormalPrior(4, scale=0.5), LogNormal(0.3)),
}


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
@pytest.mark.parametrize("name", PRIORS)
def test_a_strong_kl_drives_attention_to_the_prior(name):
    """The likelihood wants all attention on the first key."""
    make_prior, family = PRIORS[name]
    target = torch.zeros(1, 3, 4)
    target[..., 0] = 1
    model = FreeScores(make_prior().requires_grad_(False))
    start = copy.deepcopy(model)
    peaked = fit(model, family, 0.0, target)
    pulled = fit(start, family, 1000.0, target)
    with torch.no_grad():
        prior = pyro.poutine.trace(start).get_trace().nodes["attention"]["fn"]
        expected = prior.log_expected_weight.expand(1, 3, 4).softmax(-1)
    torch.testing.assert_close(pulled, expected, atol=0.02, rtol=0)
    assert (peaked - expected).abs().max() > 0.2
    assert peaked[..., 0].min() > 0.9
    if "fixed" in name:  # uniform attention: the largest entropy
        entropy = -(pulled * pulled.log()).sum(-1)
        torch.testing.assert_close(entropy, torch.full((1, 3), math.log(4)), atol=0.01, rtol=0)


def train_rank(rank, folder):
    init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    data = Sequences.random(batch=8)
    model = SelfAttention(size=8)
    elbo = AttentionELBO(kl_weight=Linear(warmup=2))
    loss = elbo(model, AttentionGuide(model, Weibull(5.0, learnable=True)))
    module = DistributedDataParallel(loss)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    part = slice(4 * rank, 4 * rank + 4)
    torch.manual_seed(rank)
    noise = []
    for elbo.step in range(3):  # the prior networks are not used at step 0
        optimizer.zero_grad()
        noise.append(torch.get_rng_state())
        module(data.x[part], data.y[part], data.padding[part]).backward()
        optimizer.step()
    gradients = {name: parameter.grad for name, parameter in loss.named_parameters()}
    torch.save({"state": loss.state_dict(), "gradients": gradients, "noise": noise}, f"{folder}/{rank}.pt")
    barrier()
    destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Ranks draw different noise and see different data; their parameters stay equal."""
    torch.multiprocessing.spawn(train_rank, (str(tmp_path),), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert not any(a.equal(b) for a, b in zip(one["noise"], two["noise"], strict=True))
    for part in ("state", "gradients"):
        assert one[part].keys() == two[part].keys()
        assert all(value.equal(two[part][name]) for name, value in one[part].items())
    assert all(gradient.abs().max() > 0 for gradient in one["gradients"].values())
    torch.manual_seed(0)
    start = SelfAttention(size=8).state_dict()
    changed = [name for name, value in start.items() if not value.equal(one["state"][f"model.{name}"])]
    assert len(changed) == len(list(SelfAttention().parameters()))
