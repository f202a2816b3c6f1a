"""Registries refuse duplicates and explain unknown names."""

import pytest

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
