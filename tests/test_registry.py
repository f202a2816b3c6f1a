"""Registries refuse duplicates and explain unknown names; the library's own are complete."""

import pytest
from torch import nn

from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.normalizers import NORMALIZERS
from pyro_attention.registry import Registry


@pytest.fixture
def colours():
    colours = Registry("colour")
    colours.register("red")(int)
    colours.register("green")(str)
    return colours


def test_is_a_mapping_in_order_of_registration(colours):
    @colours.register("blue")
    class Blue: ...

    assert dict(colours) == {"red": int, "green": str, "blue": Blue}
    assert list(colours) == ["red", "green", "blue"]
    assert len(colours) == 3
    assert "red" in colours
    assert "yellow" not in colours
    with pytest.raises(ValueError, match="colour 'red' is registered already, as <class 'int'>"):
        colours.register("red")(float)
    assert colours["red"] is int


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gren", r"unknown colour 'gren'; did you mean 'green'\? Registered: red, green"),
        ("ultramarine", r"unknown colour 'ultramarine'\. Registered: red, green"),
    ],
)
def test_unknown_name(colours, name, message):
    with pytest.raises(ValueError, match=message):
        colours[name]


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        (FAMILIES, {"soft", "weibull", "lognormal", "gamma"}),
        (PRIORS, {"gamma_fixed", "gamma_contextual", "lognormal_fixed", "lognormal_contextual"}),
        (NORMALIZERS, {"softmax"}),
    ],
    ids=lambda value: getattr(value, "what", "names"),
)
def test_members_are_modules(registry, names):
    """Those of the first release among them."""
    assert names <= set(registry)
    assert all(issubclass(member, nn.Module) for member in registry.values())
