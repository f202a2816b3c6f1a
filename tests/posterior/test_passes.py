"""Passes of posterior samples: their sizes, what is computed once, and what they leave behind."""

from contextlib import nullcontext
from itertools import product

import pyro
import pytest
import torch
from pyro import poutine
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    Dense,
    LatentAttention,
    Soft,
    Weibull,
    importance_posterior,
    predict,
    sample_posterior,
    sample_sites,
)
from pyro_attention.posterior import passes
from pyro_attention.replayed_runs import untouched
from tests.helpers import assert_mean
from tests.models.test_nmt import SIZES, batch, make
from tests.toy_models import SelfAttention, Sequences

REPLAY = 1, 1, 2  # two single runs, and a pass of both, which show whether chunks are right
CHECKED = 1, *REPLAY  # beside the first pass


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize(("chunk_size", "expected"), [(4, [*CHECKED, 4, 4, 1, 4, 4]), (1, [1] * 18)])
def test_sizes_of_passes(draw, chunk_size, expected):
    """What comes ahead of the first site is computed once a pass; a guide is checked once."""
    model, sizes, ran = SelfAttention(), [], []
    model.layers[0].register_forward_pre_hook(lambda *_: ran.append("first"))
    prior = model.layers[-1].attention.prior  # whose scores have a dimension for the samples, if any
    prior.register_forward_hook(lambda _module, inputs, _output: sizes.append(inputs[0].shape))
    guide = AttentionGuide(model, Weibull(2.0))
    for _ in range(2):
        draw(guide, Sequences.random().x, num_samples=9, chunk_size=chunk_size)
    assert [shape[0] if len(shape) == 5 else 1 for shape in sizes] == expected
    assert len(ran) == len(expected)
    # nothing is left behind
    assert not _PYRO_STACK
    assert not hasattr(guide, "trace")
    assert not nn.modules.module._global_forward_hooks
    assert model.training


def test_soft_attention_ahead_is_computed_once_for_all_samples():
    """It has a value for each sample all the same, and passes for the attention alone end with its last site."""
    model, ran = SelfAttention(), {"layers.0": [], "out": []}
    model.layers[0].attention.prior.register_forward_hook(
        lambda _, inputs, __: ran["layers.0"].append(len(inputs[0].shape))
    )
    model.out.register_forward_pre_hook(lambda *_: ran["out"].append(1))
    guide = AttentionGuide(model, {"layers.0": Soft(), "*": Weibull(2.0)})
    drawn = sample_posterior(guide, Sequences.random().x, num_samples=9, chunk_size=8)
    assert ran == {"layers.0": [4, 4], "out": [1]}
    first, last = drawn.values()
    assert first.shape[0] == last.shape[0] == 9
    assert (first == first[:1]).all()
    assert (last[1:] != last[:-1]).flatten(1).any(1).all()
    prediction = predict(AttentionGuide(model, Soft()), Sequences.random().x, num_samples=9, chunk_size=8)
    assert prediction.variance.max() < 1e-8


def test_passes_of_a_stack_are_as_large_as_the_cache(monkeypatch):
    model, sizes = SelfAttention(), []
    model.out.register_forward_hook(lambda _, __, output: sizes.append(output.shape[0]))
    monkeypatch.setattr(passes, "_LARGEST", 3 * 6 * 2 * 5 * 5)  # three draws of the weights of a layer
    for noise, expected in (("attention", [6, 6, 6, 2, 3, 3, 2]), (["*.1"], [6, 6, 6, 3, 8])):
        sizes.clear()
        predict(AttentionGuide(model, Weibull(2.0)), Sequences.random().x, num_samples=9, chunk_size=8, noise=noise)
        assert sizes == expected


@pytest.mark.parametrize("chunk_size", [1, 8])
def test_noise_of_some_sites_is_that_of_soft_attention_elsewhere(chunk_size):
    model, x = SelfAttention(), Sequences.random().x
    guides = [AttentionGuide(model, families) for families in ({"layers.0": Soft(), "*": Weibull(2.0)}, Weibull(2.0))]
    options = {"num_samples": 9, "chunk_size": chunk_size, "seed": 0, "keep_samples": True}
    mixed, named = (
        predict(guide, x, noise=noise, **options).samples
        for guide, noise in zip(guides, ("attention", ["*.1"]), strict=True)
    )
    torch.testing.assert_close(named, mixed)
    with pytest.raises(ValueError, match=r"no attention site matches \['head'\]"):
        predict(guides[1], x, noise=["head"])


def test_patterns_of_noise_match_attention_sites_alone():
    """A pattern of an observation, a plate or another latent site would draw nothing, without a word."""
    attention = LatentAttention("attention", ContextualGammaPrior(2))

    def model():
        shift = pyro.sample("shift", pyro.distributions.Normal(0.0, 1.0))
        with pyro.plate("data", 1):
            context = attention(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 1), keys=torch.zeros(1, 1, 2, 2)).context
            mean = context.sum((-3, -2, -1)) + shift
            pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=torch.zeros(1))
        return mean

    guide = AttentionGuide(model, Weibull(2.0), keep_prior="shift")
    for name in ("shift", "data", "y"):
        with pytest.raises(ValueError, match=f"no attention site matches \\['{name}'\\]"):
            predict(guide, num_samples=2, noise=[name])
    given = poutine.condition(guide, data={"attention": torch.zeros(1, 1, 1, 2)})
    assert predict(given, num_samples=2, noise=["att*"]).num_samples == 2


@pytest.mark.parametrize("input_feed", ["expected", "sampled"])
def test_chunks_of_a_decoder_have_the_distribution_of_single_samples(input_feed):
    """A sentence is encoded once a pass; one site needs no passes that check it."""
    model, ran = make(prior=ContextualGammaPrior(SIZES.memory), input_feed=input_feed), []
    guide, arguments = AttentionGuide(model, {"alignment*": Weibull(1.0)}), batch()
    single = sample_posterior(guide, *arguments, num_samples=100, seed=1)
    model.encoder.register_forward_hook(lambda *_: ran.append("encoder"))
    chunked = sample_posterior(guide, *arguments, num_samples=100, chunk_size=100, seed=2)
    assert ran.count("encoder") == (2 if input_feed == "expected" else len(CHECKED) + 1)
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


GIVEN = [["layers.0"], ["layers.1"], ["layers.0", "layers.1"]]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("family", [Weibull(2.0), Soft()])
def test_attention_that_is_given_is_the_same_in_all_samples(given, family):
    """By poutine.condition around the guide, also where the last site is given, at which a pass for attention ends."""
    model, data = SelfAttention(), Sequences.random()
    guide, inputs = AttentionGuide(model, family), (data.x, data.y)
    values = {name: value[0] for name, value in sample_sites(guide, *inputs, num_samples=1).items() if name in given}
    conditioned = poutine.condition(guide, values)
    for chunk_size in (1, 4):
        options = {"num_samples": 7, "chunk_size": chunk_size}
        weights = sample_posterior(conditioned, *inputs, **options)
        weighted = importance_posterior(conditioned, *inputs, **options).samples
        sites = sample_sites(conditioned, *inputs, **options)
        for name in ("layers.0", "layers.1"):
            assert weights[name].shape == weighted[name].shape == sites[name].shape == (7, 6, 2, 5, 5)
            is_same = [(draws[name] == draws[name][:1]).all().item() for draws in (weights, weighted, sites)]
            assert is_same == [name in given or isinstance(family, Soft)] * 3
            if name in given:
                assert sites[name][0].equal(values[name])


@pytest.mark.parametrize("as_weights", [False, True])
@pytest.mark.parametrize("given", ["first", "second"])
def test_an_alignment_that_is_given_is_the_same_in_all_samples(given, as_weights):
    sites = {name: LatentAttention(name, AlignmentPrior()) for name in ("first", "second")}
    values = torch.eye(3).unsqueeze(0)

    def model():
        with pyro.plate("queries", 5):
            for attention in sites.values():
                attention(torch.zeros(5, 1, 3), values, layout=Dense(event_dim=2))

    keys = torch.tensor([0, 1, 2, 1, 0])
    rows = torch.nn.functional.one_hot(keys, 3).float().unsqueeze(-2)
    conditioned = poutine.condition(AttentionGuide(model, Categorical()), {given: rows if as_weights else keys})
    drawn = sample_posterior(conditioned, num_samples=9, chunk_size=4)
    assert all(draws.shape == (9, 5, 1, 3) for draws in drawn.values())
    assert {name: bool((draws == rows).all()) for name, draws in drawn.items()} == {
        name: name == given for name in sites
    }


@pytest.mark.filterwarnings("ignore:the model does not broadcast:pyro_attention.draws.BroadcastWarning")
def test_draws_are_looked_at_under_each_kind_of_handlers():
    """A latent site that poutine.block hides from the plate of the draws had one value for all of a pass."""
    attention = LatentAttention("attention", ContextualGammaPrior(2))

    def model():
        shift = pyro.sample("shift", pyro.distributions.Normal(0.0, 1.0))
        return (
            attention(torch.zeros(1, 1, 2), torch.ones(1, 2, 1), keys=torch.zeros(1, 2, 2)).context
            + shift[..., None, None, None]
        )

    guide = AttentionGuide(model, Weibull(2.0), keep_prior="shift")
    for hidden in (guide, poutine.block(guide, hide=["shift"])):
        samples = predict(hidden, num_samples=8, chunk_size=8, keep_samples=True).samples
        assert len(samples.unique()) == 8
        assert len(sample_posterior(hidden, num_samples=8, chunk_size=8)["attention"]) == 8


def test_a_seed_around_the_guide_would_make_all_samples_the_same():
    attention = LatentAttention("attention", ContextualGammaPrior(2))

    def model():
        return attention(torch.zeros(1, 1, 2), torch.ones(1, 2, 1), keys=torch.zeros(1, 2, 2)).context

    around = poutine.seed(AttentionGuide(model, Weibull(2.0)), rng_seed=0)
    inside = AttentionGuide(poutine.seed(model, rng_seed=0), Weibull(2.0))
    for guide, draw in product((around, inside), (sample_posterior, sample_sites, importance_posterior, predict)):
        with pytest.raises(ValueError, match=r"poutine.seed around .* all samples would be the same .* pass seed="):
            draw(guide, num_samples=3)
    first, second = (sample_posterior(around, num_samples=1)["attention"] for _ in range(2))
    assert torch.equal(first, second)


def test_the_generators_of_all_gpus_are_restored(monkeypatch):
    """A seed is that of all of them, and the model need not be on the current one."""
    asked = []
    for name, answer in (("is_available", True), ("is_initialized", True), ("device_count", 2)):
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices, **_: asked.append([*devices]) or nullcontext())
    with passes.seeded(0), untouched():
        pass
    assert asked == [[0, 1], [0, 1]]
