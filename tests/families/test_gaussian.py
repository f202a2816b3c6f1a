"""Plain Gaussian attention weights: density and KL against torch, masks, layouts, samples, copies, bad input."""

import pickle

import pyro
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Dense,
    FixedGammaPrior,
    MultiheadAttention,
    Soft,
    Softmax,
    Weibull,
    check_model,
    sample_posterior,
)
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior, Gaussian, GaussianWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from tests.helpers import (
    DenseForm,
    EdgesForm,
    MaskedEdgesForm,
    Problem,
    Regression,
    assert_mean,
    closed_form,
    draw,
)

MASK = torch.tensor([[True, True, False], [True, True, True]])
PRIORS = {"fixed": lambda: FixedGaussianPrior(0.2, 0.7), "contextual": lambda: ContextualGaussianPrior(3, 2, scale=0.7)}
FORMS = [DenseForm(), MaskedEdgesForm(), EdgesForm()]
every_prior = pytest.mark.parametrize("prior", PRIORS)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)


def make_model(form, prior="contextual"):
    torch.manual_seed(1)
    return Regression(form, PRIORS[prior](), Softmax())


def gradients(loss, problem, *modules):
    leaves = [problem.scores, *(parameter for module in modules for parameter in module.parameters())]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


# the distribution


def test_density_entropy_and_kl_are_torchs():
    layout = Dense(MASK)
    torch.manual_seed(0)
    loc, scale, other = torch.randn(4, 2, 2, 3), torch.rand(2, 1, 1) + 0.1, torch.randn(2, 1, 3)
    q = GaussianWeights(loc, scale, layout=layout)
    p = GaussianWeights(other, torch.tensor(0.6), layout=layout, shape=loc.shape)
    value, normal = q.rsample(), Normal(loc, scale.expand(loc.shape))
    density = Normal(0.0, 1.0).log_prob(value)  # that of masked entries
    for found, expected, hidden in (
        (q.log_prob(value), normal.log_prob(value), density),
        (q.entropy(), normal.entropy(), 0),
        (kl_divergence(q, p), kl_divergence(normal, Normal(other.expand(loc.shape), 0.6)), 0),
    ):
        torch.testing.assert_close(found, expected.where(MASK, hidden).sum((1, 2, 3)))
    draws = q.rsample((4000,))
    assert_mean(draws[:, 0, :, MASK], q.mean[0, :, MASK], errors=4.5)
    assert_mean((draws - loc).square()[:, 0, :, MASK], q.variance.expand(2, 2, 3)[:, MASK], errors=4.5)
    assert_mean(q.log_prob(draws) - p.log_prob(draws), kl_divergence(q, p), errors=4.5)


def test_the_value_is_the_weight():
    q = GaussianWeights(torch.full((1, 2, 3), 0.5), torch.tensor(2.0), layout=Dense(MASK))
    value = torch.tensor([[[-1.0, 3.0, 7.0], [0.5, -2.0, 4.0]]])
    assert q.weights(value).tolist() == [[[-1.0, 3.0, 0.0], [0.5, -2.0, 4.0]]]
    assert q.mean_weights.tolist() == [[[0.5, 0.5, 0.0], [0.5, 0.5, 0.5]]]


@pytest.mark.parametrize(
    ("q", "p", "keys", "error", "message"),
    [
        (GaussianWeights, LogNormalWeights, 3, NotImplementedError, "GaussianWeights and q type LogNormalWeights"),
        (GaussianWeights, GammaWeights, 3, NotImplementedError, "GaussianWeights and q type GammaWeights"),
        (WeibullWeights, GaussianWeights, 3, NotImplementedError, "WeibullWeights and q type GaussianWeights"),
        (GaussianWeights, GaussianWeights, 2, ValueError, "KL between event shapes"),
    ],
)
def test_no_kl_to_weights_on_another_scale(q, p, keys, error, message):
    """Normal distributions they may be, but of the logarithm."""
    with pytest.raises(error, match=message):
        kl_divergence(q(torch.zeros(1, 2, 3), torch.tensor(1.0)), p(torch.zeros(1, 2, keys), torch.tensor(1.0)))


# attention with such weights


@every_form
@every_prior
def test_weights_lie_around_the_deterministic_ones(form, prior):
    problem, model = Problem.random((300,)), make_model(form, prior)
    problem = problem.with_(scores=problem.scores.detach()[:1].expand(300, -1, -1, -1))
    plain = Regression(form, FixedGammaPrior(), Softmax())
    soft = draw(plain, Soft(), problem)["weights"][0]
    weights = draw(model, Gaussian(scale=0.5), problem)["weights"]
    assert (weights[..., ~problem.mask] == 0).all()
    assert (weights[:, :, 1] == 0).all()  # a query without keys
    assert (weights[..., problem.mask] < 0).any()
    assert (weights.sum(-1)[..., [0, 2, 3]] - 1).abs().max() > 0.5
    assert_mean(weights[..., problem.mask], soft[..., problem.mask], errors=4.5)
    assert weights[..., problem.mask].std(0).mean().item() == pytest.approx(0.5, rel=0.05)
    narrow = draw(model, Gaussian(scale=1e-6), problem)["weights"]
    torch.testing.assert_close(narrow, soft.expand_as(narrow), atol=1e-4, rtol=0)


@every_form
@every_prior
def test_masked_entries_do_not_matter(form, prior):
    problem, model, family = Problem.random(), make_model(form, prior), Gaussian(0.3, learnable=True)
    scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
    values = problem.values.clone()
    values[:, 2] = -50  # the key that no query sees
    other = problem.with_(scores=scores, values=values)
    (loss, kl), (other_loss, other_kl) = (closed_form(model, family, p) for p in (problem, other))
    torch.testing.assert_close((other_loss, other_kl), (loss, kl))
    assert kl > 0
    for p, value in ((problem, loss), (other, other_loss)):
        found = gradients(value, p, model, family)
        assert (found[0][..., ~p.mask] == 0).all()
        assert (found[0][..., p.mask] != 0).all()
        assert all((gradient != 0).any() for gradient in found)
    nothing = Problem.random(mask=torch.zeros(4, 5, dtype=torch.bool))
    loss, kl = closed_form(model, family, nothing)
    assert kl == 0
    assert all((gradient == 0).all() for gradient in gradients(loss, nothing, model, family))


@every_prior
def test_layouts_agree(prior):
    problem = Problem.random()
    kls = [closed_form(make_model(form, prior), Gaussian(0.3), problem)[1] for form in FORMS]
    torch.testing.assert_close(kls[1:], kls[:1] * 2)


@every_prior
def test_bfloat16_and_leading_dimensions(prior):
    model, family = make_model(DenseForm(), prior), Gaussian(0.3)
    _, expected = closed_form(model, family, Problem.random((2, 2)))
    low = Problem.random((2, 2), dtype=torch.bfloat16)
    values = draw(model, family, low)
    assert (values["weights"].dtype, values["context"].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(closed_form(model, family, low)[1], expected, rtol=0.02, atol=0)
    problem, total = Problem.random((2, 2)), 0
    for i, j in ((i, j) for i in range(2) for j in range(2)):
        one = Problem(*(x[i, j] for x in (problem.scores, problem.values, problem.targets)), problem.mask)
        total = total + closed_form(model, family, one)[1]
    torch.testing.assert_close(total, expected)


def test_one_scale_a_head_and_extreme_scores():
    problem, model = Problem.random((100,)), make_model(DenseForm())
    weights = draw(model, Gaussian(torch.tensor([1e-4, 2.0])), problem)["weights"]
    narrow, wide = (weights - draw(model, Gaussian(1e-8), problem)["weights"]).abs().mean((0, 2, 3))
    assert narrow < 1e-3
    assert wide > 0.5
    scores = torch.linspace(-1000, 1000, 40).view(2, 4, 5).requires_grad_()
    loss, _ = closed_form(model, Gaussian(0.1, learnable=True), Problem.random().with_(scores=scores))
    assert torch.autograd.grad(loss, scores)[0].isfinite().all()


def test_self_attention_samples_and_reports():
    """Through MultiheadAttention, which has no blocked way for such weights."""
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, prior=ContextualGaussianPrior(4, 2))
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])

    def model():
        with pyro.plate("batch", 2):
            return attention(x, x, x, key_padding_mask=padding)[0]

    guide = AttentionGuide(model, Gaussian(0.5))
    samples = sample_posterior(guide, num_samples=4, seed=0)["attention"]
    assert samples.shape == (4, 2, 2, 3, 3)
    assert (samples[:, 0, ..., 2] == 0).all()
    mean = sample_posterior(guide, num_samples=1, noise="none")["attention"][0]
    torch.testing.assert_close(mean.sum(-1), torch.ones(2, 2, 3))


def test_check_model_knows_the_site():
    problem, model = Problem.random(), make_model(DenseForm())
    (site,) = check_model(model, AttentionGuide(model, Gaussian()), problem).sites
    assert (site.family, site.prior) == ("GaussianWeights", "GaussianWeights")
    assert site.kl > 0


def test_guides_pickle():
    problem, model = Problem.random(), make_model(DenseForm())
    guide = AttentionGuide(model, Gaussian(torch.tensor([0.2, 0.4]), learnable=True))

    def loss(guide):
        torch.manual_seed(3)
        return AttentionELBO().loss(guide.model, guide, problem)

    assert loss(pickle.loads(pickle.dumps(guide))) == loss(guide)


# bad input


@pytest.mark.parametrize(
    ("prior", "family", "message"),
    [
        (FixedGaussianPrior(), Weibull(), "'positive weights', but its prior GaussianWeights is of kind 'gaussian"),
        (FixedGammaPrior(), Gaussian(), "Gaussian fits priors of kind 'gaussian weights'.* 'positive weights'"),
    ],
    ids=str,
)
def test_kinds_do_not_mix(prior, family, message):
    with pytest.raises(ValueError, match=message):
        AttentionGuide(Regression(DenseForm(), prior, Softmax()), family)(Problem.random())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(scale=0.0), "scale is 0.0, expected a positive finite number"),
        (lambda: Gaussian(scale=torch.ones(2, 2)), r"scale has shape \(2, 2\), expected a number or one per head"),
        (lambda: FixedGaussianPrior(scale=-1.0), "scale is -1.0, expected a positive"),
        (lambda: FixedGaussianPrior(float("nan")), "loc is nan, expected a finite number"),
        (lambda: ContextualGaussianPrior(0), "least of key_dim, heads and hidden_dim is 0"),
        (lambda: GaussianWeights(torch.zeros(1, 1, 2), torch.tensor(-1.0)), "GaussianWeights: scale has an entry -1.0"),
        (lambda: GaussianWeights(torch.zeros(2), torch.tensor(1.0)), "fewer dimensions than the 3 event dimensions"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
