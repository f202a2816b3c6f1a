"""Registries refuse duplicates and explain unknown names; the library's own are complete."""

import pytest
from torch import nn

from pyro_attention import FAMILIES, NORMALIZERS, PRIORS
from pyro_attention.registry import Registry


@pytest.fixture
def colours():
    colours = Registry("colour")
    colours.register("red")(int)
    colours.register("green")(str)
    return colours


def test_is_a_mapping_in_order_of_registration(colours):
    assert list(colours) == ["red", "green"]
    assert dict(colours) == {"red": int, "green": str}
    assert len(colours) == 2
    assert "red" in colours
    assert "blue" not in colours


def test_decorator_returns_the_member(colours):
    @colours.register("blue")
    class Blue: ...

    assert colours["blue"] is Blue


def test_duplicate_name(colours):
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


@pytest.mark.parametrize("registry", [FAMILIES, PRIORS, NORMALIZERS], ids=lambda registry: registry.what)
def test_members_are_modules(registry):
    assert len(registry) > 0
    assert all(issubclass(member, nn.Module) for member in registry.values())


def test_names_of_the_first_release():
    assert {"soft", "weibull", "lognormal", "gamma"} <= set(FAMILIES)
    assert {"gamma_fixed", "gamma_contextual", "lognormal_fixed", "lognormal_contextual"} <= set(PRIORS)
    assert "softmax" in NORMALIZERS
