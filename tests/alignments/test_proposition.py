r"""Proposition 1 of Deng et al. (2018): how far soft attention can be from the alignment that it stands for.

.. math:: |\mathrm{E}_z f(x, z) - f(x, \mathrm{E}_z z)| \le c, \qquad c = \max_z \|H_f(z)\|_2

:math:`f(x, z)` is the probability of one output, and z a point on the simplex over the keys.
"""

import math

import pyro
import pytest
import torch
from torch.func import hessian

import pyro_attention as pa
from pyro_attention.families.base import Family

KEYS, WIDTH, OUTPUTS = 3, 4, 5


def problem(seed, size):
    """Values of the keys, an output layer whose weights have this size, and scores."""
    generator = torch.Generator().manual_seed(seed)
    values, scores = (torch.randn(*shape, generator=generator).double() for shape in ((KEYS, WIDTH), (KEYS,)))
    return values, size * torch.randn(WIDTH, OUTPUTS, generator=generator).double(), scores


def probabilities(family: Family, values, output, scores):
    """Probability of every output under a family of the library: ``Marginal`` sums over z, ``Soft`` takes its mean."""
    attention = pa.LatentAttention("alignment", pa.AlignmentPrior())

    def model(y):
        with pyro.plate("items", 1):
            context = attention(scores[None, None], values[None, None], layout=pa.Dense(event_dim=2)).context
            pyro.sample("y", pyro.distributions.Categorical(logits=context.squeeze(-2) @ output), obs=y)

    guide = pa.AttentionGuide(model, family)
    elbo = pa.elbo_for(guide, max_plate_nesting=1)
    return torch.tensor([math.exp(-elbo.loss(model, guide, torch.tensor([y]))) for y in range(OUTPUTS)])


def gap(*problem):
    return (probabilities(pa.Marginal(), *problem) - probabilities(pa.Soft(), *problem)).abs().max().item()


def curvature(values, output, *, count=2000):
    """Largest spectral norm of the Hessian of an output's probability over many points of the simplex."""
    torch.manual_seed(0)
    points = torch.distributions.Dirichlet(torch.full((KEYS,), 0.7).double()).sample((count,))

    def norms(z):
        matrices = hessian(lambda point: (point @ values @ output).softmax(-1))(z)
        return torch.linalg.matrix_norm(matrices, ord=2).amax()

    return torch.func.vmap(norms)(torch.cat([points, torch.eye(KEYS).double()])).max().item()


@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_gap_of_soft_attention_is_bounded_by_the_curvature(seed, size):
    values, output, scores = problem(seed, size)
    assert 0 < gap(values, output, scores) <= curvature(values, output)


def test_a_flat_output_and_a_sure_alignment_have_no_gap():
    values, output, scores = problem(0, 1.0)
    assert gap(values, 1e-4 * output, scores) < 1e-8
    assert gap(values, output, torch.tensor([0.0, 800.0, 0.0]).double()) < 1e-12
    total = probabilities(pa.Marginal(), values, output, scores).sum().item()
    assert total == pytest.approx(1)
