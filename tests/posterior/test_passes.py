"""Passes of posterior samples: their sizes under a memory budget, what is computed once, and an early end."""

import re

import pytest
import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

from pyro_attention import (
    AttentionGuide,
    ContextualGammaPrior,
    FixedGammaPrior,
    LatentAttention,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)
from tests.helpers import assert_mean
from tests.models.test_nmt import SIZES, batch, make
from tests.toy_models import SelfAttention, Sequences

CHECKED = 1, 1, 2  # samples of the first pass, and of the two that show whether chunks are right
every_draw = pytest.mark.parametrize("draw", [predict, sample_posterior])


class Watched:
    """A guide over self-attention that remembers the number of samples of each pass, and how often modules run."""

    def __init__(self):
        self.model, self.x, self.sizes = SelfAttention(), Sequences.random().x, []
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

    def one_sample(self, draw):
        """Bytes that one sample takes, as the error says."""
        with pytest.raises(ValueError, match="memory_budget is 1 bytes, expected at least") as error:
            self.draw(draw, memory_budget=1)
        return int(re.search(r"at least (\d+)", str(error.value))[1])


@every_draw
@pytest.mark.parametrize(
    ("budget", "options", "expected"),
    [
        (1, {}, [1] * 9),
        (3.5, {}, [*CHECKED, 3, 3, 2]),
        (1e9, {}, [*CHECKED, 8]),
        (8, {"chunk_size": 4}, [*CHECKED, 4, 4]),
        (None, {"chunk_size": 4}, [*CHECKED, 4, 4]),
        (None, {}, [1] * 9),
    ],
)
def test_a_budget_decides_on_the_size_of_chunks(draw, budget, options, expected):
    """What comes ahead of the first site is computed once a chunk."""
    watched = Watched()
    if budget is not None:
        options = options | {"memory_budget": budget * watched.one_sample(draw)}
    watched.ran["first"] = 0
    watched.draw(draw, num_samples=9, **options)
    assert watched.passes == expected
    assert watched.ran["first"] == len(expected)


def test_what_a_sample_takes():
    watched, wide = Watched(), nn.Linear(4, 1000)
    site, hidden, more = 6 * 2 * 5 * 5 * 4, 6 * 5 * 4 * 4, 6 * 5 * 1000 * 4  # sequences, positions, float32
    weights, whole = map(watched.one_sample, (sample_posterior, predict))
    # both sites stay, with scores and parameter of the posterior; a few more tensors are there at a time
    assert all(4 * site < needed < 12 * site + 12 * hidden for needed in (weights, whole))
    # behind the last site: not run for weights alone
    watched.guide = AttentionGuide(lambda x: watched.model(x) + 0 * wide(x).sum(), Weibull())
    assert watched.one_sample(sample_posterior) == weights
    assert whole + more / 2 < watched.one_sample(predict) < whole + 2 * more
    # ahead of the first: not repeated
    watched.guide = AttentionGuide(lambda x: watched.model(x + 0 * wide(x).sum()), Weibull())
    assert watched.one_sample(sample_posterior) == weights
    assert watched.one_sample(predict) == whole


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


def test_soft_attention_ahead_is_computed_once_for_all_samples():
    """It has a value for each sample all the same, and no pass has to show that samples are apart."""
    watched = Watched()
    guide = AttentionGuide(watched.model, {"layers.0": Soft(), "*": Weibull(2.0)})
    watched.sizes.clear()
    drawn = sample_posterior(guide, watched.x, num_samples=9, chunk_size=8)
    assert [len(shape) for shape in watched.sizes] == [4, 4]
    first, last = drawn.values()
    assert first.shape[0] == last.shape[0] == 9
    assert (first == first[:1]).all()
    assert (last[1:] != last[:-1]).flatten(1).any(1).all()
    prediction = predict(AttentionGuide(watched.model, Soft()), watched.x, num_samples=9, chunk_size=8)
    assert prediction.variance.max() < 1e-8


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


@pytest.mark.parametrize("input_feed", ["expected", "sampled"])
def test_chunks_of_a_decoder_have_the_distribution_of_single_samples(input_feed):
    """A sentence is encoded twice, and its words are predicted once."""
    model, ran = make(prior=ContextualGammaPrior(SIZES.memory), input_feed=input_feed), []
    guide, arguments = AttentionGuide(model, {"alignment*": Weibull(1.0)}), batch()
    single = sample_posterior(guide, *arguments, num_samples=100, seed=1)
    model.encoder.register_forward_hook(lambda *_: ran.append("encoder"))
    model.from_context.register_forward_hook(lambda *_: ran.append("words"))
    chunked = sample_posterior(guide, *arguments, num_samples=100, chunk_size=100, seed=2)
    checked = len(CHECKED) - 1 if input_feed == "sampled" else 0  # one site needs no check
    assert ran.count("encoder") == 2 + checked
    assert ran.count("words") == (1 if input_feed == "expected" else ran.count("words"))
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
