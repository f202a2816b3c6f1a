"""Neural processes: the true process, what their attention is, and what they are given."""

import pytest
import torch

from experiments.neural_process.config import NeuralProcessConfig
from experiments.neural_process.task import (
    CONTEXTS,
    HEADS,
    NOISE,
    TARGETS,
    Batches,
    Kernel,
    build,
    generate,
    oracle,
    predictive,
)
from pyro_attention.guide import attention_weights


@pytest.mark.parametrize("among", [False, True], ids=["", "a target among its context"])
@pytest.mark.parametrize("kernel", [Kernel(), Kernel(matern=True, noise=0.3)])
def test_the_true_process_is_a_joint_normal_distribution(kernel, among):
    functions = generate(kernel, 3, 0)
    if among:
        places = torch.cat([torch.arange(CONTEXTS), torch.arange(TARGETS)])  # targets are the first of the context
        functions = functions._replace(x=functions.x[:, places], y=functions.y[:, places])
    found, (x, y, z, target) = oracle(kernel, functions, 7), functions.split(7)
    for item in range(3):
        points, values = torch.cat([x[item], z[item, :1]]).double(), torch.cat([y[item], target[item, :1]]).double()
        covariance = kernel(points, points, functions.lengthscale[item], functions.variance[item])
        covariance += torch.tensor([NOISE**2 + kernel.noise**2] * 7 + [NOISE**2]).double().diag()
        zero = torch.zeros(8).double()
        joint = torch.distributions.MultivariateNormal(zero, covariance).log_prob(values)
        context = torch.distributions.MultivariateNormal(zero[:7], covariance[:7, :7]).log_prob(values[:7])
        assert found[item, 0].item() == pytest.approx((joint - context).item(), abs=1e-5)


def test_scores_over_heads_are_a_softmax_without_a_dimension_and_a_division():
    trained = build(NeuralProcessConfig(scores="heads"))
    model, batch = trained.model, generate(Kernel(), 2, 1).split(5)
    site = trained.guide.run(*batch).trace.nodes["context"]
    k, q = (layer(model.place(points.unsqueeze(-1))).view(2, -1, HEADS, 8).transpose(1, 2)
            for layer, points in ((model.key, batch[0]), (model.query, batch[2])))  # fmt: skip
    over_heads = (q @ k.mT / 8**0.5).softmax(1)
    expected = over_heads / over_heads.sum(-1, keepdim=True)
    torch.testing.assert_close(attention_weights(site), expected)


@pytest.mark.parametrize("scores", ["product", "distance", "heads"])
@pytest.mark.parametrize("contexts", [0, 1, 6])
def test_the_order_of_the_context_does_not_matter_and_it_may_be_empty(scores, contexts):
    trained = build(NeuralProcessConfig(scores=scores))
    x, y, z, target = generate(Kernel(), 2, 2).split(contexts)
    found = predictive(trained.guide, (x, y, z, target), 1)
    assert found.shape == (2, TARGETS)
    torch.testing.assert_close(predictive(trained.guide, (x.flip(-1), y.flip(-1), z, target), 1), found)
    assert found.isfinite().all()
    if contexts:  # targets are context points like others where they are among their own context
        among = predictive(trained.guide, (x, y, torch.cat([x, z], -1), torch.cat([y, target], -1)), 1)
        torch.testing.assert_close(among[:, contexts:], found)
        assert among.isfinite().all()


def test_batches_have_other_points_of_the_same_functions():
    functions = generate(Kernel(), 4, 4)
    for x, y, z, target in Batches(functions, 3, 5):
        assert 3 <= x.size(1) <= 60
        assert x.shape == y.shape
        assert z.shape == target.shape == (3, TARGETS)
        points = torch.cat([x, z], 1)
        assert all(set(row.tolist()) <= set(functions.x.flatten().tolist()) for row in points)
        assert points[0].unique().numel() == points.size(1)  # no target is among its context
