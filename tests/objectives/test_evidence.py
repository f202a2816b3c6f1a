"""EvidenceELBO: values and gradients against quadrature, stock Pyro and sums by hand."""

import functools
import math

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import RenyiELBO
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    LatentAttention,
    LogNormal,
    MultiheadAttention,
    ScorePrior,
    Soft,
    Weibull,
    WidthNetwork,
    importance_posterior,
)
from pyro_attention.alignments.exact import posterior_attention
from pyro_attention.guide import DRAWS
from pyro_attention.objectives import evidence
from pyro_attention.objectives.correction import evidence_bound
from pyro_attention.objectives.evidence import log_likelihood_at_mean
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.posterior.predictive import seeded
from tests.helpers import assert_mean, flat

VALUES = torch.tensor([[[0.0], [1.0]]])  # of two keys
QUERIES, Y = torch.tensor([[-1.0], [0.2], [1.5]]), torch.tensor([0.8, 0.1, 0.6])
NOISE = 0.25


class TwoKeys(nn.Module):
    """Numbers between the values of two keys; the width of an item depends on its query."""

    def __init__(self, items=3, copies=1):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([[[0.3, -0.2]], [[0.0, 0.5]], [[-0.4, 0.1]]])[:items])
        self.width = WidthNetwork(1, initial=0.9)
        nn.init.constant_(self.width.weight, 0.3)
        self.attention = LatentAttention("attention", ScorePrior(LogNormal(self.width)))
        self.queries, self.y, self.copies = QUERIES[:items], Y[:items], copies

    def forward(self):
        data = (self.scores, self.queries, self.y)
        scores, queries, y = (each.repeat(self.copies, *[1] * (each.dim() - 1)) for each in data)
        with pyro.plate("data", len(y)):
            layout = Dense(event_dim=2)
            mean = self.attention(scores, VALUES, queries=queries.unsqueeze(-2), layout=layout).context
            pyro.sample("y", Normal(mean.squeeze(-1).squeeze(-1), NOISE), obs=y)


class SeesY(nn.Module):
    """Scores that grow with the observation."""

    def __init__(self, y):
        super().__init__()
        self.slope, self.y = nn.Parameter(torch.tensor(0.7)), y

    def forward(self):
        return self.slope * self.y[:, None, None] * torch.tensor([-1.0, 1.0])


def make(guide, items=3, copies=1):
    model = TwoKeys(items, copies)
    y = model.y.repeat(copies)
    q = FromPrior() if guide == "prior" else Amortized(SeesY(y), LogNormal(0.8, learnable=True))
    return model, AttentionGuide(model, q)


def parameters(model, guide):
    return [*model.parameters(), *guide.parameters()]


both_guides = pytest.mark.parametrize("guide", ["prior", "sees_y"])


# By quadrature


def nodes(dims, count):
    """Points ``[n, dims]`` and log weights of Gauss-Hermite quadrature for standard normal noise."""
    points, weights = map(torch.tensor, np.polynomial.hermite_e.hermegauss(count))
    grid = torch.cartesian_prod(*[points] * dims).view(-1, dims)
    log_weights = torch.cartesian_prod(*[weights.log() - 0.5 * math.log(2 * math.pi)] * dims).view(-1, dims).sum(-1)
    return grid, log_weights.exp()


def expected_bound(model, guide, draws, count):
    """The expectation of the bound of K draws, summed over the items; differentiable."""
    model, guide = model.double(), guide.double()
    scores = model.scores.log_softmax(-1).squeeze(-2)
    scale = 1e-3 + torch.nn.functional.softplus(QUERIES.double() @ model.width.weight[0] + model.width.bias)
    loc = scores - scale**2 / 2
    q_loc, q_scale = loc, scale
    family = guide.families[0]
    if isinstance(family, Amortized):
        q_scale = family.family.log_value.exp()
        q_loc = family.network().double().log_softmax(-1).squeeze(-2) - q_scale**2 / 2
    noise, weights = nodes(2 * draws, count)
    value = q_loc + q_scale * noise.view(-1, draws, 1, 2)
    log_w = Normal(value.softmax(-1)[..., 1], NOISE).log_prob(Y.double())
    if isinstance(family, Amortized):
        log_w = log_w + (Normal(loc, scale).log_prob(value) - Normal(q_loc, q_scale).log_prob(value)).sum(-1)
    bounds = log_w.logsumexp(1) - math.log(draws)
    return (weights[:, None] * bounds).sum()


def log_evidence(model):
    """Of the difference of both log weights, which is normal."""
    model = model.double()
    scale = 1e-3 + torch.nn.functional.softplus(QUERIES.double() @ model.width.weight[0] + model.width.bias).squeeze(-1)
    middle = (model.scores[..., 1] - model.scores[..., 0]).squeeze(-1)
    noise, weights = nodes(1, 120)
    mean = (middle + math.sqrt(2) * scale * noise).sigmoid()
    return (weights[:, None] * Normal(mean, NOISE).log_prob(Y.double()).exp()).sum(0).log().sum()


@both_guides
def test_between_elbo_and_evidence(guide):
    """By quadrature K = 1 < K = 2 < evidence; many draws reach it."""
    bounds = [expected_bound(*make(guide), draws, count).item() for draws, count in ((1, 60), (2, 22))]
    evidence = log_evidence(make(guide)[0]).item()
    assert bounds[0] + 0.05 < bounds[1] < evidence - 0.05
    torch.manual_seed(0)
    model, q = make(guide)
    elbo = EvidenceELBO(20_000, max_plate_nesting=1)
    found = torch.tensor([-elbo.loss(model, q) for _ in range(20)])
    assert abs(found.mean() - evidence) < 4 * found.std() / math.sqrt(20) + 2e-3


def mean_gradients(guide, draws, *, copies=1000, repeats=20, **options):
    """Rows of gradients of the negative bound, by the items' share of parameters that all copies have in common."""
    model, q = make(guide, copies=copies)
    elbo, rows = EvidenceELBO(draws, correction=None, max_plate_nesting=1, **options), []
    for seed in range(repeats):
        torch.manual_seed(seed)
        rows.append(flat(elbo.differentiable_loss(model, q), parameters(model, q)) / copies)
    return torch.stack(rows)


@pytest.mark.parametrize(("guide", "options"), [("prior", {}), ("sees_y", {}), ("sees_y", {"chunk_size": 1})])
def test_gradient_is_that_of_the_expected_bound(guide, options):
    """The doubly reparameterized one, too, and in chunks; of scores, widths and inference network."""
    model, q = make(guide)
    expected = flat(-expected_bound(model, q, 2, 22), parameters(model, q))
    assert (expected.abs() > 0.02).all()
    assert_mean(mean_gradients(guide, 2, **options), expected)


def plain_loss(model, guide, draws, correction):
    """The negative bound, whose gradient is the plain pathwise one."""
    with pyro.plate(DRAWS, draws, dim=-2):
        trace = guide.run().trace
    latent = trace.nodes["attention"]
    items = evidence.item_weights([(latent, latent["infer"]["prior"])], [trace.nodes["y"]])
    return -evidence_bound(items.log_importance_weights, corrected=correction is not None).value.sum()


@pytest.mark.parametrize(("correction", "share"), [(None, 0.5), ("jackknife", 0.8)])
def test_doubly_reparameterized_gradient_has_less_variance(correction, share):
    draws, rows = 64, {"plain": [], "double": []}
    model, q = make("sees_y")
    elbo = EvidenceELBO(draws, correction=correction, max_plate_nesting=1)
    for seed in range(60):
        torch.manual_seed(seed)
        rows["plain"].append(flat(plain_loss(model, q, draws, correction), list(q.parameters())))
        rows["double"].append(flat(elbo.differentiable_loss(model, q), list(q.parameters())))
    plain, double = (torch.stack(rows[name]) for name in ("plain", "double"))
    assert_mean(plain - double, 0)
    assert (double.var(0) < share * plain.var(0)).all()


def test_corrected_gradient_of_few_draws_has_the_mean_of_the_plain_one():
    """Where single draws carry much of the weight, and the clip bends the correction."""
    rows = {"plain": [], "double": []}
    model, q = make("sees_y", copies=2000)
    elbo = EvidenceELBO(4, max_plate_nesting=1)
    for seed in range(20):
        torch.manual_seed(seed)
        rows["plain"].append(flat(plain_loss(model, q, 4, "jackknife"), list(q.parameters())) / 2000)
        rows["double"].append(flat(elbo.differentiable_loss(model, q), list(q.parameters())) / 2000)
    plain, double = (torch.stack(rows[name]) for name in ("plain", "double"))
    assert elbo.gap_record.share > 0.05
    assert_mean(plain - double, 0)


def test_corrected_gradient_is_that_of_the_expected_bound():
    """By quadrature over four draws; the likelihood reads the difference of two log weights, which is normal."""
    model, q = make("prior", items=2, copies=1000)
    parameters_of = lambda: [model.scores, model.width.bias]  # noqa: E731
    rows, elbo = [], EvidenceELBO(4, max_plate_nesting=1)
    for seed in range(20):
        torch.manual_seed(seed)
        rows.append(flat(elbo.differentiable_loss(model, q), parameters_of()) / 1000)
    model.double()
    scale = 1e-3 + torch.nn.functional.softplus(QUERIES[:2].double() @ model.width.weight[0] + model.width.bias)
    middle = (model.scores[..., 1] - model.scores[..., 0]).squeeze(-1)
    noise, weights = nodes(4, 20)
    mean = (middle + math.sqrt(2) * scale.squeeze(-1) * noise.unsqueeze(-1)).sigmoid()  # [n, draws, items]
    log_w = Normal(mean, NOISE).log_prob(Y[:2].double()).movedim(1, 0)
    expected = -(weights[:, None] * evidence_bound(log_w, corrected=True).value).sum()
    gradient = flat(expected, parameters_of())
    assert (gradient.abs() > 0.01).all()
    assert_mean(torch.stack(rows), gradient.float())


def test_value_of_stock_pyro():
    """On a model of one item, by a plain guide that draws the same numbers."""
    model, q = make("sees_y", items=1)

    def plain():
        with poutine.block(), seeded(0):
            site = poutine.trace(model).get_trace().nodes["attention"]
        with pyro.plate("data", 1):
            pyro.sample("attention", q.families[0].posterior(site["infer"]["call"], site["fn"]))

    torch.manual_seed(0)
    stock = RenyiELBO(alpha=0, num_particles=5, vectorize_particles=True, max_plate_nesting=1).loss(model, plain)
    torch.manual_seed(0)
    assert EvidenceELBO(5, correction=None, max_plate_nesting=1).loss(model, q) == pytest.approx(stock, rel=1e-5)


# Items


class Sentences(nn.Module):
    """Self-attention over the words of a sentence ahead of a site for each word: two layers."""

    def __init__(self, *, size=3, mask=True):
        super().__init__()
        self.size, self.mask = size, mask
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(3, 4, 2, generator=generator), torch.randn(3, 4, generator=generator)
        self.first = MultiheadAttention(2, 1, name="first", prior=ScorePrior(LogNormal(0.7)))
        self.second = LatentAttention("second", ScorePrior(Weibull(2.0)))

    def forward(self):
        with pyro.plate("sentences", self.size, subsample=torch.arange(3), dim=-2):
            x = self.first(*[self.x.unsqueeze(1)] * 3)[0].squeeze(-3)
            with pyro.plate("words", 4, dim=-1):
                keys, layout = x.unsqueeze(-3).unsqueeze(-3), Dense(event_dim=2)
                mean = self.second((x @ x.mT).unsqueeze(-2), keys, layout=layout).context[..., 0, 0]
                with poutine.mask(mask=self.mask):
                    pyro.sample("y", Normal(mean, 1.0), obs=self.y)


def by_hand(model, guide, draws):
    """Log likelihoods ``[draws, sentences, words]`` of the draws of a seed."""
    torch.manual_seed(0)
    with pyro.plate(DRAWS, draws, dim=-3):
        site = guide.run().trace.nodes["y"]
    return site["fn"].log_prob(site["value"])


def test_items_are_what_all_sites_share():
    """Words of a sentence share its first site, so their weights are one; scale and mask count as they say."""
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]], dtype=torch.bool)
    for model, kept, scale in ((Sentences(), 1, 1), (Sentences(mask=mask), mask, 1), (Sentences(size=30), 1, 10)):
        guide = AttentionGuide(model, FromPrior())
        log_f = (by_hand(model, guide, 6) * kept).sum(-1)
        for correction in (None, "jackknife"):
            bound = evidence_bound(log_f, corrected=correction is not None)
            torch.manual_seed(0)
            elbo = EvidenceELBO(6, correction=correction, max_plate_nesting=2)
            assert elbo.loss(model, guide) == pytest.approx(-scale * bound.value.sum().item(), rel=1e-5)
            torch.testing.assert_close(elbo.bounds.gap.flatten(), bound.gap)
    assert bound.value.sum() - evidence_bound(log_f, corrected=False).value.sum() > 1e-3


def test_weights_of_numbers_in_16_bits_are_added_in_32():
    """Three hundred observations of an item, whose log probabilities of -1 would add to -256 in bfloat16."""

    def model():
        attention = LatentAttention("attention", ScorePrior(LogNormal(0.5)))
        with pyro.plate("data", 2, dim=-2):
            layout = Dense(event_dim=2)
            attention(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 2, 1), layout=layout)
            with pyro.plate("words", 300, dim=-1):
                rate = torch.ones(2, 300, dtype=torch.bfloat16)
                pyro.sample("y", pyro.distributions.Exponential(rate), obs=torch.ones(2, 300, dtype=torch.bfloat16))

    assert EvidenceELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, FromPrior())) == pytest.approx(600)


def test_soft_attention_is_not_repeated():
    """What is ahead of the first drawn site is there once for all draws."""
    model = Sentences()
    guide = AttentionGuide(model, {"first": Soft(), "second": FromPrior()})
    elbo = EvidenceELBO(6, correction=None, max_plate_nesting=2)
    elbo.loss(model, guide)  # replayed
    torch.manual_seed(0)
    with poutine.trace() as tracer:
        loss = elbo.loss(model, guide)
    shapes = {name: tracer.trace.nodes[name]["value"].shape for name in ("first", "second")}
    assert shapes == {"first": (3, 1, 1, 4, 4), "second": (6, 3, 4, 1, 4)}
    log_f = by_hand(model, guide, 6).sum(-1)
    assert loss == pytest.approx(-(log_f.logsumexp(0) - math.log(6)).sum().item(), rel=1e-5)


def test_chunks_save_memory_and_change_nothing(monkeypatch):
    """What is kept for the backward pass is that of one chunk; gradients are those without a second run."""
    model, q = make("sees_y", copies=50)
    kept = {}

    def gradient(name, elbo, recomputed):
        if not recomputed:
            monkeypatch.setattr(evidence, "checkpoint", lambda run, *_, use_reentrant: run())
        torch.manual_seed(0)
        total = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: total.append(x.nbytes) or x, lambda x: x):
            loss = elbo.differentiable_loss(model, q)
        kept[name] = sum(total)
        return flat(loss, parameters(model, q))

    elbo = EvidenceELBO(8, chunk_size=3, max_plate_nesting=1)
    chunked = gradient("chunks", elbo, recomputed=True)
    torch.testing.assert_close(chunked, gradient("whole", elbo, recomputed=False))
    assert kept["chunks"] < 0.2 * kept["whole"]


AROUND = {
    "observations": poutine.condition(data={"y": torch.tensor([3.0, -2.0, 1.0])}),
    "attention": poutine.condition(data={"attention": torch.tensor([0.0, 2.0]).expand(3, 1, 2)}),
    "mask": poutine.mask(mask=torch.tensor([True, False, True])),
}


@pytest.mark.parametrize("name", AROUND)
def test_chunks_are_run_again_below_the_handlers_of_the_call(name, monkeypatch):
    """Also where these have ended before the backward pass."""
    model, q = make("prior")
    elbo, gradients = EvidenceELBO(4, chunk_size=2, max_plate_nesting=1), []
    for recomputed in (True, False):
        if not recomputed:
            monkeypatch.setattr(evidence, "checkpoint", lambda run, *_, use_reentrant: run())
        torch.manual_seed(0)
        with AROUND[name]:
            loss = elbo.differentiable_loss(model, q)
        gradients.append(flat(loss, parameters(model, q)))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("chunk_size", "runs"), [(None, 0), (8, 0), (4, 2), (3, 3)])
def test_only_chunks_are_run_again_by_the_backward_pass(chunk_size, runs):
    model, q = make("sees_y")
    calls = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    loss = EvidenceELBO(8, chunk_size=chunk_size, max_plate_nesting=1).differentiable_loss(model, q)
    calls.clear()
    loss.backward()
    handle.remove()
    assert len(calls) == runs


def observed(x, *, together=True, scale=1.0, obs=Y):
    """One number a query, in the plate of the attention or in one of its own."""
    attention, plate = LatentAttention("attention", ScorePrior(LogNormal(0.5))), pyro.plate("data", 3)
    with plate:
        mean = attention(x, VALUES, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
    if obs is not None:
        with plate if together else pyro.plate("other", 3), poutine.scale(scale=scale):
            pyro.sample("y", Normal(mean, 1.0), obs=obs)


@pytest.mark.parametrize("shape", [(), (3, 1), (3, 4)], ids=str)
def test_a_scale_is_one_number_an_item(shape):
    """One for each word would count the bound of a sentence as often as it has words."""
    model = Sentences()
    guide, elbo = AttentionGuide(model, FromPrior()), EvidenceELBO(6, max_plate_nesting=2)
    torch.manual_seed(0)
    plain = elbo.loss(model, guide)
    scaled = poutine.scale(guide, torch.full(shape, 2.0))
    torch.manual_seed(0)
    if shape == (3, 4):
        with pytest.raises(ValueError, match=r"a scale of shape \(3, 4\).*expected one number an item.*\(3, 1\)"):
            elbo.loss(model, scaled)
    else:
        assert elbo.loss(model, scaled) == pytest.approx(2 * plain, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs": None}, "the model observes nothing"),
        ({"together": False}, "no plate holds all sites.*'attention' in \\['data'\\], 'y' in \\['other'\\]"),
        ({"scale": 2.0}, "site 'y' has scale 2.0 and site 'attention' 1.0"),
        ({"obs": torch.tensor([0.5, 1e30, 0.5])}, "of 1 of 3 items is NaN or infinite: all of their 4 weights.*mask"),
        ({"obs": torch.tensor([0.5, torch.nan, 0.5])}, r"at site 'y':[\s\S]*nan"),
    ],
)
def test_mistakes(options, message):
    model = functools.partial(observed, torch.zeros(3, 1, 2), **options)
    with pytest.raises(ValueError, match=message), pyro.validation_enabled(True):
        EvidenceELBO(4, max_plate_nesting=1).loss(model, AttentionGuide(model, FromPrior()))


@pytest.mark.parametrize(
    ("draws", "options", "message"),
    [
        (1, {}, "num_particles is 1, expected at least 2; AttentionELBO works with one"),
        (3, {}, "num_particles is 3 with correction='jackknife', expected at least 4; .*or correction=None"),
        (8, {"correction": "bootstrap"}, "correction is 'bootstrap', expected 'jackknife' or None"),
    ],
)
def test_refuses_too_few_draws_and_unknown_corrections(draws, options, message):
    with pytest.raises(ValueError, match=message):
        EvidenceELBO(draws, **options)
    EvidenceELBO(max(draws, 2), correction=None)  # the remedy


@pytest.mark.filterwarnings("ignore::pyro_attention.objectives.learned_widths.WidthWarning")  # which says so
def test_the_elbo_lets_the_width_collapse_and_the_evidence_does_not():
    """The same model and guide; the width that made the numbers is 0.9 to 1.3."""
    ends = {}
    for elbo in (AttentionELBO(max_plate_nesting=1), EvidenceELBO(8, max_plate_nesting=1)):
        torch.manual_seed(0)
        model = TwoKeys(copies=100)
        with torch.no_grad():
            model.y = torch.sigmoid(torch.randn(3) * 1.4)
        loss, optimizer = elbo(model, AttentionGuide(model, FromPrior())), torch.optim.Adam([model.width.bias], 0.1)
        for _ in range(60):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        ends[type(elbo)] = model.width.bias.item()
    assert ends[AttentionELBO] < -2 < 0 < ends[EvidenceELBO]


@pytest.mark.parametrize("noted", ["texts", "all"])
def test_noted_values_are_no_observations(noted):
    """A value of ``pyro.deterministic`` outside the plates of an item makes no larger item of several."""
    scores, y = torch.randn(3, 4, 1, 5), torch.randn(3, 4)

    def make(prior, note):
        attention, values = LatentAttention("attention", prior), torch.arange(5.0).view(1, 5, 1)

        def model(y=None):
            with pyro.plate("texts", 3, dim=-2):
                with pyro.plate("words", 4, dim=-1):
                    mean = attention(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
                    pyro.sample("y", Normal(mean, 0.5), obs=y)
                if note == "texts":
                    pyro.deterministic("mean", mean.mean(-1, keepdim=True), event_dim=0)
            if note == "all":
                pyro.deterministic("mean", mean.mean())

        return model

    found = {}
    for note in (None, noted):
        model = make(ScorePrior(LogNormal(scale=0.5)), note)
        guide, elbo = AttentionGuide(model, FromPrior()), EvidenceELBO(4, max_plate_nesting=2)
        pyro.set_rng_seed(0)
        loss = elbo.differentiable_loss(model, guide, y)
        weighted = importance_posterior(guide, y, num_samples=5, seed=0).log_importance_weights
        at_mean = log_likelihood_at_mean(model, (y,), {})
        aligner = make(AlignmentPrior(), note)
        drawn = AttentionGuide(aligner, Categorical(enumerate=False))
        pyro.set_rng_seed(0)
        of_keys = ImportanceELBO(3, max_plate_nesting=2).loss(aligner, drawn, y)
        reader = make(FixedGammaPrior(), note)
        explained = posterior_attention(AttentionGuide(reader, Soft()), y, num_samples=1)["attention"]
        found[note] = loss, elbo.bounds.value, weighted, at_mean, torch.tensor(of_keys), explained
    assert found[None][1].shape == found[None][3].shape == (3, 4)
    for plain, with_note in zip(found[None], found[noted], strict=True):
        torch.testing.assert_close(with_note, plain)


class OnAGPU(torch.Tensor):
    """A tensor that says that it lies on a second GPU, and holds nothing."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), device="cuda:1")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(func)


def test_chunks_keep_the_random_state_of_each_gpu(monkeypatch):
    """torch.utils.checkpoint looks for them among its arguments; the model need not be on the current one."""
    seen, scores, there = [], torch.randn(3, 1, 2, requires_grad=True), OnAGPU()
    monkeypatch.setattr(evidence, "checkpoint", lambda draw, *given, **_: seen.append(given) or draw())
    guide = AttentionGuide(lambda scores, data: observed(scores), FromPrior())
    elbo = EvidenceELBO(8, chunk_size=1, max_plate_nesting=1)
    elbo.differentiable_loss(guide.model, guide, scores, {"data": there})
    assert len(seen) == 8
    assert all(given[-1] is there for given in seen)
