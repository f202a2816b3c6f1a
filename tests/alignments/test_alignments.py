"""Latent alignments, dense and sparse, against brute force over every alignment of a small problem."""

from functools import partial

import pyro
import pytest
import torch
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionCall,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    TokenLikelihood,
    sample_posterior,
)
from pyro_attention.alignments.categorical import CategoricalAlignment
from pyro_attention.alignments.posteriors import SparseCategorical
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.ops.sparsemax import sparsemax
from tests.helpers import gradients
from tests.toy_alignments import (
    BATCH,
    KEYS,
    NEVER,
    QUERIES,
    Network,
    Toy,
    assert_same,
    brute_force_evidence,
    expected,
    log_factors,
    make_problem,
    pad,
    without_keys,
)


@pytest.fixture
def problem():
    return make_problem()


def sparse(k=None):
    """The toy with a sparse prior."""
    return Toy(partial(SparseAlignmentPrior, k=k))


def log_softmax(scores, problem):
    return scores.squeeze(-2).masked_fill(~problem[3][:, None], NEVER).log_softmax(-1)


def log_sparsemax(scores, problem, k=None):
    """Over the keys that are no padding, ``[B, T, N]``; finite where it is zero."""
    p = sparsemax(scores.squeeze(-2), mask=problem[3][:, None], k=k)
    return torch.where(p > 0, p, 1.0).log().masked_fill(p == 0, NEVER)


def log_prior(model, problem, k=None):
    log_of = partial(log_sparsemax, k=k) if isinstance(model.attention.prior, SparseAlignmentPrior) else log_softmax
    return log_of(model.scores(problem[0], problem[1]), problem)


def evidence(model, problem, k=None):
    return (log_prior(model, problem, k) + log_factors(model, problem)[1]).logsumexp(-1)[problem[-1]].sum()


def hard(model, problem, k=None):
    return (log_prior(model, problem, k).exp() * log_factors(model, problem)[1]).sum(-1)[problem[-1]].sum()


REPLAY = 3  # runs of the first call with a model: enumerated, and two single alignments


def loss_of(model, family, problem):
    """Loss, in one pass of the model, and a replay at the first call."""
    elbo, before = AlignmentELBO(max_plate_nesting=2), model.calls
    loss = elbo.differentiable_loss(model, AttentionGuide(model, family), *problem)
    assert model.calls - before in (1, 1 + REPLAY)
    return loss, elbo


@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_marginal_is_the_log_evidence(prior, problem):
    """Over every joint alignment; stock Pyro's enumeration says so, too."""
    model = Toy(prior)
    loss, _ = loss_of(model, Marginal(), problem)
    assert_same(loss, evidence(model, problem), list(model.parameters()))
    if prior is AlignmentPrior:
        assert_same(loss_of(model, Marginal(), problem)[0], brute_force_evidence(model, problem), [*model.parameters()])
        enumerated = pyro.infer.config_enumerate(model, default="parallel")
        stock = pyro.infer.TraceEnum_ELBO(max_plate_nesting=2).loss(enumerated, lambda *_: None, *problem)
        assert loss.item() == pytest.approx(stock, rel=1e-12)
        torch.testing.assert_close(AlignmentELBO()(model, AttentionGuide(model, Marginal()))(*problem), loss)
    assert loss < loss_of(model, Categorical(), problem)[0]  # Jensen: hard attention lies below


@pytest.mark.parametrize("k", [1, 2, KEYS])
@pytest.mark.parametrize("kind", ["marginal", "hard", "network"])
def test_sparse_sums(kind, k, problem):
    """The sum over the support is that over all keys, those of probability zero too."""
    model, network = Toy() if kind == "network" else sparse(k), Network()
    family = {"marginal": Marginal(), "hard": Categorical(), "network": Amortized(network, SparseCategorical(k=k))}[
        kind
    ]
    loss, elbo = loss_of(model, family, problem)
    scores = network(*problem) if kind == "network" else model.scores(problem[0], problem[1])
    if kind == "network":
        log_q = log_sparsemax(scores, problem, k)
        terms = log_q.exp() * (log_factors(model, problem)[1] + log_prior(model, problem) - log_q)
        exact = terms.where(log_q > NEVER, 0).sum(-1)[problem[-1]].sum()
    else:
        exact = {"marginal": evidence, "hard": hard}[kind](model, problem, k)
    assert_same(loss, exact, [*model.parameters(), *(network.parameters() if kind == "network" else ())])
    found, whole = ((log_sparsemax(scores, problem, m) > NEVER).sum(-1)[problem[-1]].double() for m in (k, None))
    assert 1 < whole.mean() < KEYS  # neither all alike nor on one key
    assert elbo.support_record["alignment"].item() == pytest.approx(found.mean().item())
    assert elbo.cut_record["alignment"].item() == pytest.approx((whole > k).double().mean().item())


def test_hard_attention_is_the_expectation_under_the_prior(problem):
    model = Toy()
    assert_same(loss_of(model, Categorical(), problem)[0], hard(model, problem), list(model.parameters()))


@pytest.mark.parametrize("from_prior", [False, True])
def test_an_inference_network_gives_the_elbo(from_prior, problem):
    """From the prior it adds to its scores, without their gradient."""
    model, network = Toy(), Network()
    loss, _ = loss_of(model, Amortized(network, Categorical(), from_prior=from_prior), problem)
    prior, likelihood = log_factors(model, problem)
    scores = network(*problem) + (prior.detach().unsqueeze(-2) if from_prior else 0)
    reference = expected(model, problem, log_softmax(scores, problem))
    assert_same(loss, reference, [*model.parameters(), *network.parameters()])
    # the bound is tight at the exact posterior
    tight = expected(model, problem, (prior + likelihood).log_softmax(-1))
    torch.testing.assert_close(tight, evidence(model, problem))
    assert -loss < tight


@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_expected_alignment_is_soft_attention(prior, problem):
    model = Toy(prior)
    loss = pyro.infer.Trace_ELBO().differentiable_loss(model, AttentionGuide(model, Soft()), *problem)
    reference = model.log_likelihood(problem, log_prior(model, problem).exp())[problem[-1]].sum()
    assert_same(loss, reference, list(model.parameters()))
    attention, scores, values = (
        LatentAttention("alignment", prior()),
        torch.randn(2, 3, 1, 4),
        torch.randn(2, 1, 1, 4, 5),
    )
    out = attention(scores, values, layout=Dense(event_dim=2))  # without Pyro
    torch.testing.assert_close(out.weights, sparsemax(scores) if prior is SparseAlignmentPrior else scores.softmax(-1))
    torch.testing.assert_close(out.context, (out.weights.unsqueeze(-2) @ values).squeeze(-2))


@pytest.mark.parametrize("family", [Categorical(), SparseCategorical(), Categorical(enumerate=False)], ids=str)
def test_a_posterior_has_no_keys_that_its_sparse_prior_lacks(family, problem):
    """Whatever an inference network says: the KL is finite."""
    model, network = sparse(2), Network()
    guide = AttentionGuide(model, Amortized(network, family))
    guide(*problem)
    prior, posterior = (trace.nodes["alignment"]["fn"] for trace in guide.get_traces())
    assert ((posterior.probs > 0) <= (prior.probs > 0)).all()
    elbo = AlignmentELBO(max_plate_nesting=2) if family.infer else ScoreFunctionELBO()
    loss = elbo.differentiable_loss(model, guide, *problem)
    assert loss < 1e3
    assert all(each.isfinite().all() for each in gradients(loss, *model.parameters(), *network.parameters()))


CASES = {
    "marginal": lambda: (Toy(), Marginal()),
    "hard": lambda: (Toy(), Categorical()),
    "network": lambda: (Toy(), Amortized(Network(), Categorical())),
    "sparse": lambda: (sparse(2), Marginal()),
    "sparse network": lambda: (sparse(), Amortized(Network(), SparseCategorical(k=2))),
}


@pytest.mark.parametrize("case", CASES)
def test_padding_and_queries_without_keys(case, problem):
    model, family = CASES[case]()
    losses = [loss_of(model, family, arguments)[0].item() for arguments in (problem, pad(problem))]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for scale in (1.0, 0.0, 1e4):  # of scores: equal, and of one key alone
        for parameter in (*model.score.parameters(), *family.parameters()):
            parameter.data *= scale
        loss, _ = loss_of(model, family, without_keys(problem))
        assert loss.isfinite()
        assert all(each.isfinite().all() for each in gradients(loss, *model.parameters(), *family.parameters()))


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

    found = []
    for enabled in (False, True):
        leaf = scores.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = AlignmentELBO(max_plate_nesting=1)(model, AttentionGuide(model, Marginal()))(leaf)
            assert torch.is_autocast_enabled("cpu") == enabled
        found.append(*torch.autograd.grad(loss, leaf))
    exact, half = (gradient.flatten() for gradient in found)
    assert torch.cosine_similarity(exact, half, dim=0) > 0.995
    assert half.norm() / exact.norm() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("float32", "float64")], ids=str)
@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
def test_scores_and_likelihood_of_two_dtypes(family, dtypes):
    """The sums are products of both; they are made in the larger one."""
    attention = LatentAttention("alignment", AlignmentPrior())
    scores, values, y = torch.randn(2, 1, 3), torch.randn(1, 3, 1), torch.randn(2)

    def model(of_scores, of_likelihood):
        with pyro.plate("queries", 2):
            context = attention(scores.to(of_scores), values.to(of_scores), layout=Dense(event_dim=2)).context
            mean = context[..., 0, 0].to(of_likelihood)
            pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y.to(of_likelihood))

    elbo, guide = AlignmentELBO(max_plate_nesting=1), AttentionGuide(model, family)
    losses = [
        elbo.differentiable_loss(model, guide, *(getattr(torch, dtype) for dtype in names))
        for names in (dtypes, ("float64", "float64"))
    ]
    assert losses[0].dtype == torch.float64
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 2, 3), (6, 1, 3), (2, 3), (6, 1, 1)], ids=str)
@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_the_context_of_keys_is_the_product_with_their_weights(prior, shape):
    """Whether every query has its own keys or all have the same."""
    mask = torch.tensor([[True, True, True, False], [True] * 4])[:, None, None]
    layout = Dense(mask, event_dim=2)
    alignment = prior()(AttentionCall(scores=torch.randn(2, 3, 1, 4).double(), layout=layout))
    value, values = torch.randint(4, shape), torch.randn(2, 1, 1, 4, 5).double().requires_grad_()
    weights = 0.5 * alignment.weights(value)
    results = alignment.context(value, weights, values), layout.aggregate(weights, values)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), values)[0] for result in results))


@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_posterior_samples_are_one_hot_with_the_right_frequencies(prior, problem):
    model = Toy(prior)
    guide, p = AttentionGuide(model, Categorical(enumerate=False)), log_prior(model, problem).exp()
    weights = sample_posterior(guide, *problem, num_samples=1000, chunk_size=1000, seed=0)["alignment"]
    assert weights.shape == (1000, BATCH, QUERIES, 1, KEYS)
    assert ((weights == 0) | (weights == 1)).all()
    assert (weights.sum(-1) == 1).all()
    weights = weights.squeeze(-2)
    assert (weights[:, p < 1e-12] == 0).all()
    assert ((weights.mean(0) - p).abs() <= 4 * (p * (1 - p) / 1000).sqrt() + 1e-12).all()
    mean = sample_posterior(guide, *problem, num_samples=1, noise="none")
    torch.testing.assert_close(mean["alignment"][0].squeeze(-2), p)


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_bad_input(problem):
    with pytest.raises(ValueError, match=r"one head, \[\.\.\., 1, keys\]"):
        CategoricalAlignment(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="event_dim=2"):
        CategoricalAlignment(torch.zeros(1, 3), layout=Dense())
    with pytest.raises(ValueError, match="k is 0, expected an integer of at least 1"):
        SparseCategorical(k=0)
    with pytest.raises(TypeError, match="expected a Family"):
        Amortized(nn.Linear(2, 2), "categorical")
    model = Toy()
    with pytest.raises(ValueError, match=r"'alignment' is in the model alone; use AlignmentELBO"):
        AttentionELBO().loss(model, AttentionGuide(model, Marginal()), *problem)
    narrow = nn.Module()
    narrow.forward = lambda *_: torch.zeros(BATCH, QUERIES, 1, 2)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 1, 2\), expected the layer's \(2, 3, 1, 4\)"):
        loss_of(model, Amortized(narrow, Categorical()), problem)
    elbo = AlignmentELBO(max_plate_nesting=2, vectorize_particles=True, num_particles=2)
    with pytest.raises(NotImplementedError, match="does not vectorize particles"):
        elbo.loss(model, AttentionGuide(model, Marginal()), *problem)
