"""Sparse alignments against brute force over every alignment of a small problem."""

import pyro
import pytest
import torch
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    SparseAlignmentPrior,
    SparseCategorical,
    sample_posterior,
)
from pyro_attention.families.alignment import CategoricalAlignment
from pyro_attention.families.sparse import SparseAlignment
from pyro_attention.objectives.enumeration import AlignmentELBO
from pyro_attention.ops.sparsemax import sparsemax
from tests.families.test_alignment import (
    BATCH,
    KEYS,
    QUERIES,
    WIDTH,
    Network,
    Toy,
    assert_same,
    brute_force_evidence,
    gradients,
    log_factors,
    make_problem,
)

MOST = [None, 1, 2, KEYS]


class SparseToy(Toy):
    """Its alignment has a sparse prior."""

    def __init__(self, k=None):
        super().__init__()
        self.attention = LatentAttention("alignment", SparseAlignmentPrior(k=k))


@pytest.fixture
def problem():
    return make_problem()


def probabilities(scores, problem, k):
    """Sparsemax of scores ``[B, T, 1, N]`` over the keys that are no padding, ``[B, T, N]``."""
    return sparsemax(scores.squeeze(-2), mask=problem[3][:, None], k=k)


def log_likelihood(model, problem):
    return log_factors(model, problem)[1]


def exact(kind, model, network, problem, k):
    """The objective as a sum over all keys, those of probability zero too."""
    log_f, real = log_likelihood(model, problem), problem[-1]
    scores = model.scores(problem[0], problem[1])
    if kind == "marginal":
        return (probabilities(scores, problem, k) * log_f.exp()).sum(-1).log()[real].sum()
    p = probabilities(scores, problem, k)
    if kind == "hard":
        return (p * log_f).sum(-1)[real].sum()
    log_p = log_factors(model, problem)[0]
    q = probabilities(network(*problem), problem, k)
    log_q = torch.where(q > 0, q, 1.0).log()
    return torch.where(q > 0, q * (log_f + log_p - log_q), 0.0).sum(-1)[real].sum()


def built(kind, k):
    """Model, inference network and guide."""
    network = Network()
    if kind == "enum":
        model, family = Toy(), Amortised(network, SparseCategorical(k=k))
    else:
        model, family = SparseToy(k), Marginal() if kind == "marginal" else Categorical()
    return model, network, AttentionGuide(model, family)


@pytest.mark.parametrize("k", MOST)
@pytest.mark.parametrize("kind", ["marginal", "hard", "enum"])
def test_the_sum_over_the_support_is_that_over_all_keys(kind, k, problem):
    model, network, guide = built(kind, k)
    elbo = AlignmentELBO(max_plate_nesting=2)
    loss = elbo.differentiable_loss(model, guide, *problem)
    assert model.calls == 1
    parameters = [*model.parameters(), *(network.parameters() if kind == "enum" else ())]
    assert_same(loss, exact(kind, model, network, problem, k), parameters)
    scores = network(*problem) if kind == "enum" else model.scores(problem[0], problem[1])
    found, whole = ((probabilities(scores, problem, most) > 0).sum(-1)[problem[-1]] for most in (k, None))
    assert elbo.support_record["alignment"].item() == pytest.approx(found.double().mean().item())
    assert elbo.cut_record["alignment"].item() == pytest.approx((whole > (k or KEYS)).double().mean().item())


def test_all_joint_alignments(problem):
    """The evidence is the sum over every joint alignment of every sentence."""
    model = SparseToy()
    p = probabilities(model.scores(problem[0], problem[1]), problem, None)
    dense = Toy()
    dense.load_state_dict(model.state_dict())
    dense.scores = lambda keys, queries: p.log().clamp_min(-1e12).unsqueeze(-2)
    loss = AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *problem)
    assert -loss == pytest.approx(brute_force_evidence(dense, problem).item(), rel=1e-10)


@pytest.mark.parametrize(("sparse", "family"), [(True, Marginal), (False, Marginal), (True, Categorical)])
def test_sparse_and_dense_sums_agree_under_the_same_probabilities(sparse, family, problem):
    """With k of all keys, and a dense prior whose scores are the logarithms of sparsemax."""
    model = SparseToy(KEYS if sparse else None)
    elbo, guide = AlignmentELBO(max_plate_nesting=2), AttentionGuide(model, family())
    loss = elbo.differentiable_loss(model, guide, *problem)
    scores = model.scores(problem[0], problem[1])
    p = probabilities(scores, problem, None)
    dense = Toy()
    dense.load_state_dict(model.state_dict())
    dense.scores = lambda keys, queries: torch.where(p > 0, p, 1.0).log().masked_fill(p == 0, -1e12).unsqueeze(-2)
    reference = elbo.differentiable_loss(dense, AttentionGuide(dense, family()), *problem)
    torch.testing.assert_close(loss, reference, rtol=1e-10, atol=1e-10)
    found = gradients(loss, list(model.score.parameters()))
    torch.testing.assert_close(found, gradients(reference, list(model.score.parameters())), rtol=1e-8, atol=1e-10)


def test_bounds_are_ordered(problem):
    """A sparse posterior gives a bound on the dense prior's evidence."""
    model, _, guide = built("enum", 2)
    elbo = AlignmentELBO(max_plate_nesting=2)
    assert elbo.loss(model, guide, *problem) > elbo.loss(model, AttentionGuide(model, Marginal()), *problem)
    assert elbo.support_record == {}  # of the last evaluation


@pytest.mark.parametrize("family", [Categorical, SparseCategorical, lambda: Categorical(enumerate=False)])
def test_a_posterior_has_no_keys_that_its_sparse_prior_lacks(family, problem):
    """Whatever an inference network says: the KL is finite."""
    model, network = SparseToy(2), Network()
    guide = AttentionGuide(model, Amortised(network, family()))
    sites = guide.run(*problem).trace.nodes["alignment"]
    prior, posterior = sites["infer"]["prior"], sites["fn"]
    assert ((posterior.probs > 0) <= (prior.probs > 0)).all()
    elbo = AlignmentELBO(max_plate_nesting=2) if family().infer else ScoreFunctionELBO()
    loss = elbo.differentiable_loss(model, guide, *problem)
    assert loss < 1e3
    assert all(gradient.isfinite().all() for gradient in gradients(loss, [*model.parameters(), *network.parameters()]))


def test_soft_attention_under_a_sparse_prior_is_sparsemax_attention(problem):
    model = SparseToy()
    loss = pyro.infer.Trace_ELBO().differentiable_loss(model, AttentionGuide(model, Soft()), *problem)
    p = probabilities(model.scores(problem[0], problem[1]), problem, None)
    logits = model.out(p @ problem[0]).log_softmax(-1)
    reference = logits.gather(-1, problem[2][..., None]).squeeze(-1)[problem[-1]].sum()
    assert_same(loss, reference, list(model.parameters()))


@pytest.mark.parametrize("kind", ["marginal", "enum"])
@pytest.mark.parametrize("k", [None, 2])
def test_padding_changes_nothing(kind, k, problem):
    model, _, guide = built(kind, k)
    keys, queries, labels, mask, real = problem
    padded = (
        torch.cat([keys, torch.full((BATCH, 3, WIDTH), 1e3, dtype=torch.float64)], 1),
        torch.cat([queries, torch.full((BATCH, 2, WIDTH), -7.0, dtype=torch.float64)], 1),
        torch.cat([labels, torch.zeros(BATCH, 2, dtype=torch.long)], 1),
        nn.functional.pad(mask, (0, 3)),
        nn.functional.pad(real, (0, 2)),
    )
    elbo = AlignmentELBO(max_plate_nesting=2)
    losses = [elbo.loss(model, guide, *arguments) for arguments in (problem, padded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.parametrize("kind", ["marginal", "hard", "enum"])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e4], ids=["equal", "nearly equal", "one key"])
def test_no_scores_give_an_infinite_loss(kind, scale, problem):
    model, network, guide = built(kind, 2)
    for parameters in (model.score.parameters(), network.parameters()):
        for parameter in parameters:
            parameter.data *= scale
    loss = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, *problem)
    assert loss.isfinite()
    trained = [*model.parameters(), *(network.parameters() if kind == "enum" else ())]
    assert all(gradient.isfinite().all() for gradient in gradients(loss, trained))


@pytest.mark.parametrize("kind", ["marginal", "enum"])
def test_trains_by_svi(kind, problem):
    model, _, guide = built(kind, 3)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), AlignmentELBO(max_plate_nesting=2))
    losses = [svi.step(*problem) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


def test_posterior_samples_are_possible_and_have_the_right_mean(problem):
    model = SparseToy()
    guide = AttentionGuide(model, Categorical(enumerate=False))
    samples = sample_posterior(guide, *problem, num_samples=1000, chunk_size=1000, seed=0)["alignment"].squeeze(-2)
    p = probabilities(model.scores(problem[0], problem[1]), problem, None)
    assert (samples[:, p == 0] == 0).all()
    assert ((samples.mean(0) - p).abs() <= 4 * (p * (1 - p) / 1000).sqrt() + 1e-12).all()
    mean = sample_posterior(guide, *problem, num_samples=1, noise="none")
    torch.testing.assert_close(mean["alignment"][0].squeeze(-2), p)


def test_the_layer_without_pyro_is_sparsemax_attention():
    torch.manual_seed(0)
    scores, values = torch.randn(2, 3, 1, 4), torch.randn(2, 1, 1, 4, 5)
    out = LatentAttention("alignment", SparseAlignmentPrior())(scores, values, layout=Dense(event_dim=2))
    torch.testing.assert_close(out.weights, sparsemax(scores))
    torch.testing.assert_close(out.context, (sparsemax(scores).unsqueeze(-2) @ values).squeeze(-2))


@pytest.mark.parametrize("shape", [(6, 2, 3), (6, 1, 3), (2, 3), (6, 1, 1)], ids=str)
@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
def test_the_context_of_keys_is_the_product_with_their_weights(prior, shape):
    """Whether every query has its own keys or all have the same."""
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True, False], [True] * 4])[:, None, None]
    layout = Dense(mask, event_dim=2)
    alignment = prior()(torch.randn(2, 3, 1, 4).double(), None, layout)
    value, values = torch.randint(4, shape), torch.randn(2, 1, 1, 4, 5).double().requires_grad_()
    weights = 0.5 * alignment.weights(value)
    results = alignment.context(value, weights, values), layout.aggregate(weights, values)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.square().sum(), values)[0] for result in results))


def test_distribution_by_hand():
    scores = torch.tensor([[[0.5, 0.25, -1.0, 9.0]], [[0.0, 0.0, 0.0, 9.0]], [[3.0, 0.0, 0.0, 9.0]]])
    layout = Dense(torch.tensor([True, True, True, False]), event_dim=2)
    alignment = SparseAlignment(scores, layout=layout, k=2)
    expected = torch.tensor([[0.625, 0.375, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(alignment.probs.sort(-1).values, expected.sort(-1).values)
    assert alignment.support_size.tolist() == [2, 2, 1]
    assert alignment.is_cut.tolist() == [False, True, False]
    wide = alignment.expand([5, 3])
    assert wide.enumerate_support().shape == (2, 5, 3)
    assert wide.is_possible(wide.enumerate_support())[:, 0].tolist() == [[True, True, True], [True, True, False]]
    assert wide.is_cut.equal(alignment.is_cut)
    assert wide.k == 2
    empty = SparseAlignment(scores[:1], layout=Dense(torch.zeros(4, dtype=torch.bool), event_dim=2))
    assert empty.probs.tolist() == [[0.25] * 4]
    assert empty.mean_weights.tolist() == [[[0.0] * 4]]
    other = CategoricalAlignment(torch.zeros(3, 1, 4), layout=layout)
    kl = torch.distributions.kl_divergence(alignment, other)
    torch.testing.assert_close(kl, -torch.special.entr(expected).sum(-1) + torch.tensor(3.0).log())


@pytest.mark.parametrize("build", [SparseAlignmentPrior, SparseCategorical])
def test_bad_input(build):
    assert repr(build(k=3)).endswith("(k=3)")
    with pytest.raises(ValueError, match="k is 0, expected an integer of at least 1"):
        build(k=0)


def test_queries_and_keys_of_the_toy_are_those_that_were_meant(problem):
    """Its scores are neither all alike nor all on one key, so that the sums above mean something."""
    model = SparseToy()
    sizes = (probabilities(model.scores(problem[0], problem[1]), problem, None) > 0).sum(-1)
    assert sizes.shape == (BATCH, QUERIES)
    assert 1 < sizes.double().mean() < KEYS
