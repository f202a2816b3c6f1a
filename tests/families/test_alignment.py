"""Latent alignments against brute force over every alignment of a small problem."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    Soft,
    SparseAlignmentPrior,
    TokenLikelihood,
    Weibull,
    sample_posterior,
)
from pyro_attention.families.alignment import CategoricalAlignment
from pyro_attention.objectives.enumeration import AlignmentELBO

NEVER = -1e12  # not -inf, which has no gradient
BATCH, QUERIES, KEYS, WIDTH, CLASSES = 2, 3, 4, 5, 6


class Toy(nn.Module):
    """Each query attends to one of the unpadded keys of its sentence and predicts a class from it."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(WIDTH, WIDTH).double()
        self.out = nn.Linear(WIDTH, CLASSES).double()
        self.attention = LatentAttention("alignment", AlignmentPrior())
        self.calls = 0

    def scores(self, keys, queries):
        return (self.score(queries) @ keys.mT).unsqueeze(-2)

    def forward(self, keys, queries, labels, mask, real):
        self.calls += 1
        pyro.module("toy", self)
        layout = Dense(mask[:, None, None, :], event_dim=2)
        batch, time = pyro.plate("batch", len(keys), dim=-2), pyro.plate("time", queries.size(1), dim=-1)
        with batch, time, pyro.poutine.mask(mask=real):
            output = self.attention(self.scores(keys, queries), keys[:, None, None], layout=layout)
            logits = self.out(output.context.squeeze(-2))
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH).double()
        self.label = nn.Embedding(CLASSES, WIDTH).double()

    def forward(self, keys, queries, labels, mask, real):
        return ((self.map(queries) + self.label(labels)) @ keys.mT).unsqueeze(-2)


def make_problem():
    """Keys, queries, labels, mask of the keys and of the queries."""
    torch.manual_seed(0)
    keys = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64)
    queries = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    labels = torch.randint(CLASSES, (BATCH, QUERIES))
    mask = torch.tensor([[True] * KEYS, [True, True, True, False]])
    real = torch.tensor([[True] * QUERIES, [True, True, False]])
    return keys, queries, labels, mask, real


@pytest.fixture
def problem():
    return make_problem()


def log_factors(model, problem):
    """log p(z) and log f(y | z), ``[B, T, N]``, written out without the library."""
    keys, queries, labels, mask, _ = problem
    prior = model.scores(keys, queries).squeeze(-2).masked_fill(~mask[:, None], NEVER).log_softmax(-1)
    logits = model.out(keys).log_softmax(-1)  # of each key
    likelihood = torch.stack([logits[b][:, labels[b]].T for b in range(len(keys))])
    return prior, likelihood


def brute_force_evidence(model, problem):
    """Sum over every joint alignment of every sentence."""
    prior, likelihood = log_factors(model, problem)
    total = 0.0
    for b, real in enumerate(problem[-1]):
        places = real.nonzero().flatten().tolist()
        joint = [
            sum(prior[b, t, z] + likelihood[b, t, z] for t, z in zip(places, choice, strict=True))
            for choice in itertools.product(range(KEYS), repeat=len(places))
        ]
        total = total + torch.stack(joint).logsumexp(0)
    return total


def expected(model, problem, log_q):
    """E_q[log f] - KL(q || p), summed over the real queries."""
    prior, likelihood = log_factors(model, problem)
    q = log_q.exp()
    terms = torch.where(q > 0, q * (likelihood + prior - log_q), 0.0).sum(-1)
    return terms[problem[-1]].sum()


def gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def assert_same(loss, reference, parameters):
    torch.testing.assert_close(loss, -reference, rtol=1e-10, atol=1e-10)
    for found, wanted in zip(gradients(loss, parameters), gradients(-reference, parameters), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_marginal_is_the_log_evidence_in_one_pass(problem):
    model = Toy()
    guide = AttentionGuide(model, Marginal())
    elbo = AlignmentELBO(max_plate_nesting=2)
    loss = elbo.differentiable_loss(model, guide, *problem)
    assert model.calls == 1
    assert_same(loss, brute_force_evidence(model, problem), list(model.parameters()))


def test_marginal_is_that_of_stock_enumeration(problem):
    model = Toy()
    loss = AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *problem)
    enumerated = pyro.infer.config_enumerate(model, default="parallel")
    stock = pyro.infer.TraceEnum_ELBO(max_plate_nesting=2).loss(enumerated, lambda *_: None, *problem)
    assert loss == pytest.approx(stock, rel=1e-12)


def test_hard_attention_is_the_expectation_under_the_prior(problem):
    model = Toy()
    loss = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, AttentionGuide(model, Categorical()), *problem)
    prior, likelihood = log_factors(model, problem)
    reference = (prior.exp() * likelihood).sum(-1)[problem[-1]].sum()
    assert_same(loss, reference, list(model.parameters()))


def test_an_inference_network_gives_the_elbo(problem):
    model, network = Toy(), Network()
    guide = AttentionGuide(model, Amortised(network, Categorical()))
    loss = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, *problem)
    assert model.calls == 1
    mask = problem[3]
    log_q = network(*problem).squeeze(-2).masked_fill(~mask[:, None], NEVER).log_softmax(-1)
    assert_same(loss, expected(model, problem, log_q), [*model.parameters(), *network.parameters()])
    # the bound is tight at the exact posterior
    prior, likelihood = log_factors(model, problem)
    tight = expected(model, problem, (prior + likelihood).log_softmax(-1))
    torch.testing.assert_close(tight, brute_force_evidence(model, problem))
    assert -loss < tight


def test_a_posterior_from_the_prior_adds_to_its_scores_without_their_gradient(problem):
    model, network = Toy(), Network()
    guide = AttentionGuide(model, Amortised(network, Categorical(), from_prior=True))
    elbo, mask = AlignmentELBO(max_plate_nesting=2), problem[3][:, None]
    loss = elbo.differentiable_loss(model, guide, *problem)
    prior, _ = log_factors(model, problem)
    added = network(*problem).squeeze(-2).masked_fill(~mask, 0)
    log_q = (prior.detach() + added).masked_fill(~mask, NEVER).log_softmax(-1)
    assert_same(loss, expected(model, problem, log_q), [*model.parameters(), *network.parameters()])


def test_a_posterior_from_the_prior_starts_there(problem):
    model, network = Toy(), Network()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    elbo = AlignmentELBO(max_plate_nesting=2)
    found, hard = (
        elbo.loss(model, AttentionGuide(model, family), *problem)
        for family in (Amortised(network, Categorical(), from_prior=True), Categorical())
    )
    assert found == pytest.approx(hard, rel=1e-12)


def test_the_bounds_are_ordered(problem):
    """Jensen: hard attention lies below the evidence."""
    model = Toy()
    hard, marginal = (
        AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, family), *problem)
        for family in (Categorical(), Marginal())
    )
    assert hard > marginal


def test_expected_alignment_is_soft_attention(problem):
    model = Toy()
    guide = AttentionGuide(model, Soft())
    loss = pyro.infer.Trace_ELBO().differentiable_loss(model, guide, *problem)
    prior, _ = log_factors(model, problem)
    logits = model.out(prior.exp() @ problem[0]).log_softmax(-1)
    reference = logits.gather(-1, problem[2][..., None]).squeeze(-1)[problem[-1]].sum()
    assert_same(loss, reference, list(model.parameters()))


def test_padding_changes_nothing(problem):
    model = Toy()
    guide, elbo = AttentionGuide(model, Marginal()), AlignmentELBO(max_plate_nesting=2)
    loss = elbo.loss(model, guide, *problem)
    keys, queries, labels, mask, real = problem
    padded = (
        torch.cat([keys, torch.full((BATCH, 3, WIDTH), 1e3, dtype=torch.float64)], 1),
        torch.cat([queries, torch.full((BATCH, 2, WIDTH), -7.0, dtype=torch.float64)], 1),
        torch.cat([labels, torch.zeros(BATCH, 2, dtype=torch.long)], 1),
        nn.functional.pad(mask, (0, 3)),
        nn.functional.pad(real, (0, 2)),
    )
    assert elbo.loss(model, guide, *padded) == pytest.approx(loss, rel=1e-12)


def test_a_mask_that_is_the_same_for_all_keys():
    """One entry says whether a query attends at all."""
    layout = Dense(torch.tensor([[[True]], [[False]]]), event_dim=2)
    alignment = CategoricalAlignment(torch.zeros(2, 1, 3), layout=layout)
    assert alignment.is_possible(torch.tensor([2, 1])).tolist() == [True, True]
    assert alignment.mean_value[1].eq(0).all()


def test_trains_by_svi(problem):
    model, network = Toy(), Network()
    guide = AttentionGuide(model, Amortised(network, Categorical()))
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), AlignmentELBO(max_plate_nesting=2))
    before = [parameter.clone() for parameter in network.parameters()]
    losses = [svi.step(*problem) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]
    assert not all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("prior", [AlignmentPrior(), SparseAlignmentPrior()])
def test_sums_keep_their_precision_under_autocast(prior):
    """Pyro's sums are products of matrices, and half precision spoils their gradients where keys are impossible."""
    attention, mask = LatentAttention("alignment", prior), torch.rand(64, 1, 20) < 0.7
    scores, values, labels = torch.randn(64, 1, 20), torch.randn(64, 1, 20, 16), torch.randint(50, (64,))
    weight = torch.randn(50, 16)

    def model(scores):
        with pyro.plate("queries", 64, dim=-1):
            context = attention(scores, values, layout=Dense(mask, event_dim=2)).context.squeeze(-2)
            pyro.sample("y", TokenLikelihood(context.float(), weight), obs=labels)

    gradients = []
    for enabled in (False, True):
        leaf = scores.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = AlignmentELBO(max_plate_nesting=1)(model, AttentionGuide(model, Marginal()))(leaf)
            assert torch.is_autocast_enabled("cpu") == enabled
        gradients.append(*torch.autograd.grad(loss, leaf))
    exact, half = (gradient.flatten() for gradient in gradients)
    assert torch.cosine_similarity(exact, half, dim=0) > 0.995
    assert half.norm() / exact.norm() == pytest.approx(1, abs=0.02)


def test_module_objective_and_guessed_nesting(problem):
    model = Toy()
    guide = AttentionGuide(model, Marginal())
    objective = AlignmentELBO()(model, guide)
    loss = objective(*problem)
    torch.testing.assert_close(loss, -brute_force_evidence(model, problem))
    assert not hasattr(guide, "trace")


def test_posterior_samples_are_one_hot_with_the_right_frequencies(problem):
    model = Toy()
    samples = sample_posterior(AttentionGuide(model, Categorical(enumerate=False)), *problem, num_samples=1000, seed=0)
    weights = samples["alignment"]
    assert weights.shape == (1000, BATCH, QUERIES, 1, KEYS)
    assert ((weights == 0) | (weights == 1)).all()
    assert (weights.sum(-1) == 1).all()
    prior, _ = log_factors(model, problem)
    error = (prior.exp() * (1 - prior.exp()) / 1000).sqrt()
    assert ((weights.mean(0).squeeze(-2) - prior.exp()).abs() <= 4 * error + 1e-12).all()
    mean = sample_posterior(AttentionGuide(model, Categorical(enumerate=False)), *problem, num_samples=1, noise="none")
    torch.testing.assert_close(mean["alignment"][0].squeeze(-2), prior.exp())


@pytest.mark.parametrize("make", [Marginal, Categorical, lambda: Amortised(Network(), Categorical())])
def test_a_query_without_keys_gets_zero_weights_and_a_finite_loss(make, problem):
    keys, queries, labels, mask, real = problem
    none = mask.clone()
    none[1] = False
    model = Toy()
    guide = AttentionGuide(model, make())
    loss = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, keys, queries, labels, none, real)
    assert loss.isfinite()
    assert all(g is None or g.isfinite().all() for g in gradients(loss, list(model.parameters())))


def test_distribution_by_hand():
    scores = torch.tensor([[[0.0, math.log(3.0), 5.0]]])
    prior = CategoricalAlignment(scores, layout=Dense(torch.tensor([True, True, False]), event_dim=2))
    torch.testing.assert_close(prior.probs, torch.tensor([[0.25, 0.75, 0.0]]))
    torch.testing.assert_close(prior.mean_weights, torch.tensor([[[0.25, 0.75, 0.0]]]))
    assert prior.weights(torch.tensor([2])).tolist() == [[[0.0, 0.0, 0.0]]]
    assert prior.expand([4, 1]).weights(torch.zeros(4, 1, dtype=torch.long)).shape == (4, 1, 1, 3)
    other = CategoricalAlignment(torch.zeros(1, 1, 3), layout=prior.layout)
    kl = torch.distributions.kl_divergence(prior, other)
    torch.testing.assert_close(kl, torch.tensor([0.25 * math.log(0.5) + 0.75 * math.log(1.5)]))


# bad input


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_bad_input(problem):
    with pytest.raises(ValueError, match=r"one head, \[\.\.\., 1, keys\]"):
        CategoricalAlignment(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="event_dim=2"):
        CategoricalAlignment(torch.zeros(1, 3), layout=Dense())
    with pytest.raises(TypeError, match="expected a Family"):
        Amortised(nn.Linear(2, 2), "categorical")
    model = Toy()
    with pytest.raises(ValueError, match="kind 'positive weights'"):
        AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Weibull()), *problem)
    with pytest.raises(ValueError, match="'alignment' is in the model alone; use AlignmentELBO, which sums it out"):
        AttentionELBO().loss(model, AttentionGuide(model, Marginal()), *problem)
    narrow = nn.Module()
    narrow.forward = lambda *_: torch.zeros(BATCH, QUERIES, 1, 2)
    guide = AttentionGuide(model, Amortised(narrow, Categorical()))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 1, 2\), expected the layer's \(2, 3, 1, 4\)"):
        AlignmentELBO(max_plate_nesting=2).loss(model, guide, *problem)
    elbo = AlignmentELBO(max_plate_nesting=2, vectorize_particles=True, num_particles=2)
    with pytest.raises(NotImplementedError, match="does not vectorise particles"):
        elbo.loss(model, AttentionGuide(model, Marginal()), *problem)
