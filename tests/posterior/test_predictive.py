"""Posterior samples and Monte Carlo predictions: shapes, chunks, seeds, modes, sources of noise and statistics."""

from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.infer import Predictive
from torch import nn

from models.gat import GAT
from pyro_attention import (
    AttentionGuide,
    FixedGammaPrior,
    LatentAttention,
    Soft,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from tests.helpers import assert_mean
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences, attention_values


class TwoSites(nn.Module):
    """A batch of attention calls in a plate and one, ``outside``, in none."""

    def __init__(self):
        super().__init__()
        self.inside = LatentAttention("inside", FixedGammaPrior())
        self.outside = LatentAttention("outside", FixedGammaPrior())

    def forward(self, scores, y=None):
        values = torch.eye(4).unsqueeze(0)
        outer = self.outside(scores[0], values).context  # [..., 1, 3, 4]
        with pyro.plate("batch", scores.size(0), dim=-1):
            inner = self.inside(scores, values).context
            mean = (inner * outer).sum((-1, -2, -3))
            pyro.sample("y", Normal(mean, 1.0), obs=y)
        return mean


def self_attention(dropout=0.0):
    data = Sequences.random()
    model = SelfAttention(dropout=dropout)
    return model, (data.x,), {"layers.0": (6, 2, 5, 5), "layers.1": (6, 2, 5, 5)}, (6,)


def graph():
    model, data = GAT(5, 3, hidden=4, heads=2, output_heads=3, dropout=0.6), GraphData.random()
    edges = data.edge_index.size(1) + 7
    return model, (data.features, data.graph), {"layers.0": (edges, 2), "layers.1": (edges, 3)}, (7, 3)


def without_plates():
    return FreeScores(FixedGammaPrior()), (), {"attention": (1, 3, 4)}, (1, 3, 4)


def two_sites():
    return TwoSites(), (torch.randn(6, 1, 3, 4),), {"inside": (6, 1, 3, 4), "outside": (1, 3, 4)}, (6,)


MODELS = [self_attention, graph, without_plates, two_sites]
every_chunk = pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])


def guided(make, family=None, **options):
    model, arguments, *rest = make(**options)
    return AttentionGuide(model, Weibull(2.0) if family is None else family), arguments, *rest


@pytest.mark.parametrize("make", MODELS)
@every_chunk
@pytest.mark.parametrize("log_weights", [False, True])
def test_shapes_of_samples(make, chunk_size, log_weights):
    guide, arguments, shapes, _ = guided(make)
    options = {"num_samples": 7, "chunk_size": chunk_size, "log_weights": log_weights}
    samples = sample_posterior(guide, *arguments, **options)
    assert {name: tuple(value.shape) for name, value in samples.items()} == {
        name: (7, *shape) for name, shape in shapes.items()
    }
    for value in samples.values():
        assert value.dtype == torch.float32
        assert not value.requires_grad
        assert not value[0].allclose(value[-1])
        if not log_weights and make is not graph:
            torch.testing.assert_close(value.sum(-1), torch.ones(value.shape[:-1]))


@pytest.mark.parametrize("make", MODELS)
@every_chunk
def test_shapes_of_predictions(make, chunk_size):
    guide, arguments, _, shape = guided(make)
    options = {"num_samples": 7, "chunk_size": chunk_size, "keep_samples": True}
    prediction = predict(guide, *arguments, quantiles=[0.1, 0.9], **options)
    assert prediction.mean.shape == prediction.variance.shape == shape
    assert prediction.samples.shape == (7, *shape)
    assert {q: tuple(value.shape) for q, value in prediction.quantiles.items()} == {0.1: shape, 0.9: shape}
    assert prediction.num_samples == 7
    assert prediction.variance.max() > 1e-3
    assert predict(guide, *arguments, num_samples=2).samples is None


@pytest.mark.parametrize("make", MODELS)
def test_chunks_have_the_distribution_of_single_samples(make):
    guide, arguments, _, _ = guided(make)
    single, chunked = (
        predict(guide, *arguments, num_samples=240, chunk_size=size, keep_samples=True, seed=size).samples
        for size in (1, 80)
    )
    # the output of a node that can attend to nothing but itself is certain
    certain = single.std(0) < 1e-6
    assert certain.float().mean() < 0.5
    torch.testing.assert_close(single[:, certain], chunked[:, certain])
    single, chunked = single[:, ~certain], chunked[:, ~certain]
    assert_mean(single - chunked, 0.0)
    spread = [(samples - samples.mean(0)).square() for samples in (single, chunked)]
    assert_mean(spread[0] - spread[1], 0.0)
    # samples of one chunk are as independent as those of separate passes
    neighbours = (chunked[1:] - chunked.mean(0)) * (chunked[:-1] - chunked.mean(0))
    assert_mean(neighbours, 0.0)


@pytest.mark.parametrize("make", MODELS)
def test_samples_follow_the_posterior(make):
    guide, arguments, shapes, _ = guided(make)
    first = next(iter(shapes))  # later sites depend on earlier ones
    if isinstance(guide.model, nn.Module):
        guide.model.eval()
    posterior, _ = attention_values(guide, *arguments)[first]
    samples = sample_posterior(guide, *arguments, num_samples=300, chunk_size=100, log_weights=True)[first]
    mask = posterior.layout.mask
    mask = torch.ones((), dtype=torch.bool) if mask is None else mask
    deviations = (samples - posterior.mean) * mask
    assert_mean(deviations.flatten(1).mean(1), 0.0)
    assert_mean((deviations.square() - posterior.variance * mask).flatten(1).mean(1), 0.0)


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_seed(draw, chunk_size):
    guide, arguments, _, _ = guided(self_attention)

    def run(seed):
        result = draw(guide, *arguments, num_samples=5, chunk_size=chunk_size, seed=seed)
        return result["layers.1"] if isinstance(result, dict) else result.mean

    state = torch.get_rng_state()
    assert run(1).equal(run(1))
    assert not run(1).equal(run(2))
    assert torch.get_rng_state().equal(state)
    run(None)
    assert not torch.get_rng_state().equal(state)


def modules_of(kind):
    """A guide and the modules it runs, as one module or held by the closure of a plain function."""
    model, (x,), _, _ = self_attention(dropout=0.5)
    model.out = nn.Sequential(nn.BatchNorm1d(4), model.out)
    plain = kind == "function"
    return AttentionGuide((lambda x: model(x)) if plain else model, Weibull(2.0)), model, x


@pytest.mark.parametrize("kind", ["module", "function"])
@pytest.mark.parametrize("noise", ["attention", "dropout", "both", "none"])
def test_the_training_mode_does_not_matter_and_is_restored(kind, noise):
    guide, model, x = modules_of(kind)
    results = []
    for frozen in (False, True):
        model.train(not frozen)
        model.dropout.train()  # a mixed state
        before = {name: module.training for name, module in model.named_modules()}
        statistics = {name: value.clone() for name, value in model.state_dict().items()}
        results.append(predict(guide, x, num_samples=4, noise=noise, seed=0).mean)
        assert {name: module.training for name, module in model.named_modules()} == before
        assert all(value.equal(statistics[name]) for name, value in model.state_dict().items())
    assert results[0].equal(results[1])


@pytest.mark.parametrize("kind", ["module", "function"])
def test_the_mode_is_restored_after_an_error(kind):
    guide, model, x = modules_of(kind)
    with pytest.raises(ValueError, match="query has shape"):
        predict(guide, x[..., 1:], num_samples=2)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("make", MODELS)
def test_no_noise_is_soft_attention(make):
    guide, arguments, shapes, _ = guided(make)
    prediction = predict(guide, *arguments, num_samples=3, noise="none")
    assert (prediction.variance == 0).all()
    soft = AttentionGuide(guide.model, Soft())
    if isinstance(guide.model, nn.Module):
        guide.model.eval()
    torch.testing.assert_close(prediction.mean, soft.run(*arguments).output)
    samples = sample_posterior(guide, *arguments, num_samples=2, noise="none")
    expected = sample_posterior(soft, *arguments, num_samples=1)
    for name in shapes:
        torch.testing.assert_close(samples[name], expected[name].expand_as(samples[name]))


def test_stock_predictive():
    guide, arguments, shapes, _ = guided(self_attention)
    drawn = Predictive(guide.model, guide=guide, num_samples=5)(*arguments)
    expected = {name: (5, *shape) for name, shape in {**shapes, "y": (6,)}.items()}
    assert {name: tuple(value.shape) for name, value in drawn.items()} == expected


@pytest.mark.parametrize("call", [sample_posterior, predict, check_model], ids=lambda call: call.__name__)
def test_a_model_in_place_of_its_guide(call):
    model, arguments, *_ = self_attention()
    for other in (model, lambda x: x):
        arguments = (other, model, *arguments) if call is check_model else (other, *arguments)
        message = rf"guide is a {type(model if call is check_model else other).__name__}, expected an AttentionGuide"
        with pytest.raises(TypeError, match=message):
            call(*arguments)
        arguments = arguments[2:] if call is check_model else arguments[1:]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda mean: (mean, mean), "the model returned tuple, expected a tensor such as logits; return it from the"),
        (lambda mean: None, "the model returned NoneType, expected a tensor such as logits"),
        (lambda mean: mean > 0, r"the model returned torch.bool \(labels, say\), whose mean says nothing"),
        (lambda mean: mean.long(), r"the model returned torch.int64 .* expected floating point .* pass transform="),
    ],
    ids=["tuple", "none", "bool", "labels"],
)
def test_outputs_that_cannot_be_averaged(output, message):
    model, arguments, *_ = self_attention()
    guide = AttentionGuide(lambda *args: output(model(*args)), Weibull())
    with pytest.raises(TypeError, match=message):
        predict(guide, *arguments, num_samples=2)


def test_a_transform_makes_numbers_of_labels():
    model, arguments, *_ = self_attention()
    guide = AttentionGuide(lambda *args: (model(*args) > 0).long(), Weibull())
    with pytest.raises(TypeError, match="transform returned"):
        predict(guide, *arguments, transform=lambda labels: labels + 1)
    share = predict(guide, *arguments, num_samples=4, transform=lambda labels: labels.float()).mean
    assert ((share >= 0) & (share <= 1)).all()


@pytest.mark.parametrize("call", ["sample_posterior", "predict"])
def test_threads_take_turns(call):
    """Eight threads, each with a guide of its own, draw what they would draw alone."""

    def draw(seed):
        guide = guides[seed]
        if call == "sample_posterior":
            return sample_posterior(guide, *arguments, num_samples=4, seed=seed)["layers.1"]
        return predict(guide, *arguments, num_samples=4, seed=seed, noise="both").variance

    _, arguments, *_ = self_attention()
    guides = [AttentionGuide(self_attention(dropout=0.5)[0], Weibull()) for _ in range(8)]
    alone = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(draw, range(8)))
    torch.testing.assert_close(together, alone, rtol=0, atol=0)
    assert all(guide.model.training for guide in guides)
    assert len({value.std().item() for value in alone}) == 8


def test_a_thread_that_fails_holds_nobody_up():
    model, arguments, *_ = self_attention()
    guide = AttentionGuide(model, Weibull())

    def fail(logits):
        raise RuntimeError("no")

    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(predict, guide, *arguments, num_samples=3, seed=0, transform=fail)
        assert str(failed.exception()) == "no"  # which holds the thread's frames
        assert pool.submit(predict, guide, *arguments, num_samples=3).result().num_samples == 3
    assert predict(guide, *arguments, num_samples=3).num_samples == 3
