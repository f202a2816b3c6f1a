"""Posterior draws for ArviZ: by a stub of either interface, and of models of every kind of layout where it is there."""

import sys
from types import SimpleNamespace

import pytest
import torch

from models.vqa import MultiView
from pyro_attention import AlignmentPrior, AttentionGuide, Categorical, ContextualGammaPrior, Weibull, sample_posterior
from pyro_attention.integrations.arviz import attention_dims, to_arviz
from tests.integrations.tiny_transformers import SUPPORTED
from tests.models import test_gat, test_headlines, test_nmt, test_vqa


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


def test_without_arviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="to_arviz needs ArviZ: pip install arviz"):
        to_arviz({"a": torch.rand(3, 2)})


@pytest.mark.usefixtures("arviz")
@pytest.mark.parametrize(
    ("samples", "dims", "message"),
    [
        ({"a": torch.rand(3), "b": torch.rand(4)}, {}, r"samples have \{'a': 3, 'b': 4\}"),
        ({"a": torch.rand(3, 2)}, {"b": ["x"]}, r"dims name \['b'\], expected sites among"),
        ({"a": torch.rand(3, 2, 2)}, {"a": ["x", "x"]}, "each once"),
        ({"a": torch.rand(3, 2), "b": torch.rand(3, 4)}, {"a": ["x"], "b": ["x"]}, "dimension 'x' has size 2 in site"),
    ],
)
def test_what_arviz_would_fill_up_with_nan(samples, dims, message):
    with pytest.raises(ValueError, match=message):
        to_arviz(samples, dims=dims)


SAMPLES = 5


def translation(family, **options):
    prior = AlignmentPrior() if isinstance(family, Categorical) else ContextualGammaPrior(8)
    return AttentionGuide(test_nmt.make(prior=prior, **options), family), test_nmt.batch(), {}


def graph():
    layout = test_gat.graph("separate")
    arguments = torch.rand(test_gat.NODES, test_gat.FEATURES), layout, test_gat.LABELS
    return AttentionGuide(test_gat.NETWORKS["separate"](), Weibull()), arguments, {}


def headlines():
    return test_headlines.guided(test_headlines.make(), Weibull, Weibull), test_headlines.batch(), {}


def questions():
    return AttentionGuide(test_vqa.make(MultiView), Weibull()), test_vqa.questions(views=3), {}


def fine_tuning(name):
    pytest.importorskip("transformers")
    from pyro_attention.integrations.huggingface import bayesian

    family = next(one for one in SUPPORTED if one.name == name)
    model = family.make()
    return AttentionGuide(bayesian(model), Weibull()), (), family.batch(model, 4)


TASKS = {
    "translation, weights": lambda: translation(Weibull()),
    "translation, alignments drawn": lambda: translation(Categorical(enumerate=False)),
    "translation, a site each word": lambda: translation(Weibull(), input_feed="sampled"),
    "graph without self loops": graph,
    "headlines": headlines,
    "questions with several views": questions,
    "fine-tuning, encoder and decoder": lambda: fine_tuning("bart"),
    "fine-tuning, windows of pictures": lambda: fine_tuning("swin"),
}
PLATES = {"sentences", "words", "questions", "batch"}


@pytest.fixture(params=TASKS)
def drawn(request):
    """Draws of a tiny model of a task, and the names of their dimensions."""
    torch.manual_seed(0)
    guide, arguments, options = TASKS[request.param]()
    samples = sample_posterior(guide, *arguments, num_samples=SAMPLES, seed=0, **options)
    return samples, attention_dims(guide, *arguments, **options)


def test_every_dimension_has_a_name_of_the_site_or_of_a_plate(drawn):
    samples, dims = drawn
    assert dims.keys() == samples.keys()
    sizes = {}
    for name, tensor in samples.items():
        assert len(set(dims[name])) == len(dims[name]) == tensor.dim() - 1
        own = {f"{name}_{part}" for part in ("head", "query", "key", "edge", "dim_0", "dim_1")}
        own.add(f"{name}.batch")  # the plate of a site whose windows have a batch of their own
        assert set(dims[name]) <= own | PLATES
        for dim, size in zip(dims[name], tensor.shape[1:], strict=True):
            assert sizes.setdefault(dim, size) == size


def test_arviz_gets_the_draws_of_every_task(drawn):
    pytest.importorskip("arviz")
    samples, dims = drawn
    posterior = to_arviz(samples, dims=dims).posterior
    assert set(posterior.data_vars) == samples.keys()
    for name, tensor in samples.items():
        found = posterior[name]
        assert found.dims == ("chain", "draw", *dims[name])
        assert torch.from_numpy(found.values[0]).equal(tensor.float())
        if f"{name}_key" in found.dims:  # rows sum to one, those of padding to nothing
            sums = torch.from_numpy(found.sum(f"{name}_key").values)
            assert torch.isclose(sums, torch.ones(()), atol=1e-5).logical_or(sums == 0).all()


def test_arviz_summarises_and_selects_by_word():
    arviz = pytest.importorskip("arviz")
    guide, arguments, _ = translation(Weibull())
    samples = sample_posterior(guide, *arguments, num_samples=20, seed=0)
    coords = {"alignment_key": ["the", "cat", "sat", "down", "."]}
    data = to_arviz(samples, dims=attention_dims(guide, *arguments), coords=coords)
    cat = data.posterior["alignment"].sel(alignment_key="cat", sentences=0, words=0).squeeze("alignment_head")
    mean = arviz.summary(data, kind="stats", round_to="none")["mean"]["alignment[0, 0, 0, cat]"]
    assert mean == pytest.approx(float(cat.mean()), rel=1e-5)
    assert mean == pytest.approx(samples["alignment"][:, 0, 0, 0, 1].mean().item(), rel=1e-5)
