"""Chunks of posterior samples: their sizes under a memory budget, what is computed once, and an early end."""

import re
from functools import partial

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

from models.score_terms import TemporalNormalizer
from pyro_attention import (
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    FixedGammaPrior,
    LatentAttention,
    MultiheadAttention,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.posterior.chunks import _NewTensors
from pyro_attention.posterior.predictive import Moments, OrderStatistics
from tests.helpers import assert_mean
from tests.models.test_captioning import SIZES as CAPTIONING_SIZES
from tests.models.test_captioning import batch as captioning_batch
from tests.models.test_captioning import make as make_captioning
from tests.models.test_nmt import SIZES, batch, make
from tests.toy_models import SelfAttention, Sequences

DECODERS = {
    "translation": (make, SIZES, batch),
    "normalised over the words before": (partial(make, normalizer=TemporalNormalizer(0.5)), SIZES, batch),
    "captioning": (make_captioning, CAPTIONING_SIZES, captioning_batch),
}


class Watched:
    """A guide over self-attention that remembers the number of samples of each pass, and how often modules run."""

    def __init__(self, length=5):
        self.model, self.sizes = SelfAttention(), []
        self.x = Sequences.random(length=length).x
        self.ran = {"first": 0, "last": 0, "out": 0}
        for name, module in (("first", self.model.layers[0]), ("last", self.model.layers[-1]), ("out", self.model.out)):
            module.register_forward_pre_hook(lambda *_, name=name: self.count(name))
        prior = self.model.layers[-1].attention.prior
        prior.register_forward_hook(lambda _module, inputs, _output: self.sizes.append(inputs[0].shape))
        self.guide = AttentionGuide(self.model, Weibull(2.0))

    def count(self, name):
        self.ran[name] += 1

    @property
    def passes(self):
        """Samples of each pass: the scores of the last layer have a dimension for them, if any."""
        return [shape[0] if len(shape) == 5 else 1 for shape in self.sizes]

    def draw(self, draw, **options):
        self.sizes.clear()
        return draw(self.guide, self.x, **options)


CHECKED = 1, 1, 2  # samples of the first pass, and of the two that show whether chunks are right


def one_sample(watched, draw):
    """Bytes that one sample takes, as the error says."""
    with pytest.raises(ValueError, match="memory_budget is 1 bytes, expected at least") as error:
        watched.draw(draw, memory_budget=1)
    return int(re.search(r"at least (\d+)", str(error.value))[1])


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize(
    ("budget", "options", "expected"),
    [
        (1, {}, [1] * 9),
        (3.5, {}, [*CHECKED, 3, 3, 2]),
        (8, {}, [*CHECKED, 8]),
        (float("inf"), {}, [*CHECKED, 8]),
        (1e9, {}, [*CHECKED, 8]),
        (8, {"chunk_size": 4}, [*CHECKED, 4, 4]),
        (None, {"chunk_size": 4}, [*CHECKED, 4, 4]),
        (None, {}, [1] * 9),
    ],
)
def test_a_budget_decides_on_the_size_of_chunks(draw, budget, options, expected):
    watched = Watched()
    if budget is not None:
        options = options | {"memory_budget": budget * one_sample(watched, draw)}
    watched.draw(draw, num_samples=9, **options)
    assert watched.passes == expected


def test_what_a_sample_takes():
    watched, wide = Watched(), nn.Linear(4, 1000)
    site, hidden, more = 6 * 2 * 5 * 5 * 4, 6 * 5 * 4 * 4, 6 * 5 * 1000 * 4  # sequences, positions, float32
    weights, whole = (one_sample(watched, draw) for draw in (sample_posterior, predict))
    # both sites stay, with scores and parameter of the posterior; a few more tensors are there at a time
    assert all(4 * site < needed < 12 * site + 12 * hidden for needed in (weights, whole))
    # behind the last site: not run for weights alone
    watched.guide = AttentionGuide(lambda x: watched.model(x) + 0 * wide(x).sum(), Weibull())
    assert one_sample(watched, sample_posterior) == weights
    assert whole + more / 2 < one_sample(watched, predict) < whole + 2 * more
    # ahead of the first: not repeated
    watched.guide = AttentionGuide(lambda x: watched.model(x + 0 * wide(x).sum()), Weibull())
    assert one_sample(watched, sample_posterior) == weights
    assert one_sample(watched, predict) == whole


def test_what_a_sample_of_blocked_attention_takes():
    """Its weights are dense; a prediction does not need them."""
    layer, x = (
        BlockedMultiheadAttention(4, 1, name="attention", prior=FixedGammaPrior()),
        torch.randn(1, 1000, 4),
    )
    watched = Watched()
    watched.x, watched.guide = x, AttentionGuide(lambda x: layer(x, x, x, need_weights=False)[0], Weibull())
    with pyro.plate("batch", 1, dim=-1):
        assert one_sample(watched, predict) < 1000 * 1000 * 4 < one_sample(watched, sample_posterior)


@pytest.mark.parametrize("draw", [predict, sample_posterior])
def test_a_budget_is_kept(draw):
    """By all passes together: memory of one is free in the next."""
    watched = Watched(length=40)
    results = 0 if draw is predict else 2 * 100 * 6 * 2 * 40 * 40 * 4  # of two sites
    used = {}
    for budget in (6e6, 2e7, None):
        options = {"chunk_size": 100} if budget is None else {"memory_budget": budget}
        with _NewTensors() as tensors:
            tensors.counting = True
            watched.draw(draw, num_samples=100, **options)
        used[budget] = tensors.most - results
    ahead = 1e6
    assert used[6e6] < 6e6 + ahead
    assert used[2e7] < 2e7 + ahead
    assert used[None] > 3e7
    # and made use of
    assert used[6e6] > 3e6
    assert used[2e7] > 1.2e7


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize("options", [{"chunk_size": 8}, {"memory_budget": 1e9}], ids=str)
def test_what_comes_ahead_of_the_first_site_is_computed_once_a_chunk(draw, options):
    watched = Watched()
    watched.draw(draw, num_samples=9, **options)
    assert watched.ran["first"] == len(CHECKED) + 1


@pytest.mark.parametrize("options", [{}, {"chunk_size": 4}], ids=str)
def test_what_comes_behind_the_last_site_is_computed_in_the_first_pass_alone(options):
    watched = Watched()
    samples = watched.draw(sample_posterior, num_samples=9, **options)
    assert watched.ran["out"] == 1
    assert watched.ran["first"] == watched.ran["last"] == (len(CHECKED) + 2 if options else 9)
    assert {name: len(values) for name, values in samples.items()} == {"layers.0": 9, "layers.1": 9}
    # nothing is left behind
    assert not _PYRO_STACK
    assert not hasattr(watched.guide, "trace")
    assert not nn.modules.module._global_forward_hooks
    assert watched.model.training
    watched.draw(predict, num_samples=3)
    assert watched.ran["out"] == 4


def test_an_early_end_is_no_exception_that_a_model_could_catch():
    model = SelfAttention()

    def careful(x):
        try:
            return model(x)
        except Exception as error:
            raise AssertionError from error

    samples = sample_posterior(AttentionGuide(careful, Weibull()), Sequences.random().x, num_samples=3)
    assert samples["layers.1"].shape == (3, 6, 2, 5, 5)


def test_sites_that_change_from_pass_to_pass():
    layers = [LatentAttention(name, FixedGammaPrior()) for name in ("often", "never twice")]
    calls = []

    def model(scores):
        for layer in layers[: 2 - len(calls)]:
            layer(scores, scores.mT)
        calls.append(0)

    with pytest.raises(ValueError, match="site 'never twice' was reached by 1 of 2 samples, expected all"):
        sample_posterior(AttentionGuide(model, Weibull()), torch.zeros(1, 2, 3), num_samples=2)


@pytest.mark.parametrize("draw", [predict, sample_posterior])
def test_seed(draw):
    watched = Watched()

    def run(seed):
        result = watched.draw(draw, num_samples=6, memory_budget=4e4, seed=seed)
        return result["layers.1"] if isinstance(result, dict) else result.mean

    assert run(1).equal(run(1))
    assert not run(1).equal(run(2))


@pytest.mark.parametrize("input_feed", ["expected", "sampled"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_chunks_of_a_decoder_have_the_distribution_of_single_samples(decoder, input_feed):
    make_model, sizes, make_batch = DECODERS[decoder]
    model = make_model(prior=ContextualGammaPrior(sizes.memory), input_feed=input_feed)
    guide, arguments = AttentionGuide(model, {"alignment*": Weibull(1.0)}), make_batch()
    single, chunked = (
        sample_posterior(guide, *arguments, num_samples=150, chunk_size=size, seed=size) for size in (1, 75)
    )
    assert list(single) == list(chunked)
    for name in single:
        certain = single[name].std(0) < 1e-6
        first, second = single[name][:, ~certain].double(), chunked[name][:, ~certain].double()
        torch.testing.assert_close(single[name][:, certain], chunked[name][:, certain])
        assert_mean(first - second, 0.0, errors=4.5)
        spread = [(samples - samples.mean(0)).square() for samples in (first, second)]
        assert_mean(spread[0] - spread[1], 0.0, errors=4.5)
        # no two samples of a chunk share a state
        assert_mean((second[1:] - second.mean(0)) * (second[:-1] - second.mean(0)), 0.0, errors=4.5)


def test_a_translation_is_encoded_twice_and_its_words_are_predicted_once():
    model, arguments, ran = make(prior=ContextualGammaPrior(SIZES.memory)), batch(), []
    model.encoder.register_forward_hook(lambda *_: ran.append("encoder"))
    model.from_context.register_forward_hook(lambda *_: ran.append("words"))
    sample_posterior(AttentionGuide(model, Weibull()), *arguments, num_samples=32, chunk_size=32)
    assert ran == ["encoder", "words", "encoder"]


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


@pytest.mark.parametrize("noise", ["attention", "none"])
@pytest.mark.parametrize("length", [5, 4], ids=["as many words as sentences", "fewer words"])
@pytest.mark.parametrize(("draw", "between"), [(predict, False), (predict, True), (sample_posterior, True)])
def test_chunks_of_a_model_that_does_not_broadcast(draw, between, length, noise):
    """With as many words as sentences all shapes fit, and the mean is over the sentences."""
    x, options = torch.randn(5, length, 4), {"num_samples": 4, "noise": noise}
    good, bad = (AttentionGuide(Pooled(dim, between=between), Weibull(2.0), keep_prior=["shift"]) for dim in (-2, 1))
    draw(good, x, chunk_size=3, **options)
    draw(bad, x, **options)
    with pytest.raises((ValueError, RuntimeError)) as error:
        draw(bad, x, chunk_size=3, **options)
    assert "use chunk_size=1, or let the model count dimensions from the right" in error.value.__notes__[0]


def test_a_plain_layout_of_queries_in_a_plate():
    """The layer that the decoder uses, by itself."""
    layer = LatentAttention("attention", FixedGammaPrior())
    layout = Dense(event_dim=2)
    scores = torch.randn(1, 4)
    guide = AttentionGuide(lambda: layer(scores, torch.eye(4).unsqueeze(0), layout=layout).context, Weibull())
    assert sample_posterior(guide, num_samples=6, chunk_size=3)["attention"].shape == (6, 1, 4)


UNEVEN = [1, 7, 30, 12]


def test_moments_far_from_zero_in_uneven_chunks():
    samples, moments = 1e4 + torch.randn(50, 3, dtype=torch.float64), Moments()
    for chunk in samples.split(UNEVEN):
        moments.update(chunk)
    assert moments.count == 50
    torch.testing.assert_close(moments.mean, samples.mean(0))
    torch.testing.assert_close(moments.variance, samples.var(0))


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_quantiles_in_uneven_chunks(q):
    samples, statistics = torch.randn(50, 3), OrderStatistics(q, 50)
    with pytest.raises(ValueError, match="no samples"):
        statistics.result()
    for chunk in samples.split(UNEVEN):
        statistics.update(chunk)
    torch.testing.assert_close(statistics.result(), samples.quantile(q, dim=0))


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize("budget", [0, -1e9, float("nan")])
def test_budgets_that_are_not_positive(draw, budget):
    watched = Watched()
    with pytest.raises(ValueError, match=f"memory_budget is {budget}, expected a positive number of bytes"):
        watched.draw(draw, memory_budget=budget)
    assert not watched.sizes


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize("noise", ["dropout", "both"])
def test_budgets_with_dropout(draw, noise):
    with pytest.raises(ValueError, match=f"memory_budget is 1000000.0 with noise='{noise}'.*use chunk_size=1"):
        Watched().draw(draw, memory_budget=1e6, noise=noise)


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize("name", ["num_samples", "chunk_size"])
@pytest.mark.parametrize("count", [2.5, "auto"])
def test_counts_that_are_no_integers(draw, name, count):
    with pytest.raises(TypeError, match=f"{name} is {count!r}, expected an integer; memory_budget chooses"):
        Watched().draw(draw, **{name: count})
