"""What every posterior family keeps with every prior of its kind, every normalizer and layout, in public.

A newly registered member joins by its name; a new posterior family also needs a line in ``helpers.FAMILY_ARGUMENTS``.
"""

import copy
import math
import pickle
from dataclasses import dataclass, replace

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_attention import Amortized, AttentionELBO, AttentionGuide, Dense, LatentAttention, Soft, elbo_for
from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.families.gaussian import GaussianWeights
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import (
    ALL_PAIRS,
    ONE_EACH,
    PAIRS,
    DenseForm,
    EdgesForm,
    MaskedEdgesForm,
    Problem,
    assert_mean,
    closed_form,
    draw,
    gradients,
    log_mean,
    make_family,
    make_model,
    make_prior,
    posterior_and_prior,
)

FORMS = [DenseForm(), MaskedEdgesForm(), EdgesForm()]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)


def loss_and_gradients(loss, problem, *modules):
    return gradients(loss, problem.scores, *(parameter for module in modules for parameter in module.parameters()))


class LayerScores(nn.Module):
    """An inference network that returns what the layer itself proposes."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, problem):
        return self.form.scores(problem.scores, problem.mask)


class AttentionContract:
    """Of positive weights. Subclasses name the layout and their cases, as test_worked_example.py does."""

    form = DenseForm()
    cases = tuple(dict.fromkeys([*((*pair, "softmax") for pair in PAIRS if pair[0] != "soft"), *ONE_EACH]))

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize(("family", "prior", "normalizer"), self.cases)

    @pytest.mark.parametrize("normalize_scores", [True, False], ids=["normalized", "raw"])
    def test_masked_entries_do_not_matter(self, family, prior, normalizer, normalize_scores):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer, normalize_scores=normalize_scores)
        scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
        values = problem.values.clone()
        values[:, 2] = -50  # the key that no query sees
        other = problem.with_(scores=scores, values=values)
        found = [closed_form(model, make_family(family), p) for p in (problem, other)]
        torch.testing.assert_close(*found)
        for p, (loss, _) in zip((problem, other), found, strict=True):
            gradient = gradients(loss, p.scores)[0]
            assert (gradient[..., ~p.mask] == 0).all()
            assert (gradient[..., p.mask] != 0).all()
        amortized = Amortized(LayerScores(self.form), make_family(family))
        torch.testing.assert_close(closed_form(model, amortized, problem), found[0], rtol=0, atol=0)

    def test_rows(self, family, prior, normalizer):
        """They sum to one; a fully masked one is inert."""
        problem, model, rows = Problem.random(), make_model(self.form, prior, normalizer), [0, 2, 3]
        values = draw(model, make_family(family, k=1.0), problem)
        weights = values["weights"]
        assert (weights[..., ~problem.mask] == 0).all()
        assert (weights[..., problem.mask] > 0).all()
        torch.testing.assert_close(weights.sum(-1), problem.mask.any(-1).float().expand(2, 4))
        assert (values["context"][:, 1] == 0).all()
        without = problem.with_(
            scores=problem.scores.detach()[:, rows], targets=problem.targets[:, rows], mask=problem.mask[rows]
        )
        kls = [closed_form(model, make_family(family), p)[1] for p in (problem, without)]
        torch.testing.assert_close(*kls)

    def test_nothing_to_attend_to(self, family, prior, normalizer):
        problem = Problem.random(mask=torch.zeros(3, 4, dtype=torch.bool))
        model, posterior = make_model(self.form, prior, normalizer), make_family(family, learnable=True)
        loss, kl = closed_form(model, posterior, problem)
        assert kl == 0
        torch.testing.assert_close(loss, 0.5 * (problem.targets**2 + math.log(2 * math.pi)).sum())
        if loss.requires_grad:
            assert all((gradient == 0).all() for gradient in loss_and_gradients(loss, problem, model, posterior))

    def test_raw_scores(self, family, prior, normalizer):
        problem, model, found = Problem.random(), make_model(self.form, prior, normalizer), []
        for model.attention.normalize_scores in (False, True):
            found.append(draw(model, make_family(family), problem))
        torch.testing.assert_close(found[0]["weights"], found[1]["weights"])
        if normalizer == "softmax":
            visible = problem.mask.any(-1)
            lse = problem.scores.masked_fill(~problem.mask, -torch.inf).logsumexp(-1, keepdim=True)[:, visible]
            difference = self.form.to_dense(found[0]["attention"] - found[1]["attention"], problem.mask)[:, visible]
            torch.testing.assert_close(difference, (lse * problem.mask[visible]), atol=1e-5, rtol=1e-5)

    def test_deterministic_limit(self, family, prior, normalizer):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer)
        narrow, soft = (draw(model, f, problem) for f in (make_family(family, k=1e6), Soft()))
        torch.testing.assert_close(narrow["weights"], soft["weights"], atol=3e-3, rtol=0)
        if normalizer == "softmax":
            expected = problem.scores.masked_fill(~problem.mask, -torch.inf).softmax(-1).nan_to_num(0)
        else:  # its own tests say what it does with the raw scores
            expected = model.attention.normalizer(problem.scores, Dense(problem.mask))
        torch.testing.assert_close(soft["weights"], expected)
        torch.testing.assert_close(soft["context"], expected @ problem.values)

    def test_leading_dimensions(self, family, prior, normalizer):
        problem, model, posterior = (
            Problem.random((2, 2)),
            make_model(self.form, prior, normalizer),
            make_family(family),
        )
        values, total = draw(model, posterior, problem), closed_form(model, posterior, problem)[1]
        assert values["weights"].shape == problem.scores.shape
        assert values["context"].shape == problem.targets.shape
        ones = [
            Problem(*(x[i, j] for x in (problem.scores, problem.values, problem.targets)), problem.mask)
            for i in range(2)
            for j in range(2)
        ]
        torch.testing.assert_close(total, sum(closed_form(model, posterior, one)[1] for one in ones))

    @pytest.mark.parametrize("cast", ["model", "autocast"])
    def test_bfloat16(self, family, prior, normalizer, cast):
        """Weights and KL are computed in float32."""
        problem, posterior = Problem.random((2,)), make_family(family, learnable=True)
        model = make_model(self.form, prior, normalizer)
        _, expected = closed_form(model, posterior, problem)
        if cast == "model":
            problem = Problem.random((2,), dtype=torch.bfloat16)
            model, posterior = model.bfloat16(), posterior.bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast == "autocast"):
            values = draw(model, posterior, problem)
            loss, kl = closed_form(model, posterior, problem)
        assert values["weights"].dtype == values["attention"].dtype == loss.dtype == torch.float32
        assert cast == "autocast" or values["context"].dtype == torch.bfloat16
        torch.testing.assert_close(kl, expected, rtol=1e-6 if cast == "autocast" else 0.02, atol=0)

    def test_extremes_are_finite(self, family, prior, normalizer):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer)
        scores = torch.linspace(-1000, 1000, problem.scores.numel()).view(5, 2, 4).permute(1, 2, 0)
        problem = problem.with_(scores=scores.requires_grad_())
        for k in (0.1, 1000.0):
            posterior = make_family(family, k=k, learnable=True)
            loss, _ = closed_form(model, posterior, problem)
            assert loss.isfinite(), k
            assert all(each.isfinite().all() for each in loss_and_gradients(loss, problem, model, posterior)), k

    def test_one_parameter_a_head(self, family, prior, normalizer):
        """It trains; head 1 is wide, head 0 nearly deterministic. Copies work like the original."""
        problem, model = Problem.random((100,)), make_model(self.form, prior, normalizer)
        posterior = make_family(family, k=torch.tensor([1e4, 2.0]), learnable=True)
        values, soft = draw(model, posterior, problem), draw(model, Soft(), problem)
        narrow, wide = (values["weights"] - soft["weights"]).abs().mean((0, 2, 3))
        assert narrow < 0.005
        assert wide > 0.02 or family == "soft"
        loss, _ = closed_form(model, posterior, problem)
        for parameter in posterior.parameters():
            gradient = torch.autograd.grad(loss, parameter, retain_graph=True)[0]
            assert gradient.shape == (2,)
            assert (gradient != 0).all()
        copied = pickle.loads(pickle.dumps(AttentionGuide(model, posterior)))
        assert torch.equal(closed_form(copied.model, copied.families[0], problem)[0], loss)
        other = make_model(self.form, prior, normalizer), make_family(family, k=torch.ones(2), learnable=True)
        for new, old in zip(other, (model, posterior), strict=True):
            new.load_state_dict(old.state_dict())
        assert torch.equal(closed_form(*other, problem)[0], loss)


class TestDense(AttentionContract):
    pass


class TestEdges(AttentionContract):
    form = EdgesForm()
    cases = ONE_EACH


def test_every_registered_member_takes_part():
    families, priors, _ = map(set, zip(*TestDense.cases, strict=True))
    assert set(NORMALIZERS) == {case[2] for case in TestEdges.cases}
    assert families | {pair[0] for pair in KindContract.pairs} == set(FAMILIES)
    assert priors | {pair[1] for pair in KindContract.pairs} == set(PRIORS)


@pytest.mark.parametrize("family", [name for name, _ in dict(PAIRS).items() if name != "soft"])
def test_sampled_kl(family):
    problem, model, posterior = Problem.random(), make_model(DenseForm(), dict(PAIRS)[family]), make_family(family, 2.0)
    _, expected = closed_form(model, posterior, problem)
    many = [value.expand(200, *value.shape) for value in (problem.scores, problem.values, problem.targets)]
    elbo, guide, estimates = AttentionELBO(kl="sampled"), AttentionGuide(model, posterior), []
    for _ in range(20):
        elbo.loss(model, guide, Problem(*many, problem.mask))
        estimates.append(elbo.kl_record["attention"] / 200)
    assert_mean(torch.stack(estimates), expected)


@pytest.mark.parametrize("kl", ["sampled", "closed_form"])
def test_soft_attention_has_no_kl(kl):
    model, elbo = make_model(DenseForm(), "gamma_fixed"), AttentionELBO(kl=kl)
    elbo.loss(model, AttentionGuide(model, Soft()), Problem.random())
    assert elbo.kl_record == {}


# queries in a plate, and all kinds of weights


@dataclass(frozen=True)
class Queries:
    """Scores ``[B, M, 1, N]``, values ``[B, 1, 1, N, D]``, targets ``[B, M, D]`` and mask ``[M, 1, N]``."""

    scores: Tensor
    values: Tensor
    targets: Tensor
    mask: Tensor

    @classmethod
    def random(cls):
        """Nobody may attend to key 2, and query 1 to nothing."""
        mask = torch.ones(3, 1, 4, dtype=torch.bool)
        mask[1] = mask[..., 2] = False
        generator = torch.Generator().manual_seed(0)
        shapes = (2, 3, 1, 4), (2, 1, 1, 4, 2), (2, 3, 2)
        scores, values, targets = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return cls(scores.requires_grad_(), values, targets, mask)


class Model(nn.Module):
    def __init__(self, prior, **options):
        super().__init__()
        self.attention = LatentAttention("attention", make_prior(prior, heads=1, width=2).double(), **options)

    def forward(self, problem):
        batch, queries, _, _ = problem.scores.shape
        values = problem.values
        with pyro.plate("batch", batch, dim=-2), pyro.plate("queries", queries, dim=-1):
            layout = Dense(problem.mask, event_dim=2)
            out = self.attention(problem.scores, values, keys=values, layout=layout)
            pyro.sample("targets", Normal(out.context.squeeze(-2), 1.0).to_event(1), obs=problem.targets)
        return out.weights


class SameScores(nn.Module):
    """An inference network that returns the layer's scores, times a factor."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, problem):
        return self.factor * problem.scores


def evaluate(model, family, problem):
    """Loss and its gradient with respect to the scores, with fixed noise."""
    elbo = elbo_for(family, max_plate_nesting=2)
    torch.manual_seed(0)
    loss = elbo.differentiable_loss(model, AttentionGuide(model, family), problem)
    return loss.detach(), torch.autograd.grad(loss, problem.scores)[0]


def build(family, k=3.0):
    return make_family(family, k=k).double()


class KindContract:
    """Subclasses name their own pairs of a family and a prior, and another model of the same problem."""

    model = Model
    network = SameScores
    pairs = (*(pair for pair in ALL_PAIRS if pair not in PAIRS), *dict(PAIRS).items())

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize(("family", "prior"), self.pairs)

    @pytest.mark.parametrize("normalize_scores", [True, False])
    def test_an_inference_network(self, family, prior, normalize_scores):
        """One that returns the layer's scores gives the family's own posterior."""
        problem, model = Queries.random(), self.model(prior, normalize_scores=normalize_scores)
        plain = evaluate(model, build(family), problem)
        torch.testing.assert_close(evaluate(model, Amortized(self.network(), build(family)), problem), plain)
        shifted = Amortized(self.network(0.0), build(family), from_prior=True)
        torch.testing.assert_close(evaluate(model, shifted, problem)[0], plain[0])

    def test_rows_are_simplices(self, family, prior):
        problem, model = Queries.random(), self.model(prior)
        weights = AttentionGuide(model, build(family)).run(problem).output
        assert weights.shape == problem.scores.shape
        assert (weights[:, ~problem.mask] == 0).all()
        if family == "soft" or FAMILIES[family].kind != GaussianWeights.kind:
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), problem.mask.any(-1).double().expand(2, 3, 1))
        if build(family).state_dict():  # a parameter of its spread, whose limit is soft attention
            narrow = AttentionGuide(model, build(family, k=1e8)).run(problem).output
            soft = problem.scores.masked_fill(~problem.mask, -torch.inf).softmax(-1).nan_to_num(0)
            torch.testing.assert_close(narrow, soft, atol=1e-3, rtol=0)

    def test_masked_entries_do_not_matter(self, family, prior):
        problem, model = Queries.random(), self.model(prior)
        scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
        values = problem.values.clone()
        values[..., 2, :] = -50  # the key that no query sees
        found = [evaluate(model, build(family), p) for p in (problem, replace(problem, scores=scores, values=values))]
        torch.testing.assert_close(*found)
        assert (found[0][1][:, ~problem.mask] == 0).all()
        seen = found[0][1][:, problem.mask] != 0
        assert seen.any() if prior == "sparse_alignment" else seen.all()  # keys of probability zero have no gradient

    def test_a_query_without_keys_is_inert(self, family, prior):
        """Its observation meets a context of zero; there is no KL."""
        problem, model = Queries.random(), self.model(prior)
        problem = replace(problem, mask=torch.zeros_like(problem.mask))
        loss, gradient = evaluate(model, build(family), problem)
        torch.testing.assert_close(loss, -Normal(torch.zeros(()).double(), 1.0).log_prob(problem.targets).sum())
        assert (gradient == 0).all()

    def test_copies_work_like_the_original(self, family, prior):
        problem, model, posterior = Queries.random(), self.model(prior), build(family)
        expected = evaluate(model, posterior, problem)
        copied = pickle.loads(pickle.dumps((model, posterior)))
        other = self.model(prior), build(family, k=7.0)
        for new, old in zip(other, (model, posterior), strict=True):
            new.load_state_dict(old.state_dict())
        for each in (copied, other):
            torch.testing.assert_close(evaluate(*each, problem), expected, rtol=0, atol=0)


class TestKinds(KindContract):
    pass


def test_a_network_may_return_infinities_where_masked():
    class Hidden(nn.Module):
        def forward(self, problem):
            return problem.scores.masked_fill(~problem.mask, -torch.inf)

    problem, model = Queries.random(), Model("gamma_fixed", normalize_scores=False)
    found = [evaluate(model, f, problem) for f in (build("weibull"), Amortized(Hidden(), build("weibull")))]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("make", [lambda: map(make_family, FAMILIES), lambda: map(make_prior, PRIORS)])
def test_the_state_of_another_member_does_not_fit(make):
    """A concentration is no scale, and one family's concentration not another's."""
    names = [tuple(member.state_dict()) for member in make()]
    names = [each for each in names if each]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("family", "prior", "message"),
    [
        (
            "weibull",
            "gaussian_fixed",
            "site 'attention': Weibull fits priors of kind 'positive weights', but its prior",
        ),
        ("weibull", "alignment", "families for this prior: .*Soft, "),
        ("categorical", "gamma_fixed", "priors for Categorical: AlignmentPrior, "),
        ("dirichlet", "alignment", "kind 'dirichlet', but its prior CategoricalAlignment is of kind 'alignment'"),
        ("gaussian", "lognormal_fixed", "Gaussian fits priors of kind 'gaussian weights'.* 'positive weights'"),
    ],
)
def test_kinds_do_not_mix(family, prior, message):
    with pytest.raises(ValueError, match=message):
        AttentionGuide(Model(prior), build(family))(Queries.random())


# the layouts agree: one graph gives the same attention as a dense grid with a mask and as lists of edges


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
@pytest.mark.parametrize("form", FORMS[1:], ids=lambda form: type(form).__name__)
@pytest.mark.parametrize(("family", "prior", "normalizer"), [*ONE_EACH, ("gaussian", "gaussian_contextual", "softmax")])
def test_layouts_agree(family, prior, normalizer, form):
    problem, model = Problem.random((2,), dtype=torch.float64), make_model(DenseForm(), prior, normalizer)
    other, posterior = in_layout(model, form), make_family(family, k=torch.tensor([2.0, 5.0]), learnable=True)
    for name in ("weights", "context"):
        torch.testing.assert_close(*(draw(m, Soft(), problem)[name] for m in (model, other)))
    (q, p), (other_q, other_p) = (posterior_and_prior(AttentionGuide(m, posterior), problem) for m in (model, other))
    value = torch.randn(problem.scores.shape)
    moved = form.scores(value, problem.mask)
    # an edge that is not there has no density, a masked entry that of a standard normal
    absent = torch.distributions.Normal(0.0, 1.0).log_prob(value)[..., ~form.kept(problem.mask)].sum((-2, -1))
    torch.testing.assert_close(
        form.to_dense(other_p.weights(moved, other.attention.normalizer), problem.mask),
        p.weights(value, model.attention.normalizer),
    )
    torch.testing.assert_close(other_p.log_prob(moved) + absent, p.log_prob(value))
    if family == "soft":
        return
    torch.testing.assert_close(other_q.log_prob(moved) + absent, q.log_prob(value))
    kls = [kl_divergence(q, p), kl_divergence(other_q, other_p)]
    torch.testing.assert_close(*kls)
    found = [
        gradients(kl.sum(), problem.scores, *posterior.parameters(), *m.parameters())
        for kl, m in zip(kls, (model, other), strict=True)
    ]
    torch.testing.assert_close(*found)


@every_form
@pytest.mark.parametrize("family", [name for name, _ in dict(PAIRS).items() if name != "soft"])
def test_expected_weight_is_exp_of_the_score(family, form):
    problem, model = Problem.random((2,)), make_model(form, "gamma_fixed")
    mask, scores = problem.mask, problem.scores.detach()
    for model.attention.normalize_scores in (False, True):
        for k in (0.5, torch.tensor([2.0, 20.0])):
            q, _p = posterior_and_prior(AttentionGuide(model, make_family(family, k=k)), problem)
            masked = scores.masked_fill(~mask, -torch.inf)
            expected = masked.log_softmax(-1) if model.attention.normalize_scores else scores
            torch.testing.assert_close(form.to_dense(log_mean(q), mask)[..., mask], expected[..., mask])
            # the mean says so by rights: that of draws
            draws = form.to_dense(q.rsample((2000,)) - log_mean(q), mask)[..., mask].flatten(1)
            wide = torch.as_tensor(k).min() < 1
            assert_mean(draws[:, :1].exp() if wide else draws.exp(), 1.0, errors=5.0)


@every_form
@pytest.mark.parametrize("prior", ["gamma_contextual", "lognormal_contextual"])
def test_contextual_prior_is_a_softmax_over_the_keys_a_query_sees(prior, form):
    problem, model = Problem.random((2,)), make_model(form, prior)
    _, p = posterior_and_prior(AttentionGuide(model, make_family("weibull")), problem)
    log_psi = log_mean(p) if prior == "gamma_contextual" else p.mean
    psi = form.to_dense(log_psi.expand(p.shape()).exp(), problem.mask) * problem.mask
    torch.testing.assert_close(psi.sum(-1), problem.mask.any(-1).float().expand(2, 2, 4))
    # it depends on the keys alone: the same ratio of keys 0 and 1 for both queries that see them all
    torch.testing.assert_close(*(psi[..., query, 0] / psi[..., query, 1] for query in (0, 2)))
