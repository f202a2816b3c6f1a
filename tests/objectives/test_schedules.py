"""KL weights: their values along the steps, the checks of their arguments, and their use by the ELBO."""

import math
import pickle
import warnings

import pytest
import torch

from pyro_attention import AttentionELBO, AttentionGuide
from pyro_attention.schedules import Constant, Cyclical, Linear, Sigmoid
from tests.helpers import DenseForm, Problem, make_family, make_model

EXAMPLES = [
    (Constant(), {0: 1, 10**6: 1}),
    (Constant(0), {0: 0, 7: 0}),
    (Linear(warmup=4), {0: 0, 1: 0.25, 4: 1, 5: 1}),
    (Linear(warmup=4, weight=0.1), {0: 0, 3: 0.075, 100: 0.1}),
    (Sigmoid(), {0: 0.5, 1: 1 / (1 + math.exp(-1)), 10**6: 1}),
    (Sigmoid(rate=0.1, midpoint=20, weight=2), {20: 1, 0: 2 / (1 + math.exp(2)), 40: 2 / (1 + math.exp(-2))}),
    (Sigmoid(rate=100, midpoint=1000), {0: 0, 999: 0, 1001: 1}),
    (Cyclical(period=10), {0: 0, 1: 0.2, 5: 1, 9: 1, 10: 0, 11: 0.2, 25: 1}),
    (Cyclical(period=4, rise=1, weight=3), {0: 0, 2: 1.5, 3: 2.25, 4: 0}),
]


@pytest.mark.parametrize(("schedule", "values"), EXAMPLES, ids=str)
def test_values(schedule, values):
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, abs=1e-12)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize(
    ("schedule", "arguments", "message"),
    [
        (Constant, {"weight": -1}, "weight is -1"),
        (Constant, {"weight": math.nan}, "weight is nan"),
        (Linear, {"warmup": 0}, "warmup is 0, expected a positive number of steps"),
        (Linear, {"warmup": 5, "weight": math.inf}, "weight is inf"),
        (Sigmoid, {"rate": -0.1}, "rate is -0.1"),
        (Cyclical, {"period": 0}, "period is 0"),
        (Cyclical, {"period": 5, "rise": 0}, "rise is 0"),
        (Cyclical, {"period": 5, "rise": 1.5}, "rise is 1.5"),
    ],
)
def test_bad_arguments(schedule, arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(**arguments)


@pytest.mark.parametrize(
    ("weight", "moved", "expected"),
    [(Linear(10), False, 1), (Linear(10), True, 0), (Constant(), False, 0), (0.1, False, 0)],
)
def test_a_step_that_nobody_moves(weight, moved, expected):
    problem, model = Problem.random(), make_model(DenseForm(), "gamma_fixed")
    elbo = AttentionELBO(kl_weight=weight)
    loss = elbo(model, AttentionGuide(model, make_family("weibull")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(250):
            elbo.step = step if moved else 0
            loss(problem)
    assert sum("set elbo.step in the training loop" in str(warning.message) for warning in caught) == expected


def test_the_elbo_follows_the_step_of_its_caller():
    problem, model = Problem.random(), make_model(DenseForm(), "gamma_fixed")
    guide, elbo = AttentionGuide(model, make_family("weibull")), AttentionELBO(kl_weight=Linear(warmup=10))

    def loss(step):
        torch.manual_seed(0)
        elbo.step = step
        return elbo.loss(model, guide, problem)

    first = loss(0)
    assert elbo.kl_record == {}  # a weight of zero skips the term
    for step in (5, 5, 20):
        weighted = loss(step) - first
        assert weighted == pytest.approx(min(1, step / 10) * elbo.kl_record["attention"].item(), rel=1e-4)
