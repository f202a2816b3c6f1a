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
    MultiheadAttention,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.draws import BroadcastWarning
from pyro_attention.posterior.predictive import Moments
from tests.helpers import assert_mean, log_mean
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences


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
    model = SelfAttention(dropout=dropout)
    return model, (Sequences.random().x,), {"layers.0": (6, 2, 5, 5), "layers.1": (6, 2, 5, 5)}, (6,)


def graph():
    model, data = GAT(5, 3, hidden=4, heads=2, output_heads=3, dropout=0.6), GraphData.random()
    edges = data.edge_index.size(1) + 7
    return model, (data.features, data.graph), {"layers.0": (edges, 2), "layers.1": (edges, 3)}, (7, 3)


def two_sites():
    return TwoSites(), (torch.randn(6, 1, 3, 4),), {"inside": (6, 1, 3, 4), "outside": (1, 3, 4)}, (6,)


MODELS = [self_attention, graph, two_sites]
every_model = pytest.mark.parametrize("make", MODELS)
every_draw = pytest.mark.parametrize("draw", [predict, sample_posterior])


def guided(make=self_attention, family=None, **options):
    model, arguments, *rest = make(**options)
    return AttentionGuide(model, Weibull(2.0) if family is None else family), arguments, *rest


@every_model
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_shapes(make, chunk_size):
    guide, arguments, shapes, shape = guided(make)
    options = {"num_samples": 7, "chunk_size": chunk_size}
    for log_weights in (False, True):
        samples = sample_posterior(guide, *arguments, log_weights=log_weights, **options)
        assert {name: tuple(value.shape) for name, value in samples.items()} == {n: (7, *s) for n, s in shapes.items()}
        for value in samples.values():
            assert value.dtype == torch.float32
            assert not value.requires_grad
            assert not value[0].allclose(value[-1])
            if not log_weights and make is not graph:
                torch.testing.assert_close(value.sum(-1), torch.ones(value.shape[:-1]))
    prediction = predict(guide, *arguments, quantiles=[0.1], keep_samples=True, **options)
    assert prediction.mean.shape == prediction.variance.shape == prediction.quantiles[0.1].shape == shape
    assert prediction.samples.shape == (7, *shape)
    assert predict(guide, *arguments, num_samples=2).samples is None


@every_model
def test_chunks_have_the_distribution_of_single_samples(make):
    guide, arguments, _, _ = guided(make)
    single, chunked = (
        predict(guide, *arguments, num_samples=160, chunk_size=size, keep_samples=True, seed=size).samples
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
    assert_mean((chunked[1:] - chunked.mean(0)) * (chunked[:-1] - chunked.mean(0)), 0.0)


@every_model
def test_samples_follow_the_posterior(make):
    """Without noise they are soft attention."""
    guide, arguments, shapes, _ = guided(make)
    first = next(iter(shapes))  # later sites depend on earlier ones
    guide.model.eval()
    guide(*arguments)
    posterior = guide.get_traces()[1].nodes[first]["fn"]
    samples = sample_posterior(guide, *arguments, num_samples=300, chunk_size=100, log_weights=True)[first]
    mask = posterior.layout.mask
    mask = torch.ones((), dtype=torch.bool) if mask is None else mask
    deviations = (samples - posterior.mean) * mask
    assert_mean(deviations.flatten(1).mean(1), 0.0)
    assert_mean((deviations.square() - posterior.variance * mask).flatten(1).mean(1), 0.0)
    prediction = predict(guide, *arguments, num_samples=3, noise="none")
    assert (prediction.variance == 0).all()
    soft = AttentionGuide(guide.model, Soft())
    torch.testing.assert_close(prediction.mean, soft.run(*arguments).output)
    samples = sample_posterior(guide, *arguments, num_samples=2, noise="none")
    expected = sample_posterior(soft, *arguments, num_samples=1)
    torch.testing.assert_close(samples, {name: value.expand_as(samples[name]) for name, value in expected.items()})
    mean = sample_posterior(guide, *arguments, num_samples=1, noise="none", log_weights=True)[first][0]
    torch.testing.assert_close(mean * mask, log_mean(posterior) * mask)


@every_draw
@pytest.mark.parametrize("options", [{}, {"chunk_size": 3}], ids=str)
def test_seed(draw, options):
    guide, arguments, _, _ = guided()

    def run(seed):
        result = draw(guide, *arguments, num_samples=5, seed=seed, **options)
        return result["layers.1"] if isinstance(result, dict) else result.mean

    state = torch.get_rng_state()
    assert run(1).equal(run(1))
    assert not run(1).equal(run(2))
    assert torch.get_rng_state().equal(state)
    run(None)
    assert not torch.get_rng_state().equal(state)


# what is random, and the mode of the modules


@pytest.mark.parametrize("kind", ["module", "function"])
@pytest.mark.parametrize("noise", ["attention", "dropout", "both", "none"])
def test_the_training_mode_does_not_matter_and_is_restored(kind, noise):
    """Of modules that are one module or held by the closure of a plain function; also after an error."""
    model, (x,), _, _ = self_attention(dropout=0.5)
    model.out = nn.Sequential(nn.BatchNorm1d(4), model.out)
    guide, results = AttentionGuide((lambda x: model(x)) if kind == "function" else model, Weibull(2.0)), []
    for frozen in (False, True):
        model.train(not frozen)
        model.dropout.train()  # a mixed state
        before = {name: module.training for name, module in model.named_modules()}
        statistics = {name: value.clone() for name, value in model.state_dict().items()}
        results.append(predict(guide, x, num_samples=4, noise=noise, seed=0).mean)
        with pytest.raises(ValueError, match="query has shape"):
            predict(guide, x[..., 1:], num_samples=2)
        assert {name: module.training for name, module in model.named_modules()} == before
        assert all(value.equal(statistics[name]) for name, value in model.state_dict().items())
    assert results[0].equal(results[1])


LAYERS = {
    "dropout": lambda: nn.Dropout(0.5),
    "multihead": lambda: Attended(nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)),
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True), 2),
    "decoder layer": lambda: Attended(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.5, batch_first=True)),
    "lstm": lambda: First(nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)),
}


class First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attended(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        output = self.layer(x, x) if isinstance(self.layer, nn.TransformerDecoderLayer) else self.layer(x, x, x)
        return output[0] if isinstance(output, tuple) else output


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("fast_path", [True, False])
def test_dropout_of_the_layers_of_torch(layer, fast_path):
    """In evaluation mode torch fuses the layer of a Transformer, without its dropout."""
    torch.manual_seed(0)
    attention, ahead, x = LatentAttention("attention", FixedGammaPrior()), LAYERS[layer](), torch.randn(1, 3, 4)
    guide = AttentionGuide(lambda x: attention(torch.zeros(1, 3, 3), ahead(x)).context, Soft())
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast_path)
    try:
        variances = {
            n: predict(guide, x, num_samples=20, noise=n, seed=0).variance for n in ("dropout", "both", "none")
        }
        assert torch.backends.mha.get_fastpath_enabled() is fast_path
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert variances["dropout"].mean() > 1e-6  # of the LSTM they are small; without dropout exactly zero
    assert variances["both"].equal(variances["dropout"])
    assert (variances["none"] == 0).all()


def test_variance_of_both_is_about_the_sum():
    """A linear toy: attention plus a dropped constant, independent of each other, for 300 queries at once."""
    attention, dropout = LatentAttention("attention", FixedGammaPrior()), nn.Dropout(0.3)

    def model():
        context = attention(torch.zeros(1, 300, 4), torch.arange(4.0).reshape(1, 4, 1)).context
        return context.flatten() + dropout(torch.full((300,), 0.7))

    variances = {
        noise: predict(AttentionGuide(model, Weibull(2.0)), num_samples=60, noise=noise, seed=3).variance
        for noise in ("attention", "dropout", "both", "none")
    }
    assert (variances["none"] == 0).all()
    assert_mean(variances["dropout"], 0.7**2 * 0.3 / 0.7)
    assert_mean(variances["both"] - variances["attention"] - variances["dropout"], 0.0)
    assert variances["both"].mean() > 1.3 * max(variances["attention"].mean(), variances["dropout"].mean())


# statistics


@pytest.mark.parametrize(("num_samples", "chunk_size"), [(1, 1), (2, 4), (101, 4)])
def test_statistics_are_those_of_the_samples(num_samples, chunk_size):
    guide, arguments, _, _ = guided()
    levels = [0.0, 0.025, 0.5, 0.731, 1.0]
    prediction = predict(
        guide, *arguments, num_samples=num_samples, chunk_size=chunk_size, quantiles=levels, keep_samples=True,
        transform=torch.sigmoid,
    )  # fmt: skip
    samples = prediction.samples
    assert samples.shape == (num_samples, 6)
    assert ((samples > 0) & (samples < 1)).all()
    torch.testing.assert_close(prediction.mean, samples.mean(0))
    expected = samples.var(0) if num_samples > 1 else torch.zeros(6)
    torch.testing.assert_close(prediction.variance, expected, rtol=1e-4, atol=1e-9)
    for level in levels:
        torch.testing.assert_close(prediction.quantiles[level], samples.quantile(level, dim=0), rtol=0, atol=1e-7)


def test_streams_in_uneven_chunks():
    """Moments far from zero, and in half precision, whose sums would stop to grow."""
    samples, moments = 1e4 + torch.randn(50, 3, dtype=torch.float64), Moments()
    for chunk in samples.split([1, 7, 30, 12]):
        moments.update(chunk)
    assert moments.count == 50
    torch.testing.assert_close(moments.mean, samples.mean(0))
    torch.testing.assert_close(moments.variance, samples.var(0))
    guide = AttentionGuide(FreeScores(FixedGammaPrior()), Weibull())
    found = predict(guide, num_samples=1000, transform=lambda x: torch.randn_like(x).bfloat16(), seed=0).variance
    assert found.dtype == torch.float32
    assert found.mean().item() == pytest.approx(1, abs=0.06)


def test_stock_predictive():
    guide, arguments, shapes, _ = guided()
    drawn = Predictive(guide.model, guide=guide, num_samples=5)(*arguments)
    expected = {name: (5, *shape) for name, shape in {**shapes, "y": (6,)}.items()}
    assert {name: tuple(value.shape) for name, value in drawn.items()} == expected


# threads


@pytest.mark.parametrize("call", ["sample_posterior", "predict"])
def test_threads_take_turns(call):
    """Eight threads, each with a guide of its own, draw what they would draw alone; one that fails holds nobody up."""

    def draw(seed):
        guide = guides[seed]
        if call == "sample_posterior":
            return sample_posterior(guide, *arguments, num_samples=4, seed=seed)["layers.1"]
        return predict(guide, *arguments, num_samples=4, seed=seed, noise="both").variance

    def fail(logits):
        raise RuntimeError("no")

    _, arguments, *_ = self_attention()
    guides = [AttentionGuide(self_attention(dropout=0.5)[0], Weibull()) for _ in range(8)]
    alone = [draw(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        failed = pool.submit(predict, guides[0], *arguments, num_samples=3, seed=0, transform=fail)
        assert str(failed.exception()) == "no"  # which holds the thread's frames
        together = list(pool.map(draw, range(8)))
    torch.testing.assert_close(together, alone, rtol=0, atol=0)
    assert all(guide.model.training for guide in guides)
    assert len({value.std().item() for value in alone}) == 8


# what is refused


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (lambda mean: (mean, mean), TypeError, "the model returned tuple, expected a tensor such as logits; return it"),
        (
            lambda mean: mean.long(),
            TypeError,
            r"the model returned torch.int64 .* expected floating point .* transform=",
        ),
        (lambda mean: mean / 0, ValueError, r"the model returned 6 of 6 numbers NaN or infinite.*logits.softmax\(-1\)"),
    ],
    ids=["tuple", "labels", "infinite"],
)
def test_outputs_that_cannot_be_averaged(output, error, message):
    model, arguments, *_ = self_attention()
    guide = AttentionGuide(lambda *args: output(model(*args)), Weibull())
    with pytest.raises(error, match=message):
        predict(guide, *arguments, num_samples=4, chunk_size=3)
    assert sample_posterior(guide, *arguments, num_samples=2)["layers.1"].shape == (2, 6, 2, 5, 5)
    if error is ValueError:  # which a transform, or single samples, mend
        assert predict(guide, *arguments, num_samples=3, transform=torch.sigmoid).mean.isfinite().all()


@every_draw
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples is 0, expected an integer of at least 1"),
        ({"chunk_size": "auto"}, ValueError, "chunk_size is 'auto', expected an integer of at least 1"),
        ({"noise": "weights"}, ValueError, "noise is 'weights', expected 'attention', 'dropout', 'both' or 'none'"),
        ({"noise": "both", "chunk_size": 2}, ValueError, "noise is 'both', .* use chunk_size=1"),
    ],
    ids=str,
)
def test_wrong_options(draw, options, error, message):
    guide, arguments, _, _ = guided()
    with pytest.raises(error, match=message):
        draw(guide, *arguments, **options)
    with pytest.raises(TypeError, match="guide is a SelfAttention, expected an AttentionGuide"):
        draw(guide.model, *arguments)


def test_wrong_quantiles():
    guide = AttentionGuide(FreeScores(FixedGammaPrior()), Weibull())
    with pytest.raises(ValueError, match=r"quantiles are \[1.1\], expected probabilities in"):
        predict(guide, num_samples=2, quantiles=[1.1])


class Pooled(nn.Module):
    """Two layers of attention and the mean over the words, whose dimension it counts from either side."""

    def __init__(self, dim, *, between=False):
        super().__init__()
        self.dim, self.between = dim, between
        self.layers = nn.ModuleList(MultiheadAttention(4, 2, name=name) for name in "ab")

    def forward(self, x):
        with pyro.plate("batch", len(x), dim=-1):
            h = x + pyro.sample("shift", Normal(0.0, 1.0).expand([1])).unsqueeze(-1).unsqueeze(-1)
            for layer in self.layers:
                h = 3 * layer(h, h, h)[0]
                h = h + h.mean(self.dim, keepdim=True) if self.between else h
            return h.mean(-2 if self.between else self.dim)


@pytest.mark.parametrize("length", [5, 4], ids=["as many words as sentences", "fewer words"])
@pytest.mark.parametrize(("draw", "between"), [(predict, False), (sample_posterior, True)])
def test_chunks_of_a_model_that_does_not_broadcast(draw, between, length):
    """With as many words as sentences all shapes fit, and the mean is over the sentences."""
    x, options = torch.randn(5, length, 4), {"num_samples": 4}
    good, bad = (AttentionGuide(Pooled(dim, between=between), Weibull(2.0), keep_prior=["shift"]) for dim in (-2, 1))
    draw(good, x, chunk_size=3, **options)
    draw(bad, x, **options)
    single = draw(bad, x, seed=0, **options)
    with pytest.warns(BroadcastWarning, match=r"draws go one by one.*mean\(-2\) for mean\(1\)"):
        chunks = draw(bad, x, chunk_size=3, seed=0, **options)
    if draw is predict:
        single, chunks = {"mean": single.mean}, {"mean": chunks.mean}
    torch.testing.assert_close(chunks, single, rtol=0, atol=0)
