"""Samples for ArviZ, by a stub of either interface; ArviZ itself is no dependency."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from pyro_attention.integrations.arviz import to_arviz


@pytest.fixture(params=["0.23.4", "1.2.0"])
def arviz(request, monkeypatch):
    """Records what from_dict was called with, as the posterior group and the options."""

    def old(*, posterior, **options):
        return posterior, options

    def new(data, **options):
        assert list(data) == ["posterior"]
        return data["posterior"], options

    module = SimpleNamespace(__version__=request.param, from_dict=old if request.param < "1" else new)
    monkeypatch.setitem(sys.modules, "arviz", module)


@pytest.mark.usefixtures("arviz")
def test_one_chain():
    samples = {"a": torch.rand(10, 2, 3, requires_grad=True), "b": torch.rand(10).to(torch.bfloat16)}
    posterior, options = to_arviz(samples, dims={"a": ("target", "source")}, coords={"source": ("ä", "b", "c")})
    assert posterior["a"].shape == (1, 10, 2, 3)
    assert posterior["b"].shape == (1, 10)
    assert torch.tensor(posterior["a"][0]).equal(samples["a"].detach())
    assert options == {"dims": {"a": ["target", "source"]}, "coords": {"source": ["ä", "b", "c"]}}
    assert to_arviz(samples)[1] == {"dims": None, "coords": None}


@pytest.mark.usefixtures("arviz")
@pytest.mark.parametrize(
    ("samples", "options", "error", "message"),
    [
        ({}, {}, ValueError, "samples have no sites, expected the same number"),
        ({"a": torch.rand(3), "b": torch.rand(4)}, {}, ValueError, r"samples have \{'a': 3, 'b': 4\}"),
        ({"a": torch.rand(0, 2)}, {}, ValueError, r"samples have \{'a': 0\}"),
        ({"a": torch.tensor(1.0)}, {}, ValueError, r"samples have \{'a': 0\}"),
        ({"a": [1.0]}, {}, TypeError, "site 'a' has a list, expected a tensor"),
        ({"a": torch.rand(3, 2)}, {"dims": {"a": ["x", "y"]}}, ValueError, r"shape \(3, 2\) and dims \['x', 'y'\]"),
        ({"a": torch.tensor([0.5, math.nan])}, {}, ValueError, "site 'a' has 1 of 2 samples NaN"),
        (
            {"a": torch.rand(3, 2)},
            {"dims": {"a": ["x"]}, "coords": {"y": ["b", "c"]}},
            ValueError,
            r"coords label \['y'\], expected dimensions that dims name, \['x'\]",
        ),
        ({"a": torch.rand(3, 2)}, {"dims": {"b": ["x"]}}, ValueError, r"dims name \['b'\], expected sites among"),
        # what ArviZ would fill up with NaN, or leave out
        (
            {"a": torch.rand(3, 2), "b": torch.rand(3, 4)},
            {"dims": {"a": ["x"], "b": ["x"]}},
            ValueError,
            "dimension 'x' has size 2 in site 'a' and 4 in site 'b', expected one size a name",
        ),
        (
            {"a": torch.rand(3, 2), "b": torch.rand(3, 4)},
            {"dims": {"b": ["a_dim_0"]}},
            ValueError,
            "dimension 'a_dim_0' has size 2 in site 'a' and 4 in site 'b'",
        ),
        ({"a": torch.rand(3, 2, 2)}, {"dims": {"a": ["x", "x"]}}, ValueError, "expected each name once"),
        ({"a": torch.rand(3, 2)}, {"dims": {"a": ["draw"]}}, ValueError, "neither 'chain' nor 'draw'"),
        ({"a": torch.rand(3, 2)}, {"dims": {"a": ["a"]}}, ValueError, r"\['a'\] are names of sites and of dimensions"),
        ({"chain": torch.rand(3, 2)}, {}, ValueError, r"\['chain'\] are names of sites and of dimensions"),
        (
            {"a": torch.rand(3, 2)},
            {"dims": {"a": ["x"]}, "coords": {"x": ["one"]}},
            ValueError,
            "coords have 1 labels of 'x', expected 2, its size",
        ),
    ],
)
def test_wrong_input(samples, options, error, message):
    with pytest.raises(error, match=message):
        to_arviz(samples, **options)


def test_without_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="to_arviz needs ArviZ: pip install arviz"):
        to_arviz({"a": torch.rand(3, 2)})
