"""The layouts agree: one graph gives the same attention as a dense grid with a mask and as lists of edges."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from pyro_attention import AttentionGuide, Soft
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import (
    CASES,
    PAIRS,
    DenseForm,
    EdgesForm,
    MaskedEdgesForm,
    Problem,
    closed_form,
    draw,
    make_family,
    make_model,
)

FORMS = [DenseForm(), MaskedEdgesForm(), EdgesForm()]
edge_forms = pytest.mark.parametrize("form", FORMS[1:], ids=lambda form: type(form).__name__)


def site(model, family, problem):
    """Posterior and prior of the attention site."""
    guide = AttentionGuide(model, family)
    guide(problem)
    model_trace, guide_trace = guide.get_traces()
    return guide_trace.nodes["attention"]["fn"], model_trace.nodes["attention"]["fn"]


def in_layout(model, form):
    """The same model, with the same parameters, in another layout."""
    other = copy.deepcopy(model)
    other.form = form
    return other


@pytest.fixture
def double():
    """A density far from its mode multiplies the rounding of the scores by thousands, so compare in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@edge_forms
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize(("family", "prior", "normalizer"), CASES)
def test_layouts_agree(family, prior, normalizer, batch, form):
    problem, model = Problem.random(batch, dtype=torch.float64), make_model(DenseForm(), prior, normalizer)
    other, posterior = in_layout(model, form), make_family(family, k=torch.tensor([2.0, 5.0]), learnable=True)

    for name in ("weights", "context"):
        torch.testing.assert_close(*(draw(m, Soft(), problem)[name] for m in (model, other)))

    (q, p), (other_q, other_p) = site(model, posterior, problem), site(other, posterior, problem)
    value = torch.randn(problem.scores.shape)
    moved = form.scores(value, problem.mask)
    # an edge that is not there has no density, a masked entry that of a standard normal
    absent = Normal(0.0, 1.0).log_prob(value)[..., ~form.kept(problem.mask)].sum((-2, -1))
    torch.testing.assert_close(form.to_dense(other_p.weights(moved), problem.mask), p.weights(value))
    torch.testing.assert_close(other_p.log_prob(moved) + absent, p.log_prob(value))
    if family == "soft":
        return
    torch.testing.assert_close(other_q.log_prob(moved) + absent, q.log_prob(value))
    leaves = [problem.scores, *posterior.parameters()]
    kls = [kl_divergence(q, p), kl_divergence(other_q, other_p)]
    torch.testing.assert_close(*kls)
    torch.testing.assert_close(*(torch.autograd.grad(kl.sum(), leaves) for kl in kls))
    parameters = [list(m.parameters()) for m in (model, other)]
    if parameters[0]:
        gradients = [
            torch.autograd.grad(
                kl_divergence(*site(m, posterior, problem)).sum(), ps, allow_unused=True, materialize_grads=True
            )
            for m, ps in zip((model, other), parameters, strict=True)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize(("family", "prior"), [pair for pair in PAIRS if pair[0] != "soft"])
def test_expected_weight_is_exp_of_the_score(family, prior, form):
    problem, model = Problem.random((2,)), make_model(form, prior)
    mask, scores = problem.mask, problem.scores.detach()
    for normalize in (False, True):
        model.attention.normalize_scores = normalize
        for k in (0.5, torch.tensor([2.0, 20.0])):
            q, _ = site(model, make_family(family, k=k), problem)
            expected = scores.masked_fill(~mask, -torch.inf).log_softmax(-1) if normalize else scores
            mean = form.to_dense(q.log_expected_weight.expand(q.shape()), mask)
            torch.testing.assert_close(mean[..., mask], expected[..., mask])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("prior", ["gamma_contextual", "lognormal_contextual"])
def test_contextual_prior_is_a_softmax_over_the_keys_a_query_sees(prior, form):
    problem, model = Problem.random((2,)), make_model(form, prior)
    _, p = site(model, make_family("weibull"), problem)
    log_psi = p.log_expected_weight if prior == "gamma_contextual" else p.mean
    psi = form.to_dense(log_psi.expand(p.shape()).exp(), problem.mask) * problem.mask
    torch.testing.assert_close(psi.sum(-1), problem.mask.any(-1).float().expand(2, 2, 4))
    # it depends on the keys alone: the same ratio of keys 0 and 1 for both queries that see them all
    torch.testing.assert_close(*(psi[..., query, 0] / psi[..., query, 1] for query in (0, 2)))


@st.composite
def problems(draw):
    """Up to 4 heads, queries and keys, up to two leading dimensions, any mask."""
    sizes = st.integers(1, 4)
    heads, queries, keys = draw(sizes), draw(sizes), draw(sizes)
    allowed = draw(st.lists(st.booleans(), min_size=queries * keys, max_size=queries * keys))
    return Problem.random(
        tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        heads=heads,
        mask=torch.tensor(allowed).view(queries, keys),
        spread=draw(st.sampled_from([0.1, 1.0, 100.0])),
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(problems(), st.sampled_from(PAIRS), st.sampled_from(list(NORMALIZERS)), st.sampled_from([0.5, 10.0, 500.0]))
def test_any_shape_and_mask(problem, pair, normalizer, k):
    family, prior = pair
    heads, mask = problem.scores.size(-3), problem.mask
    model, posterior = make_model(DenseForm(), prior, normalizer, heads=heads), make_family(family, k=k)
    kls = []
    for form in FORMS:
        other = in_layout(model, form)
        weights = draw(other, posterior, problem)["weights"]
        assert (weights >= 0).all()
        assert (weights[..., ~mask] == 0).all()
        torch.testing.assert_close(weights.sum(-1), mask.any(-1).float().expand(weights.shape[:-1]))
        loss, kl = closed_form(other, posterior, problem)
        (gradient,) = torch.autograd.grad(loss, problem.scores)
        assert gradient.isfinite().all()
        assert (gradient[..., ~mask] == 0).all()
        kls.append(kl)
    torch.testing.assert_close(kls[1:], kls[:1] * (len(kls) - 1), rtol=1e-5, atol=1e-4)
    assert kls[0] == 0 or mask.any()
