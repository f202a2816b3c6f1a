"""What every registered family keeps with every prior of its kind, at a site whose queries lie in a plate.

A newly registered member joins by its name; a new posterior family also needs a line in ``helpers.FAMILY_ARGUMENTS``.
"""

import itertools
import pickle
from dataclasses import dataclass, replace

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import Tensor, nn

from pyro_attention import Amortised, AttentionGuide, Dense, LatentAttention, elbo_for
from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.families.gaussian import GaussianWeights
from tests.helpers import ALL_PAIRS, make_family, make_prior


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


def loss_and_gradient(model, family, problem):
    """Loss and its gradient with respect to the scores, with fixed noise."""
    elbo = elbo_for(family, max_plate_nesting=2)
    torch.manual_seed(0)
    loss = elbo.differentiable_loss(model, AttentionGuide(model, family), problem)
    return loss.detach(), torch.autograd.grad(loss, problem.scores)[0]


def build(family, k=3.0):
    return make_family(family, k=k).double()


# Keys of probability zero have no gradient.
SPARSE = {pair for pair in ALL_PAIRS if pair[1] == "sparse_alignment"}


def test_every_registered_member_takes_part():
    families, priors = map(set, zip(*ALL_PAIRS, strict=True))
    assert (families, priors) == (set(FAMILIES), set(PRIORS))


@pytest.mark.parametrize("prior", PRIORS)
def test_kind_of_a_prior(prior):
    problem = Queries.random()
    distribution = make_prior(prior, heads=1, width=2)(problem.scores, problem.values, Dense(event_dim=2))
    assert isinstance(distribution, AttentionDistribution)
    assert distribution.kind == PRIORS[prior].kind


class KindContract:
    """Subclasses name their own pairs of a family and a prior."""

    pairs = ALL_PAIRS

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize(("family", "prior"), self.pairs)

    @pytest.mark.parametrize("normalize_scores", [True, False])
    def test_a_network_that_returns_the_layers_scores(self, family, prior, normalize_scores):
        """It gives the family's own posterior, loss and gradient."""
        problem, model = Queries.random(), Model(prior, normalize_scores=normalize_scores)
        plain = loss_and_gradient(model, build(family), problem)
        torch.testing.assert_close(loss_and_gradient(model, Amortised(SameScores(), build(family)), problem), plain)
        shifted = Amortised(SameScores(0.0), build(family), from_prior=True)
        torch.testing.assert_close(loss_and_gradient(model, shifted, problem)[0], plain[0])

    def test_a_network_that_returns_nan(self, family, prior):
        problem, model = Queries.random(), Model(prior)
        guide = AttentionGuide(model, Amortised(SameScores(float("nan")), build(family)))
        with pytest.raises(ValueError, match="the inference network's output: 12 of 24 entries are NaN or infinite"):
            guide.run(problem)

    def test_rows_are_simplices(self, family, prior):
        problem, model = Queries.random(), Model(prior)
        weights = AttentionGuide(model, build(family)).run(problem).output
        assert weights.shape == problem.scores.shape
        assert (weights[:, ~problem.mask] == 0).all()
        if family == "soft" or FAMILIES[family].kind != GaussianWeights.kind:
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), problem.mask.any(-1).double().expand(2, 3, 1))

    def test_masked_entries_do_not_matter(self, family, prior):
        problem, model = Queries.random(), Model(prior)
        scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
        values = problem.values.clone()
        values[..., 2, :] = -50  # the key that no query sees
        found = [
            loss_and_gradient(model, build(family), p)
            for p in (problem, replace(problem, scores=scores, values=values))
        ]
        torch.testing.assert_close(*found)
        assert (found[0][1][:, ~problem.mask] == 0).all()
        seen = found[0][1][:, problem.mask] != 0
        assert seen.any() if (family, prior) in SPARSE else seen.all()

    def test_a_query_without_keys_is_inert(self, family, prior):
        """Its observation meets a context of zero; there is no KL."""
        problem, model = Queries.random(), Model(prior)
        loss, _ = loss_and_gradient(model, build(family, k=1e6), problem)
        rows = [0, 2]
        without = replace(
            problem,
            scores=problem.scores.detach()[:, rows].requires_grad_(),
            targets=problem.targets[:, rows],
            mask=problem.mask[rows],
        )
        alone = -Normal(torch.zeros(()).double(), 1.0).log_prob(problem.targets[:, 1]).sum()
        if family in ("gumbel_softmax", "dirichlet"):  # draws that never become narrow
            problem = replace(problem, mask=torch.zeros_like(problem.mask))
            loss, gradient = loss_and_gradient(model, build(family), problem)
            torch.testing.assert_close(loss, -Normal(torch.zeros(()).double(), 1.0).log_prob(problem.targets).sum())
            assert (gradient == 0).all()
            return
        torch.testing.assert_close(
            loss, loss_and_gradient(model, build(family, k=1e6), without)[0] + alone, rtol=1e-2, atol=0
        )

    def test_copies_work_like_the_original(self, family, prior):
        problem, model = Queries.random(), Model(prior)
        posterior = build(family)
        expected = loss_and_gradient(model, posterior, problem)
        copied = pickle.loads(pickle.dumps((model, posterior)))
        torch.testing.assert_close(loss_and_gradient(*copied, problem), expected, rtol=0, atol=0)
        other, other_posterior = Model(prior), build(family, k=7.0)
        other.load_state_dict(model.state_dict())
        other_posterior.load_state_dict(posterior.state_dict())
        torch.testing.assert_close(loss_and_gradient(other, other_posterior, problem), expected, rtol=0, atol=0)


class TestKinds(KindContract):
    pass


def test_a_network_may_return_infinities_where_masked():
    class Hidden(nn.Module):
        def forward(self, problem):
            return problem.scores.masked_fill(~problem.mask, -torch.inf)

    problem, model = Queries.random(), Model("gamma_fixed", normalize_scores=False)
    found = [
        loss_and_gradient(model, family, problem)
        for family in (build("weibull"), Amortised(Hidden(), build("weibull")))
    ]
    torch.testing.assert_close(*found)


WITH_STATE = [name for name in FAMILIES if make_family(name).state_dict()]


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(WITH_STATE, 2)))
def test_the_state_of_another_family_does_not_fit(one, other):
    """A concentration is no scale, and one family's concentration not another's."""
    with pytest.raises(RuntimeError, match=r"(?s)Missing key\(s\).*Unexpected key\(s\)"):
        make_family(other).load_state_dict(make_family(one).state_dict())


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.permutations([name for name in PRIORS if make_prior(name).state_dict()], 2))
)
def test_the_state_of_another_prior_does_not_fit(one, other):
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)|Unexpected key\(s\)"):
        make_prior(other).load_state_dict(make_prior(one).state_dict())
