"""Passes of posterior samples: their sizes, what is computed once, and what they leave behind."""

import pytest
import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn

from pyro_attention import AttentionGuide, ContextualGammaPrior, Weibull, predict, sample_posterior
from tests.helpers import assert_mean
from tests.models.test_nmt import SIZES, batch, make
from tests.toy_models import SelfAttention, Sequences

CHECKED = 1, 1, 2  # samples of the first pass, and of the two that show whether chunks are right


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize(("chunk_size", "expected"), [(4, [*CHECKED, 4, 4]), (1, [1] * 9)])
def test_sizes_of_passes(draw, chunk_size, expected):
    """What comes ahead of the first site is computed once a pass."""
    model, sizes, ran = SelfAttention(), [], []
    model.layers[0].register_forward_pre_hook(lambda *_: ran.append("first"))
    prior = model.layers[-1].attention.prior  # whose scores have a dimension for the samples, if any
    prior.register_forward_hook(lambda _module, inputs, _output: sizes.append(inputs[0].shape))
    guide = AttentionGuide(model, Weibull(2.0))
    draw(guide, Sequences.random().x, num_samples=9, chunk_size=chunk_size)
    assert [shape[0] if len(shape) == 5 else 1 for shape in sizes] == expected
    assert len(ran) == len(expected)
    # nothing is left behind
    assert not _PYRO_STACK
    assert not hasattr(guide, "trace")
    assert not nn.modules.module._global_forward_hooks
    assert model.training


@pytest.mark.parametrize("input_feed", ["expected", "sampled"])
def test_chunks_of_a_decoder_have_the_distribution_of_single_samples(input_feed):
    """A sentence is encoded once a pass."""
    model, ran = make(prior=ContextualGammaPrior(SIZES.memory), input_feed=input_feed), []
    guide, arguments = AttentionGuide(model, {"alignment*": Weibull(1.0)}), batch()
    single = sample_posterior(guide, *arguments, num_samples=100, seed=1)
    model.encoder.register_forward_hook(lambda *_: ran.append("encoder"))
    chunked = sample_posterior(guide, *arguments, num_samples=100, chunk_size=100, seed=2)
    assert ran.count("encoder") == len(CHECKED) + 1
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
