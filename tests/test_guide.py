"""AttentionGuide: families, patterns and parameters; latent sites beside attention; handlers around it."""

import copy
import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormalMessenger
from pyro.infer.importance import vectorized_importance_weights
from pyro.infer.reparam import LocScaleReparam
from pyro.optim import Adam
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    Gamma,
    LatentAttention,
    LogNormal,
    ScoreFunctionELBO,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.posteriors import GumbelSoftmax, SparseCategorical
from pyro_attention.families.lognormal import FixedLogNormalPrior
from tests.helpers import posterior_and_prior
from tests.toy_models import SelfAttention, Sequences, Shifted

SITES = ("layers.0", "layers.1")


@pytest.fixture
def data():
    return Sequences.random()


# families, patterns and parameters


def test_families_swap_without_touching_the_model(data):
    model = SelfAttention()
    before, values = copy.deepcopy(model.state_dict()), []
    for families in (Soft(), Weibull(5.0), Weibull(2.0), LogNormal(0.4), Gamma(3.0), {"*.0": Soft(), "*": Weibull()}):
        guide, drawn = AttentionGuide(model, families), []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            sites = guide(data.x)
            assert set(sites) == {*SITES, "y"}
            drawn.append(torch.stack([sites[name] for name in SITES]))
        assert drawn[0].equal(drawn[1])
        assert drawn[0].equal(drawn[2]) == isinstance(families, Soft)
        assert not any(drawn[0].equal(other) for other in values)
        values.append(drawn[0])
        assert guide.run(data.x, padding=data.padding).output.shape == (6,)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["layers.0", "layers.*"], [0, 1]),
        (["*.1", "*"], [1, 0]),
        (["layers.[!0]", "layers.?"], [1, 0]),
        (["*"], [0, 0]),
    ],
    ids=str,
)
def test_first_matching_pattern_counts(patterns, expected, data):
    concentrations = [2.0, 30.0]
    families = {pattern: Weibull(k) for pattern, k in zip(patterns, concentrations, strict=False)}
    guide = AttentionGuide(SelfAttention(), families)
    for name, index in zip(SITES, expected, strict=True):
        assert posterior_and_prior(guide, data.x, site=name)[0].concentration.item() == pytest.approx(
            concentrations[index]
        )


SHARED = Weibull(5.0, learnable=True)
LEARNABLE = {
    "one_per_layer": ({"layers.0": Weibull(5.0, learnable=True), "*": LogNormal(0.5, learnable=True)}, 2),
    "shared": ({"layers.0": SHARED, "layers.1": SHARED}, 1),
    "one_learnable": ({"layers.0": Weibull(5.0), "layers.1": Gamma(torch.tensor([2.0, 5.0]), learnable=True)}, 1),
    "fixed": (Weibull(5.0), 0),
}


@pytest.mark.parametrize("case", LEARNABLE)
def test_parameters_register_once_and_train(case, data):
    """Under SVI and as a module."""
    families, count = copy.deepcopy(LEARNABLE[case])
    model = SelfAttention()
    guide = AttentionGuide(model, families)
    before = copy.deepcopy(guide.families.state_dict())
    SVI(model, guide, Adam({"lr": 0.05}), AttentionELBO()).step(data.x, data.y)
    assert len([name for name in pyro.get_param_store() if "families" in name]) == count
    assert len(pyro.get_param_store()) == len(list(model.parameters())) + count
    changed = [not value.equal(before[name]) for name, value in guide.families.state_dict().items()]
    assert sum(changed) == count * (2 if case == "shared" else 1)
    loss = AttentionELBO()(model, guide)
    assert len(list(loss.parameters())) == len(list(model.parameters())) + count
    loss(data.x, data.y).backward()
    assert all((parameter.grad != 0).all() for parameter in guide.families.parameters())


class Scores(nn.Module):
    """An inference network of free scores."""

    def __init__(self, *shape):
        super().__init__()
        self.scores = nn.Parameter(torch.randn(shape))

    def forward(self, *_):
        return self.scores


def test_an_inference_network_behind_a_random_layer(data):
    """It scores the second layer once for all samples, whose scores have their dimension there."""
    model = SelfAttention(prior=lambda *_: FixedGammaPrior())
    network = Scores(6, 2, 5, 5)
    families = {"layers.0": Weibull(2.0), "layers.1": Amortized(network, Weibull(5.0))}
    kls = []
    for vectorize in (False, True):
        elbo = AttentionELBO(num_particles=3, vectorize_particles=vectorize)
        elbo.loss(model, AttentionGuide(model, families), data.x, data.y)
        kls.append(elbo.kl_record["layers.1"])
    torch.testing.assert_close(*kls)
    soft = AttentionGuide(model, {**families, "layers.1": Amortized(network, Soft())})
    weights = sample_posterior(soft, data.x, num_samples=7, chunk_size=3)
    torch.testing.assert_close(weights["layers.1"], network().softmax(-1).expand(7, 6, 2, 5, 5))
    assert not weights["layers.0"][5].equal(weights["layers.0"][6])
    for shape in ((2, 5, 5), (6, 5, 5)):
        for site in SITES:
            with pytest.raises(ValueError, match="expected the layer's"):
                AttentionGuide(model, {**families, site: Amortized(Scores(*shape), Soft())})(data.x)


def nothing():
    pyro.sample("z", dist.HalfNormal(1.0))


@pytest.mark.parametrize(
    ("families", "message"),
    [
        ({"*": "weibull"}, r"families\['\*'\] is 'weibull', expected a Family such as"),
        ({"layers.0": Weibull()}, "attention site 'layers.1' matches none of the patterns 'layers.0'"),
        (
            {"*": Soft(), "decoder.*": Soft()},
            r"no site matches 'decoder.\*'; the model's attention sites.* 'layers.0', ",
        ),
        ({"*": Soft(), "layers.0": Soft()}, "no site matches 'layers.0'"),  # shadowed by the first
    ],
    ids=str,
)
def test_wrong_families(families, message, data):
    model = SelfAttention()
    with pytest.raises((ValueError, TypeError), match=message):
        AttentionELBO().loss(model, AttentionGuide(model, families), data.x, data.y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda number: Weibull(number), "concentration requires a gradient, .*pass learnable=True"),
        (lambda number: LogNormal([1.0, 2.0]), r"scale is \[1.0, 2.0\], expected a positive number"),
        (lambda _: Weibull(torch.ones(2, 2)), r"concentration has shape \(2, 2\), expected a number or one per head"),
        (lambda _: FixedGammaPrior(0.0), "concentration .*0.0, expected"),
        (lambda _: AttentionELBO().loss(nothing, AttentionGuide(nothing, Weibull())), "no site"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(nn.Parameter(torch.tensor(5.0)))


def test_a_run_leaves_nothing_behind(data):
    """One that fails, too."""
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())
    for arguments in ((data.x,), ()):
        with pytest.raises(TypeError) if not arguments else poutine.block():
            assert guide.run(*arguments).output.shape == (6,)
        assert not hasattr(guide, "trace")
        assert guide.model is model
    assert set(guide(data.x)) == {*SITES, "y"}


# latent sites beside attention: a messenger gives them a posterior


def beside(family, model, **options):
    """A family of attention, and an autoguide of the other latent sites."""
    return {"*": family, "[!y]*": AutoNormalMessenger(model, **options)}


class Stock(AutoNormalMessenger):
    """The oracle: a guide of stock Pyro, with a hand-written posterior of attention."""

    call = None

    def _pyro_sample(self, msg):
        self.call = msg["infer"].get("call")
        super()._pyro_sample(msg)

    def get_posterior(self, name, prior):
        if name == "layers.0":
            return Weibull(5.0).posterior(self.call, prior)
        return super().get_posterior(name, prior)


def value_and_gradients(elbo, model, guide, arguments):
    torch.manual_seed(3)
    with poutine.trace(param_only=True) as tracer:
        loss = elbo.differentiable_loss(model, guide, *arguments)
    params = {name.removeprefix("messengers.0."): s["value"].unconstrained() for name, s in tracer.trace.nodes.items()}
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return loss, dict(zip(params, found, strict=True))


def test_equals_a_guide_of_stock_pyro(data):
    """Draw for draw, in one pass of the network; stock ELBOs take both traces from the guide, too."""
    model, arguments = Shifted(), (data.x, data.y)
    guide = AttentionGuide(model, beside(Weibull(5.0), model, init_scale=0.5))
    stock = Stock(model, init_scale=0.5)
    for each in (guide, stock):
        torch.manual_seed(0)
        each(*arguments)  # which makes the parameters
    model.calls = 0
    mine = value_and_gradients(AttentionELBO(kl="sampled"), model, guide, arguments)
    assert model.calls == 1
    for theirs in (guide, stock):
        torch.testing.assert_close(
            mine, value_and_gradients(Trace_ELBO(), model, theirs, arguments), rtol=1e-3, atol=1e-3
        )
    assert all((gradient != 0).any() for name, gradient in mine[1].items() if name.startswith(("locs", "scales")))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=True)
    elbo.differentiable_loss(model, guide, *arguments).backward()
    assert elbo.max_plate_nesting == 2
    assert set(elbo.kl_record) == {"effect", "noise", "shift", "layers.0"}
    closed, scaled = (
        value_and_gradients(AttentionELBO(), model, each, arguments)[0] for each in (guide, poutine.scale(guide, 3.0))
    )
    torch.testing.assert_close(scaled, 3 * closed)
    assert AttentionELBO().loss(model, poutine.mask(guide, mask=False), *arguments) == 0


def test_minibatches_are_shared(data):
    """Guide and model see the same sequences, so that only their effects get a gradient."""
    model, seen = Shifted(subsample=2), set()
    guide = AttentionGuide(model, beside(Weibull(5.0), model))
    guide(data.x, data.y)
    for seed in range(4):
        torch.manual_seed(seed)
        loss = AttentionELBO().differentiable_loss(model, guide, data.x, data.y)
        (gradient,) = torch.autograd.grad(loss, guide.messengers[0].locs.effect_unconstrained)
        index = gradient.nonzero().flatten().tolist()
        assert len(index) == 2
        seen.update(index)
    assert len(seen) > 2


def test_svi_finds_the_posterior_beside_attention():
    """A conjugate shift beside soft attention: posterior Normal(1/2, sqrt 1/2)."""
    layer = LatentAttention("attention", FixedGammaPrior())

    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        one = layer(torch.zeros(1, 2, 2), torch.ones(1, 2, 1)).context.mean()
        pyro.sample("x", dist.Normal(shift * one, 1.0), obs=torch.tensor(1.0))

    guide = AttentionGuide(model, beside(Soft(), model))
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), elbo)
    for _ in range(120):
        svi.step()
    with pyro.plate("draws", 4000, dim=-1):
        draws = guide()["shift"].detach()
    assert draws.mean().item() == pytest.approx(0.5, abs=0.06)
    assert draws.std().item() == pytest.approx(0.5**0.5, abs=0.06)


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_posterior_samples_and_predictions(chunk_size, data):
    model = Shifted()
    guide = AttentionGuide(model, beside(Weibull(5.0, learnable=True), model))
    pickle.dumps(guide)
    guide(data.x, data.y)
    options = {"num_samples": 9, "chunk_size": chunk_size, "seed": 0}
    samples = sample_posterior(guide, data.x, **options)
    assert {name: value.shape for name, value in samples.items()} == {"layers.0": (9, 6, 2, 5, 5)}
    assert (predict(guide, data.x, **options).variance > 0).all()
    assert Predictive(model, guide=guide, num_samples=3)(data.x)["effect"].shape == (3, 6)
    for twin in (copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):
        drawn = []
        for each in (guide, twin):
            torch.manual_seed(0)
            drawn.append(each(data.x)["effect"])
        torch.testing.assert_close(*drawn)
    loss = AttentionELBO()(model, guide)
    loss(data.x, data.y).backward()
    found = {name: p.grad for name, p in loss.named_parameters() if name.startswith("guide")}
    assert len(found) == 7
    assert all((gradient != 0).any() for gradient in found.values())


# handlers around a guide: observed sites are scored by their prior; what cannot stand there says so

PLACES, Y = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, -1.0])


def around_and_inside(model, family, data):
    """The two places of a condition."""
    yield poutine.condition(AttentionGuide(model, family), data)
    yield AttentionGuide(poutine.condition(model, data), family)


@pytest.mark.parametrize("family", [Weibull(5.0), LogNormal(0.3), Soft()], ids=str)
def test_observed_weights_are_scored_by_their_prior(family):
    """The only attention site is observed: the loss is -log p(log S) - log p(y | S), by torch's own densities."""
    layer = LatentAttention("attention", FixedGammaPrior(2.0, 3.0))

    def model():
        context = layer(torch.tensor([[[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]]), PLACES[None, :, None]).context
        pyro.sample("y", dist.Normal(context.flatten(-3), 1.0).to_event(1), obs=Y)

    log_s = torch.randn(1, 2, 3)
    prior = torch.distributions.Gamma(2.0, 3.0).log_prob(log_s.exp()) + log_s
    data = torch.distributions.Normal(log_s[0].softmax(-1) @ PLACES, 1.0).log_prob(Y)
    expected = -(prior.sum() + data.sum()).item()
    for guide in around_and_inside(model, family, {"attention": log_s}):
        particles = AttentionELBO(num_particles=3, vectorize_particles=True)
        for elbo in (AttentionELBO(), particles, Trace_ELBO(), TraceMeanField_ELBO()):
            assert elbo.loss(model, guide) == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize(
    "family", [Categorical(), Categorical(enumerate=False), SparseCategorical(), GumbelSoftmax(), Soft()], ids=str
)
def test_observed_alignments_are_scored_by_their_prior(family):
    layer, scores, keys = LatentAttention("alignment", AlignmentPrior()), torch.randn(2, 1, 3), torch.tensor([0, 2])

    def model():
        with pyro.plate("queries", 2):
            mean = layer(scores, PLACES[None, :, None], layout=Dense(event_dim=2)).context.flatten(-3)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)

    prior = scores.squeeze(1).log_softmax(-1)[[0, 1], keys]
    expected = -(prior + dist.Normal(PLACES[keys], 1.0).log_prob(Y)).sum().item()
    for guide in around_and_inside(model, Amortized(Scores(2, 1, 3), family), {"alignment": keys}):
        for elbo in (AlignmentELBO(max_plate_nesting=1), AttentionELBO(), ScoreFunctionELBO()):
            assert elbo.loss(model, guide) == pytest.approx(expected, rel=1e-5)


class Own(AttentionGuide):
    """Overrides Pyro's extension point at a site that is no attention."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loc = nn.Parameter(torch.tensor(0.3))

    def get_posterior(self, name, prior):
        return dist.Normal(self.loc, 0.5) if name == "shift" else super().get_posterior(name, prior)


@pytest.mark.filterwarnings("error:latent sites without a posterior")
def test_a_subclass_keeps_the_kl_of_its_own_posteriors(data):
    model = Shifted()
    guide = Own(model, Weibull(5.0), keep_prior=["noise", "effect"])
    for mine, stock in ((AttentionELBO(), TraceMeanField_ELBO()), (AttentionELBO(kl="sampled"), Trace_ELBO())):
        losses = []
        for elbo in (mine, stock):
            pyro.set_rng_seed(1)
            losses.append(elbo.loss(model, guide, data.x, data.y))
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    kl = torch.distributions.kl_divergence(dist.Normal(0.3, 0.5), dist.Normal(0.0, 2.0))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=True)
    elbo.loss(model, guide, data.x, data.y)
    torch.testing.assert_close(elbo.kl_record["shift"], kl)
    # observed around the guide: its prior scores it
    with poutine.condition(data={"shift": torch.tensor(0.7)}):
        guide(data.x, data.y)
    node = guide.get_traces()[0].nodes["shift"]
    assert node["fn"].log_prob(node["value"]) == dist.Normal(0.0, 2.0).log_prob(torch.tensor(0.7))


@pytest.mark.parametrize("has_rest", [True, False], ids=["rest", "no rest"])
def test_handlers_around_a_guide(has_rest, data):
    model = Shifted()
    family = Weibull(5.0)
    guide = AttentionGuide(model, beside(family, model) if has_rest else family, keep_prior=[] if has_rest else ["*"])
    guide(data.x, data.y)
    # replay repeats a run, with the prior of the run at hand
    trace = poutine.trace(guide).get_trace(data.x, data.y)
    replayed = poutine.trace(poutine.replay(guide, trace=trace)).get_trace(data.x, data.y)
    assert all(replayed.nodes[name]["value"].equal(trace.nodes[name]["value"]) for name in ("shift", "layers.0"))
    losses = [AttentionELBO().loss(model, poutine.replay(guide, trace=trace), data.x, data.y) for _ in range(2)]
    assert losses[0] == losses[1]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    with poutine.replay(trace=trace):
        site = guide.run(data.x, data.y).trace.nodes["layers.0"]
    assert site["fn"].mean_value.equal(site["infer"]["call"].scores)
    # uncondition draws the observations
    drawn = [poutine.uncondition(guide)(data.x, data.y)["y"] for _ in range(2)]
    assert not any(one.equal(other) for one, other in ((drawn[0], drawn[1]), (drawn[0], data.y)))
    # predictions with clamped weights: as with the condition around the call
    value, settings = torch.randn(6, 2, 5, 5), {"num_samples": 3, "seed": 0}
    with poutine.condition(data={"layers.0": value}):
        expected = predict(guide, data.x, **settings)
    clamped = poutine.condition(guide, {"layers.0": value})
    assert predict(clamped, data.x, **settings).mean.equal(expected.mean)
    weights = sample_posterior(clamped, data.x, num_samples=2)["layers.0"]
    torch.testing.assert_close(weights, value.softmax(-1).expand(2, 6, 2, 5, 5))
    # what belongs inside
    for wrap in (
        lambda inner: poutine.do(inner, {"shift": torch.tensor(0.7)}),
        lambda inner: poutine.reparam(inner, {"effect": LocScaleReparam()}),
    ):
        inside = AttentionGuide(wrap(model), Weibull(5.0), keep_prior=["*"])
        assert math.isfinite(AttentionELBO().loss(inside.model, inside, data.x, data.y))


def test_evidence_by_importance_sampling():
    """With the observations hidden, as the page says, against quadrature over the difference of the log weights."""
    layer, y, count = LatentAttention("attention", FixedLogNormalPrior(-1.0, 0.5)), torch.tensor(0.9), 20000

    def model():
        weight = layer(torch.zeros(1, 1, 2), torch.tensor([[[0.0], [1.0]]])).context.flatten(-3).squeeze(-1)
        pyro.sample("y", dist.Normal(weight, 0.2), obs=y)

    difference = torch.linspace(-12, 12, 4001)
    density = dist.Normal(0.0, 0.5 * 2**0.5).log_prob(difference) + dist.Normal(difference.sigmoid(), 0.2).log_prob(y)
    expected = torch.trapezoid(density.exp(), difference)
    guide = poutine.block(AttentionGuide(model, LogNormal(0.8)), hide_fn=lambda site: site["is_observed"])
    with torch.no_grad():
        vectorized, _, _ = vectorized_importance_weights(model, guide, num_samples=count, max_plate_nesting=0)
        single = torch.stack(Importance(model, guide, num_samples=200).run().log_weights)
    for weights in (vectorized.exp(), single.exp()):
        assert abs(weights.mean() - expected) < 4 * weights.std() / len(weights) ** 0.5
        assert weights.std() / len(weights) ** 0.5 < 0.15 * expected
