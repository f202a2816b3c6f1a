"""Posterior draws of the models of every task as ArviZ gets them: names of dimensions, sizes, padding."""

import pytest
import torch

from models.text import MaskedLanguageModel, TextClassifier
from models.vqa import MCAN, BottomUp, MultiView
from pyro_attention import (
    AlignmentPrior,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    Marginal,
    Weibull,
    sample_posterior,
)
from pyro_attention.integrations.arviz import attention_dims, to_arviz
from tests.integrations.tiny_transformers import SUPPORTED
from tests.models import test_captioning, test_gat, test_headlines, test_nmt, test_text_models, test_vqa

SAMPLES = 5


def translation(family, **options):
    prior = AlignmentPrior() if isinstance(family, Categorical | Marginal) else ContextualGammaPrior(8)
    return AttentionGuide(test_nmt.make(prior=prior, **options), family), test_nmt.batch(), {}


def captioning():
    model = test_captioning.make(prior=ContextualGammaPrior(8))
    return AttentionGuide(model, Weibull()), test_captioning.batch(), {}


def graph(name):
    layout = test_gat.graph(name)
    arguments = torch.rand(test_gat.NODES, test_gat.FEATURES), layout, test_gat.LABELS
    return AttentionGuide(test_gat.NETWORKS[name](), Weibull()), arguments, {}


def pretraining():
    model = MaskedLanguageModel(test_text_models.make_encoder()).double()
    return AttentionGuide(model, Weibull()), test_text_models.batch(), {}


def classification():
    model = TextClassifier(test_text_models.make_encoder(), 3).double()
    return AttentionGuide(model, Weibull()), test_text_models.batch()[:2], {}


def headlines():
    return test_headlines.guided(test_headlines.make(), Weibull, Weibull), test_headlines.batch(), {}


def questions(kind, **options):
    return AttentionGuide(test_vqa.make(kind), Weibull()), test_vqa.questions(**options), {}


def fine_tuning(name):
    pytest.importorskip("transformers")
    from pyro_attention.integrations.huggingface import bayesian

    family = next(one for one in SUPPORTED if one.name == name)
    model = family.make()
    return AttentionGuide(bayesian(model), Weibull()), (), family.batch(model, 4)


TASKS = {
    "translation, weights": lambda: translation(Weibull()),
    "translation, alignments summed out": lambda: translation(Marginal()),
    "translation, alignments drawn": lambda: translation(Categorical(enumerate=False)),
    "translation, a site each word": lambda: translation(Weibull(), input_feed="sampled"),
    "captioning": captioning,
    "graph": lambda: graph("gat"),
    "graph without self loops": lambda: graph("separate"),
    "pretraining": pretraining,
    "classification": classification,
    "headlines": headlines,
    "questions by MCAN": lambda: questions(MCAN),
    "questions by one attention": lambda: questions(BottomUp),
    "questions with several views": lambda: questions(MultiView, views=3),
    "fine-tuning, encoder": lambda: fine_tuning("bert"),
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


def test_names_are_found_without_drawing_from_the_generator_of_others():
    guide, arguments, _ = pretraining()
    state = torch.get_rng_state()
    found = attention_dims(guide, *arguments)
    assert torch.get_rng_state().equal(state)
    assert found["layers.0"] == ["sentences", "layers.0_head", "layers.0_query", "layers.0_key"]


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


def test_sites_of_other_lengths_may_not_share_a_name():
    guide, arguments, _ = headlines()
    samples = sample_posterior(guide, *arguments, num_samples=2, seed=0)
    pytest.importorskip("arviz")
    dims = {name: ["sentence", "head", "query", "key"] for name in samples}
    with pytest.raises(ValueError, match=r"dimension 'query' has size 5 in site 'layers.0' and 4 in site 'decoder"):
        to_arviz(samples, dims=dims)
