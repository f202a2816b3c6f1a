"""Posterior draws for ArviZ: by a stub of either interface, and by ArviZ itself where it is installed."""

import sys
from types import SimpleNamespace

import pyro
import pytest
import torch

from pyro_attention import AttentionGuide, FixedGammaPrior, GraphAttention, LatentAttention, Weibull, sample_posterior
from pyro_attention.integrations.arviz import attention_dims, to_arviz
from tests.toy_models import GraphData


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
    dims = {"a": ("target", "source"), "of a site that is left out": ("x",)}
    posterior, options = to_arviz(samples, dims=dims, coords={"source": ("ä", "b", "c")})
    assert posterior["a"].shape == (1, 10, 2, 3)
    assert posterior["b"].shape == (1, 10)
    assert torch.tensor(posterior["a"][0]).equal(samples["a"].detach())
    assert options == {"dims": {"a": ["target", "source"]}, "coords": {"source": ["ä", "b", "c"]}}
    assert to_arviz(samples)[1] == {"dims": None, "coords": None}


def test_without_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="to_arviz needs ArviZ: pip install arviz"):
        to_arviz({"a": torch.rand(3, 2)})


@pytest.mark.usefixtures("arviz")
@pytest.mark.parametrize(
    ("samples", "dims", "message"),
    [
        ({"a": torch.rand(3), "b": torch.rand(4)}, {}, r"samples have \{'a': 3, 'b': 4\}"),
        ({"a": torch.rand(3, 2), "b": torch.rand(3, 4)}, {"a": ["x"], "b": ["x"]}, "dimension 'x' has size 4 in site"),
        ({"a": torch.rand(3, 2)}, {"a": ["draw"]}, "dimension 'draw' of site 'a' has the name of a dimension"),
        ({"a": torch.rand(3, 2, 2)}, {"a": ["x", "chain"]}, "dimension 'chain' .* such as 'chain_plate', as attention"),
        (
            {"a": torch.rand(3, 2), "b": torch.rand(3, 4)},
            {"b": ["a"]},
            "dimension 'a' of site 'b' has the name of a site",
        ),
        ({"a": torch.rand(3, 2, 2)}, {"a": ["x", "x"]}, r"dims of site 'a' are \['x', 'x'\].* no name twice"),
        ({"a": torch.rand(3, 2)}, {"a": ["x", "y"]}, r"expected one name for each of the 1 dimensions .*\(2,\)"),
        ({"a": torch.rand(3, 2)}, {"a": []}, "expected one name for each of the 1 dimensions"),
    ],
)
def test_dims_that_arviz_would_mix_up_or_fill_with_nan(samples, dims, message):
    with pytest.raises(ValueError, match=message):
        to_arviz(samples, dims=dims)


def plated():
    attention = LatentAttention("attention", FixedGammaPrior())

    def model(scores, values):
        with pyro.plate("words", scores.size(1), dim=-1), pyro.plate("sentences", len(scores), dim=-2):
            return attention(scores, values).context

    return AttentionGuide(model, Weibull()), (torch.randn(2, 5, 2, 3, 4), torch.ones(2, 5, 2, 4, 1)), {}


def graph():
    data, layer = GraphData.random(), GraphAttention(5, 3, heads=2)
    return AttentionGuide(lambda x: layer(x, data.edge_index), Weibull()), (data.features,), {}


def transformer(name):
    pytest.importorskip("transformers")
    from pyro_attention.integrations.huggingface import bayesian
    from tests.integrations.tiny_transformers import SUPPORTED

    family = next(one for one in SUPPORTED if one.name == name)
    model = family.make()
    return AttentionGuide(bayesian(model), Weibull()), (), family.batch(model, 4)


MODELS = {
    "plates": plated,
    "graph": graph,
    "encoder and decoder": lambda: transformer("bart"),
    "windows of pictures": lambda: transformer("swin"),
}


@pytest.fixture(params=MODELS)
def drawn(request):
    """Draws of a tiny model, and the names of their dimensions."""
    guide, arguments, options = MODELS[request.param]()
    samples = sample_posterior(guide, *arguments, num_samples=5, seed=0, **options)
    state = torch.get_rng_state()
    dims = attention_dims(guide, *arguments, **options)
    assert torch.get_rng_state().equal(state)
    return samples, dims


@pytest.mark.usefixtures("arviz")
@pytest.mark.parametrize("name", ["draw", "chain", "sentences"])
def test_plates_that_are_called_as_dimensions_of_arviz_are(name):
    attention = LatentAttention("attention", FixedGammaPrior())

    def model():
        with pyro.plate(name, 4):
            attention(torch.zeros(4, 1, 2, 3), torch.ones(1, 3, 1))

    guide = AttentionGuide(model, Weibull())
    samples, dims = sample_posterior(guide, num_samples=5), attention_dims(guide)
    plate = name if name == "sentences" else f"{name}_plate"
    assert dims == {"attention": [plate, "attention_head", "attention_query", "attention_key"]}
    assert to_arviz(samples, dims=dims)[1]["dims"] == dims


def test_every_dimension_has_a_name_of_the_site_or_of_a_plate(drawn):
    samples, dims = drawn
    assert dims.keys() == samples.keys()
    sizes = {}
    for name, tensor in samples.items():
        assert len(set(dims[name])) == len(dims[name]) == tensor.dim() - 1
        own = {f"{name}_{part}" for part in ("head", "query", "key", "edge")}
        own.add(f"{name}.batch")  # the plate of a site whose windows have a batch of their own
        assert set(dims[name]) <= own | {"sentences", "words", "batch"}
        for dim, size in zip(dims[name], tensor.shape[1:], strict=True):
            assert sizes.setdefault(dim, size) == size
