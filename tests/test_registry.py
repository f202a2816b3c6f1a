"""Registries refuse duplicates and explain unknown names; the library's own hold modules, which show themselves."""

import pytest
from torch import nn

from pyro_attention import ContextualGammaPrior, LogNormal
from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.normalizers import NORMALIZERS
from pyro_attention.registry import Registry


def test_names_of_members():
    colors = Registry("color")
    colors.register("red")(int)
    colors.register("green")(str)
    assert dict(colors) == {"red": int, "green": str}
    with pytest.raises(ValueError, match="color 'red' is registered already, as <class 'int'>"):
        colors.register("red")(float)
    assert colors["red"] is int
    with pytest.raises(ValueError, match="unknown color 'gren'; registered: red, green"):
        colors["gren"]


def test_members_are_modules():
    for registry in (FAMILIES, PRIORS, NORMALIZERS):
        assert all(issubclass(member, nn.Module) for member in registry.values())
    assert repr(LogNormal(0.5, learnable=True)) == "LogNormal(scale=0.5, learnable=True)"
    assert "rate=1.0\n  (network): KeyNetwork(8, heads=2, hidden_dim=10)" in repr(ContextualGammaPrior(8, heads=2))
