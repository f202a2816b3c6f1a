"""Private parts of torch and Pyro do what ``pyro_attention._compat`` says of them."""

import pyro
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pyro_attention import _compat


def test_handlers_outermost_first():
    assert _compat.active_handlers() == []
    with pyro.poutine.trace() as outer, pyro.poutine.mask(mask=True) as inner:
        assert _compat.active_handlers() == [outer, inner]


def test_tracers_are_taken_off_for_a_while():
    with pyro.poutine.trace() as outer, pyro.poutine.mask(mask=True) as inner:
        with _compat.below(_compat.handlers_but_tracers()):
            assert _compat.active_handlers() == [inner]
        assert _compat.active_handlers() == [outer, inner]
    assert _compat.active_handlers() == []


def test_another_function_inside_the_same_handlers():
    normal = pyro.distributions.Normal(0.0, 1.0)
    wrapped = pyro.poutine.condition(pyro.poutine.scale(lambda: None, scale=2.0), data={"x": torch.tensor(3.0)})
    inside = _compat.with_handlers_of(wrapped, lambda: pyro.sample("x", normal))
    site = pyro.poutine.trace(inside).get_trace().nodes["x"]
    assert (site["value"], site["scale"], site["is_observed"]) == (3.0, 2.0, True)
    assert [type(handler).__name__ for handler in _compat.handlers_around(wrapped)] == [
        "ConditionMessenger",
        "ScaleMessenger",
    ]
    bare = lambda: None  # noqa: E731
    assert _compat.handlers_around(bare) == []
    assert _compat.with_handlers_of(bare, inside) is inside
    assert pyro.poutine.unwrap(_compat.with_handlers_of(wrapped, bare)) is bare


@pytest.mark.parametrize("validates", [True, False])
def test_validation(validates):
    before = _compat.validates_distributions()
    torch.distributions.Distribution.set_default_validate_args(validates)
    try:
        assert _compat.validates_distributions() is validates
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def test_recomputed_in_the_backward_pass():
    answers = []

    def function(x):
        answers.append(_compat.is_in_backward_pass())
        return x.square()

    checkpoint(function, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    assert answers == [False, True]


def test_transforms_of_functions():
    answers = []

    def function(x):
        answers.append((_compat.is_mapped(x), _compat.in_functorch()))
        return x

    function(torch.ones(2))
    torch.func.vmap(function)(torch.ones(2))
    assert answers == [(False, False), (True, True)]


def test_gamma_draws_have_the_gradient_of_torch():
    concentration = torch.tensor([0.5, 3.0], dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    draws = _compat.standard_gamma(concentration)
    torch.manual_seed(0)
    expected = torch.distributions.Gamma(concentration, 1.0).rsample()
    torch.testing.assert_close(draws, expected)
    slopes = (torch.autograd.grad(draw.sum(), concentration)[0] for draw in (draws, expected))
    torch.testing.assert_close(*slopes)


def test_all_dropout_modules_have_one_base():
    modules = nn.Dropout(), nn.Dropout1d(), nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()
    assert all(isinstance(module, _compat.DROPOUT) for module in modules)


def test_a_tensor_without_storage():
    class Shape(torch.Tensor):
        __torch_function__ = _compat.ordinary_torch_function

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return torch.full((), args[1])

    tensor = _compat.wrapper_tensor(Shape, torch.Size([10**9, 10**9]), dtype=torch.float32, device=torch.device("cpu"))
    assert tensor.shape == (10**9, 10**9)
    total = torch.add(tensor, 3)
    assert type(total) is torch.Tensor
    assert total == 3
