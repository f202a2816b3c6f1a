"""AttentionELBO: its value against Pyro's own ELBOs, KL weights, particles, modules, and what it refuses."""

import copy
import gc
import math
import pickle
import warnings
import weakref
from collections import Counter
from contextlib import nullcontext

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.optim import Adam
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributions import kl_divergence

from models.gat import GAT
from pyro_attention import (
    AlignmentELBO,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    Gamma,
    LatentAttention,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    Weibull,
    elbo_for,
)
from pyro_attention.families.lognormal import ContextualLogNormalPrior
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.schedules import Linear, Sigmoid
from tests.helpers import assert_mean, gradients, posterior_and_prior
from tests.toy_alignments import Network, Toy, make_problem
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences


def self_attention(**options):
    data = Sequences.random()
    return SelfAttention(**options), (data.x, data.y, data.padding)


def graph_attention(dropout=0.0):
    return GAT(5, 3, hidden=4, heads=2, dropout=dropout), GraphData.random().arguments


every_model = pytest.mark.parametrize("make", [self_attention, graph_attention])


def seeded(elbo, model, guide, arguments, seed=0):
    torch.manual_seed(seed)
    return elbo.differentiable_loss(model, guide, *arguments)


@every_model
@pytest.mark.parametrize("family", [Weibull(5.0), Gamma(5.0), {"layers.0": Soft(), "*": LogNormal(0.3)}], ids=str)
def test_equals_the_stock_mean_field_elbo(make, family):
    model, arguments = make()
    guide = AttentionGuide(model, family)
    losses = [seeded(elbo, model, guide, arguments) for elbo in (AttentionELBO(), TraceMeanField_ELBO())]
    torch.testing.assert_close(*losses)
    found = [gradients(loss, *model.parameters()) for loss in losses]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    sampled = [seeded(elbo, model, guide, arguments) for elbo in (AttentionELBO(kl="sampled"), Trace_ELBO())]
    torch.testing.assert_close(*sampled)


# the weight of the KL

EXAMPLES = [
    (Linear(warmup=4, weight=0.1), {0: 0, 3: 0.075, 100: 0.1}),
    (Sigmoid(), {0: 0.5, 1: 1 / (1 + math.exp(-1)), 10**6: 1}),
    (Sigmoid(rate=0.1, midpoint=20, weight=2), {20: 1, 0: 2 / (1 + math.exp(2)), 40: 2 / (1 + math.exp(-2))}),
]


@pytest.mark.parametrize(("schedule", "values"), EXAMPLES, ids=str)
def test_schedules(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, abs=1e-12)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(4, -1), "weight is -1, expected a finite number >= 0"),
        (lambda: Linear(warmup=0), "warmup is 0, expected a positive number"),
        (lambda: AttentionELBO(kl_weight=math.nan), "kl_weight is nan at step 0, expected a finite number >= 0"),
        (lambda: AttentionELBO(kl_weight=lambda step: -1.0), "kl_weight is -1.0 at step 0"),
        (lambda: AttentionELBO(kl="exact"), "kl is 'exact', expected 'closed_form' or 'sampled'"),
        (lambda: AttentionELBO(num_particles=0), "num_particles is 0, expected an integer of at least 1"),
        (lambda: ScoreFunctionELBO(num_particles=2.5), "num_particles is 2.5, expected an integer of at least 1"),
        (lambda: AlignmentELBO(num_particles=-1), "num_particles is -1, expected an integer of at least 1"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_model
def test_kl_weight_scales_the_term(make):
    """It may be a schedule of the caller's step, which is never counted inside."""
    model, arguments = make()
    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=Linear(warmup=10, weight=2.0))
    none = seeded(elbo, model, guide, arguments)
    assert elbo.kl_record == {}
    whole = AttentionELBO()
    kl = seeded(whole, model, guide, arguments) - none
    torch.testing.assert_close(kl, sum(whole.kl_record.values()))
    assert kl > 1
    for elbo.step in (5, 5, 20):
        weight = 2 * min(1, elbo.step / 10)
        assert elbo.current_kl_weight() == weight
        torch.testing.assert_close(seeded(elbo, model, guide, arguments) - none, weight * kl)
        torch.testing.assert_close(elbo.kl_record, whole.kl_record)
    assert set(elbo.kl_record) == {"layers.0", "layers.1"}


def test_mean_kl():
    """By hand: of an item, the mean over its attention weights and the two layers."""
    model, (x, y, padding) = self_attention()
    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=0.3, kl_mean=True)
    none = seeded(AttentionELBO(kl_weight=0), model, guide, (x, y, padding))
    kls = []
    for site in ("layers.0", "layers.1"):
        torch.manual_seed(0)
        kls.append(kl_divergence(*posterior_and_prior(guide, x, y, padding, site=site)))
    weights = 2 * 5 * (~padding).sum(-1)  # heads, queries and keys
    expected = none + 0.3 * (sum(kls) / (2 * weights)).sum()
    torch.testing.assert_close(seeded(elbo, model, guide, (x, y, padding)), expected)


def test_an_item_without_weights_has_no_mean_kl():
    mask = torch.tensor([[[True, True, False]], [[False] * 3]])
    attention = LatentAttention("attention", FixedGammaPrior())

    def model(items):
        with pyro.plate("data", len(items)):
            scores, values = torch.zeros(len(items), 1, 3), torch.ones(len(items), 1, 3, 1)
            mean = attention(scores, values, layout=Dense(mask[items], event_dim=2)).context[..., 0, 0]
            pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=torch.zeros(len(items)))

    kls, elbo = [], AttentionELBO(kl_mean=True)
    for items in ([0], [1], [0, 1]):
        elbo.loss(model, AttentionGuide(model, LogNormal()), items)
        kls.append(elbo.kl_record["attention"].item())
    assert kls[0] > 0
    assert kls[1] == 0
    assert kls[2] == pytest.approx(kls[0])


def test_a_sampled_mean_kl_is_that_of_one_draw():
    """Both log probabilities are divided by the number of weights."""
    model, (x, y, padding) = self_attention()
    guide = AttentionGuide(model, Weibull())
    elbo = AttentionELBO(kl="sampled", kl_mean=True)
    seeded(elbo, model, guide, (x, y, padding))
    torch.manual_seed(0)
    nodes = guide.run(x, y, padding).trace.nodes
    for name, kl in elbo.kl_record.items():
        site = nodes[name]
        terms = site["fn"].log_prob(site["value"]) - site["infer"]["prior"].log_prob(site["value"])
        torch.testing.assert_close(kl, (terms / (2 * 2 * 5 * (~padding).sum(-1))).sum())


@pytest.mark.parametrize(("weight", "moved"), [(Linear(10), False), (Linear(10), True), (0.1, False)])
def test_a_step_that_nobody_moves(weight, moved):
    model = FreeScores(FixedGammaPrior())
    elbo = AttentionELBO(kl_weight=weight)
    loss = elbo(model, AttentionGuide(model, Weibull()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(110):
            elbo.step = step if moved else 0
            loss(torch.zeros(1, 3, 4))
    warned = sum("elbo.step was the same in 100 training steps" in str(warning.message) for warning in caught)
    assert warned == (callable(weight) and not moved)


def test_log_probabilities_in_16_bits_are_added_in_32():
    """A sum of 1001 terms of -1 is -1000 in bfloat16."""

    def model():
        attention(torch.zeros(1, 2, 3), torch.zeros(1, 3, 1))
        with pyro.plate("data", 1001):
            rate = torch.ones(1001, dtype=torch.bfloat16)
            pyro.sample("y", pyro.distributions.Exponential(rate), obs=torch.ones(1001, dtype=torch.bfloat16))

    attention = LatentAttention("attention", FixedGammaPrior())
    assert AttentionELBO().loss(model, AttentionGuide(model, Soft())) == 1001


def test_subsampling_scales_likelihood_and_kl():
    model, (x, y, _) = self_attention()
    guide, records = AttentionGuide(model, Weibull()), []
    for model.size, factor in ((None, 1), (60, 10)):
        elbo = AttentionELBO()
        loss = seeded(elbo, model, guide, (x, y))
        records.append((loss / factor, {name: kl / factor for name, kl in elbo.kl_record.items()}))
    torch.testing.assert_close(*records)


def test_handlers_around_the_guide():
    model, (x, y, padding) = self_attention()
    guide = AttentionGuide(model, Weibull())
    keep = torch.tensor([True, False, True, True, False, False])

    def loss(guide, y=y):
        return seeded(AttentionELBO(), model, guide, (x, y, padding))

    total = loss(guide)
    torch.testing.assert_close(loss(poutine.scale(guide, 3.0)), 3 * total)
    kept, dropped = (loss(poutine.mask(guide, mask)) for mask in (keep, ~keep))
    torch.testing.assert_close(kept + dropped, total)
    # the likelihood of the others does not count
    torch.testing.assert_close(loss(poutine.mask(guide, keep), torch.where(keep, y, 100.0)), kept)
    assert loss(poutine.mask(guide, mask=False)) == 0


class WeibullPrior(FixedGammaPrior):
    def forward(self, call):
        scale, k = self.log_rate, self.log_concentration.exp()
        return WeibullWeights(scale, k, layout=call.layout, shape=call.scores.shape)


def test_missing_closed_form():
    model, y = FreeScores(WeibullPrior()), torch.zeros(1, 3, 4)
    guide = AttentionGuide(model, Weibull())
    message = r"site 'attention': KL\(WeibullWeights \|\| WeibullWeights\) has no closed form; .* kl='sampled'"
    with pytest.raises(ValueError, match=message):
        AttentionELBO().loss(model, guide, y)
    sampled = seeded(AttentionELBO(kl="sampled"), model, guide, (y,))
    torch.testing.assert_close(sampled, seeded(Trace_ELBO(), model, guide, (y,)))


# particles


def without_plates():
    return FreeScores(FixedGammaPrior()), (torch.zeros(1, 3, 4),)


MODELS = {self_attention: 1, graph_attention: 0, without_plates: 0}


@pytest.mark.parametrize("make", MODELS)
def test_vectorized_particles_are_the_mean_of_looped_ones(make):
    """Of soft attention exactly, with the guessed nesting; of random attention in mean."""
    (model, arguments), found = make(), []
    for vectorize in (False, True):
        elbo = AttentionELBO(num_particles=3, vectorize_particles=vectorize)
        loss = elbo.differentiable_loss(model, AttentionGuide(model, Soft()), *arguments)
        found.append((loss, gradients(loss, *model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    guide, losses = AttentionGuide(model, Weibull(2.0)), []
    for count, vectorize in ((1, False), (3, False), (3, True)):
        elbo = AttentionELBO(
            num_particles=count, vectorize_particles=vectorize, max_plate_nesting=MODELS[make], kl_weight=0.01
        )
        losses.append(torch.tensor([elbo.loss(model, guide, *arguments) for _ in range(40)]))
    single, looped, vectorized = losses
    assert_mean(vectorized - looped, 0.0)
    assert_mean(single - looped, 0.0)
    # they are drawn independently
    assert vectorized.var() < 0.8 * single.var()


@pytest.mark.parametrize("vectorize", [False, True])
def test_the_record_is_the_mean_over_particles(vectorize):
    """Where the KL does not depend on the noise, neither does the number of particles."""
    model = FreeScores(ContextualLogNormalPrior(4))
    elbos = [AttentionELBO(num_particles=n, vectorize_particles=vectorize, max_plate_nesting=0) for n in (1, 3)]
    for elbo in elbos:
        elbo.loss(model, AttentionGuide(model, LogNormal()), torch.zeros(1, 3, 4))
    one, several = (elbo.kl_record["attention"] for elbo in elbos)
    assert one > 1
    torch.testing.assert_close(several, one)


# one pass a step, and nothing of it is left


def count_calls(model):
    """Number of forward calls of every submodule, kept up to date."""
    calls = Counter()
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            calls[name] = 0
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    return calls


STEPS = {
    "svi": lambda elbo, model, guide, arguments: SVI(model, guide, Adam({"lr": 0.01}), elbo).step(*arguments),
    "module": lambda elbo, model, guide, arguments: elbo(model, guide)(*arguments).backward(),
    "loss": lambda elbo, model, guide, arguments: elbo.loss(model, guide, *arguments),
}


@every_model
@pytest.mark.parametrize("step", STEPS)
def test_every_module_runs_once(make, step):
    """Both models drop the input of each of their two layers."""
    model, arguments = make(dropout=0.5)
    calls, guide, seen = count_calls(model), AttentionGuide(model, Weibull()), []
    model.layers[1].attention.register_forward_hook(lambda *args: seen.append(weakref.ref(args[-1].weights)))
    STEPS[step](AttentionELBO(), model, guide, arguments)
    assert calls == {name: 2 if name == "dropout" else 1 for name in calls}
    gc.collect()
    assert seen[0]() is None  # no graph outlives a step
    assert not hasattr(guide, "trace")
    calls.clear()
    for vectorize, passes in ((False, 3), (True, 3 + 3 + 1)):  # at first two single runs and a pass of both
        elbo = AttentionELBO(num_particles=3, vectorize_particles=vectorize, max_plate_nesting=MODELS[make])
        STEPS[step](elbo, model, guide, arguments)
        assert calls["layers.0"] == passes
    STEPS[step](AttentionELBO(kl_weight=0), model, poutine.block(model, hide=["y", "labels"]), arguments)
    assert calls["layers.0"] == passes + 2  # a plain guide: the counter does see a second pass


@every_model
def test_prior_and_posterior_share_dropout(make):
    """E[S] of the posterior in the second layer is what that layer's prior proposes, dropout included."""
    model, arguments = make(dropout=0.5)
    guide, proposals = AttentionGuide(model, Weibull()), []
    for _ in range(2):
        site = guide.run(*arguments).trace.nodes["layers.1"]
        scores = site["infer"]["call"].scores
        torch.testing.assert_close(site["fn"].mean_value, scores.expand(site["fn"].full_shape))
        proposals.append(scores)
    assert not torch.equal(*proposals)


# as a module


def unused_prior(family, **options):
    model, arguments = self_attention()
    return AttentionELBO(**options), model, AttentionGuide(model, family), arguments, "prior.network"


def unused_network():
    model, family = Toy(), Amortized(Network(), Categorical(), warm_start=True)
    return AlignmentELBO(max_plate_nesting=2), model, AttentionGuide(model, family), make_problem(), "network"


UNUSED = {
    "warm_up": lambda: unused_prior(Weibull(), kl_weight=Linear(warmup=2)),
    "soft": lambda: unused_prior(Soft()),
    "warm_start": unused_network,
}


@pytest.mark.parametrize("case", UNUSED)
def test_parameters_that_a_step_does_not_use(case):
    """They have no gradient, so that no optimizer moves them."""
    elbo, model, guide, arguments, part = UNUSED[case]()
    loss = elbo(model, guide)
    unused = [parameter for name, parameter in loss.named_parameters() if part in name]
    assert unused
    value = seeded(elbo, model, guide, arguments)
    torch.manual_seed(0)
    torch.testing.assert_close(loss(*arguments), value)
    wanted = torch.autograd.grad(value, list(loss.parameters()), allow_unused=True)
    torch.manual_seed(0)
    loss(*arguments).backward()
    torch.testing.assert_close([parameter.grad for parameter in loss.parameters()], list(wanted))
    assert all(parameter.grad is None for parameter in unused)


# what is refused


def huge_scores(**options):
    model = FreeScores(FixedGammaPrior(), normalize_scores=False)
    nn.init.constant_(model.scores, 200.0)  # E[S] = e^200 is infinite in float32
    guide, y = AttentionGuide(model, Weibull()), torch.zeros(1, 3, 4)
    message = r"the ELBO is -inf \(KL per site: {'attention': inf}; .*normalize_scores"
    return AttentionELBO(**options), model, guide, (y,), message


def huge_logits(elbo, family):
    model, problem = Toy(), make_problem()
    nn.init.constant_(model.out.bias, torch.finfo(torch.float64).max)  # class 0 alone can be
    model.out.bias.data[1:] *= -1
    return elbo, model, AttentionGuide(model, family), problem, "the ELBO is (-inf|nan) .*'label'.*look for"


INFINITE = {
    "weights": huge_scores,
    "vectorized": lambda: huge_scores(num_particles=2, vectorize_particles=True, max_plate_nesting=0),
    "marginal": lambda: huge_logits(AlignmentELBO(max_plate_nesting=2), Marginal()),
    "score_function": lambda: huge_logits(ScoreFunctionELBO(), Categorical(enumerate=False)),
    "importance": lambda: huge_logits(ImportanceELBO(2, max_plate_nesting=2), Categorical(enumerate=False)),
}


@pytest.mark.filterwarnings("ignore:Encountered")
@pytest.mark.parametrize("case", INFINITE)
def test_nothing_changes_when_the_elbo_is_infinite(case):
    elbo, model, guide, arguments, message = INFINITE[case]()
    before = copy.deepcopy(model.state_dict())
    svi = SVI(model, guide, Adam({"lr": 0.1}), elbo)
    for evaluate in (svi.step, svi.evaluate_loss, elbo(model, guide)):
        with pytest.raises(ValueError, match=message):
            evaluate(*arguments)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not hasattr(guide, "trace")
    if case == "weights":  # zero times an infinite KL would be NaN
        loss = AttentionELBO(kl_weight=0).differentiable_loss(model, guide, *arguments)
        assert all(gradient.isfinite().all() for gradient in (loss, *gradients(loss, *model.parameters())))


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
def test_nothing_to_train():
    model, arguments = self_attention()
    model.requires_grad_(False)
    guide = AttentionGuide(model, Weibull())
    svi = SVI(model, guide, Adam({"lr": 0.01}), AttentionELBO())
    with pytest.raises(ValueError, match="nothing to train: the loss depends on no parameter"):
        svi.step(*arguments)
    assert not AttentionELBO()(model, guide)(*arguments).requires_grad


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        (Weibull(), AttentionELBO),
        ({"a": Soft(), "*": Marginal()}, AlignmentELBO),
        (Amortized(torch.nn.Identity(), Categorical()), AlignmentELBO),
        (Amortized(torch.nn.Identity(), Categorical(enumerate=False)), ScoreFunctionELBO),
        ({"a": Marginal(), "*": Categorical(enumerate=False)}, None),
    ],
    ids=str,
)
def test_the_objective_that_goes_with_a_guide(families, expected):
    guide = pyro.poutine.scale(AttentionGuide(lambda: None, families), scale=2.0)
    with pytest.raises(ValueError, match="sums alignments out") if expected is None else nullcontext():
        assert type(elbo_for(guide, num_particles=2)) is expected


def test_layers_on_two_gpus():
    """The terms of their sites are added up where the likelihood is; tensors without numbers stand for them."""
    layers = [LatentAttention(name, FixedGammaPrior()) for name in ("first", "second")]

    def model(scores, values, y):
        values = layers[0](scores, values).context.to("cuda:1")
        mean = layers[1](scores.to("cuda:1"), values).context
        pyro.sample("y", pyro.distributions.Normal(mean, 1.0).to_event(3), obs=y)

    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO()
    with FakeTensorMode(allow_non_fake_inputs=True), pyro.validation_enabled(False):
        scores = torch.zeros(2, 3, 3, device="cuda:0", requires_grad=True)
        values, y = torch.zeros(2, 3, 4, device="cuda:0"), torch.zeros(2, 3, 4, device="cuda:1")
        loss = elbo.differentiable_loss(model, guide, scores, values, y)
    assert loss.device == torch.device("cuda:1")
    assert {name: kl.device.index for name, kl in elbo.kl_record.items()} == {"first": 0, "second": 1}
