"""Statistics of Monte Carlo predictions and their sources of noise, and what is refused."""

import pyro
import pytest
import torch
from torch import nn

from pyro_attention import (
    AttentionGuide,
    FixedGammaPrior,
    LatentAttention,
    Weibull,
    predict,
    sample_posterior,
)
from pyro_attention.blocked import BlockedMultiheadAttention
from tests.helpers import assert_mean
from tests.toy_models import FreeScores, SelfAttention, Sequences


def guided(**options):
    """A guide over self-attention, and its input."""
    return AttentionGuide(SelfAttention(**options), Weibull(2.0)), Sequences.random().x


@pytest.mark.parametrize(("dropout", "varies"), [(0.0, False), (0.5, True)], ids=["no dropout module", "dropout"])
def test_dropout_alone(dropout, varies):
    guide, x = guided(dropout=dropout)
    variance = predict(guide, x, num_samples=5, noise="dropout").variance
    assert (variance > 1e-4).all() if varies else (variance < 1e-12).all()


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


@pytest.mark.parametrize("num_samples", [1, 2, 10, 101])
@pytest.mark.parametrize("chunk_size", [1, 4])
def test_statistics_are_those_of_the_samples(num_samples, chunk_size):
    guide, x = guided()
    levels = [0.0, 0.025, 0.25, 0.5, 0.731, 0.975, 1.0]
    prediction = predict(
        guide, x, num_samples=num_samples, chunk_size=chunk_size, quantiles=levels, keep_samples=True,
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


@pytest.mark.parametrize("draw", [predict, sample_posterior])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples is 0, expected at least 1"),
        ({"chunk_size": 0}, "chunk_size is 0, expected at least 1"),
        ({"noise": "weights"}, "noise is 'weights', expected 'attention', 'dropout', 'both' or 'none'"),
        ({"noise": "dropout", "chunk_size": 2}, "chunk_size is 2 with noise='dropout'.* use chunk_size=1"),
        ({"noise": "both", "chunk_size": 2}, "chunk_size is 2 with noise='both'"),
    ],
    ids=str,
)
def test_wrong_options(draw, options, message):
    guide, x = guided()
    with pytest.raises(ValueError, match=message):
        draw(guide, x, **options)


@pytest.mark.parametrize("level", [-0.1, 1.1, float("nan")])
def test_wrong_quantiles(level):
    guide, x = guided()
    with pytest.raises(ValueError, match=rf"quantile {level} lies outside \[0, 1\]"):
        predict(guide, x, num_samples=2, quantiles=[level])


def test_half_precision_is_summed_in_32_bits():
    guide = AttentionGuide(FreeScores(FixedGammaPrior()), Weibull())

    def normal(output):
        return torch.randn_like(output).bfloat16()

    found = predict(guide, num_samples=2000, transform=normal, seed=0)
    assert found.variance.dtype == torch.float32
    assert found.variance.mean().item() == pytest.approx(1, abs=0.05)  # .65 where the sums stop to grow


def test_impossible_classes_have_no_mean_logit():
    guide = AttentionGuide(FreeScores(FixedGammaPrior()), Weibull())

    def masked(output):
        return output.index_fill(-1, torch.tensor([0]), -torch.inf)

    with pytest.raises(ValueError, match=r"transform returned 3 of 12 numbers NaN or infinite.*logits.softmax\(-1\)"):
        predict(guide, num_samples=2, transform=masked)
    found = predict(guide, num_samples=2, transform=lambda output: masked(output).softmax(-1))
    assert found.mean[..., 0].eq(0).all()


@pytest.mark.parametrize("training", [False, True])
def test_blocked_attention_knows_whether_its_dropout_is_drawn(training):
    layer = BlockedMultiheadAttention(4, 2, dropout=0.5).train(training)
    x = torch.randn(3, 5, 4)

    def model():
        with pyro.plate("batch", 3):
            return layer(x, x, x, need_weights=False)[0]

    guide = AttentionGuide(model, Weibull(2.0))
    assert predict(guide, num_samples=3, noise="attention").variance.mean() > 0
    assert predict(guide, num_samples=3, noise="none").variance.abs().max() == 0
    for noise in ("dropout", "both"):
        with pytest.raises(ValueError, match="does not support dropout of the weights"):
            predict(guide, num_samples=3, noise=noise)
    assert all(module.training is training for module in layer.modules())


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (lambda mean: (mean, None), TypeError, "the model returned tuple, expected a tensor such as logits"),
        (torch.sum, ValueError, r"returned shape \(\) for 2 samples in one pass.* use chunk_size=1"),
    ],
    ids=["no tensor", "no broadcasting"],
)
def test_models_that_cannot_be_averaged_over_chunks(output, error, message):
    model = FreeScores(FixedGammaPrior())
    guide = AttentionGuide(lambda: output(model()), Weibull())
    with pytest.raises(error, match=message):
        predict(guide, num_samples=3, chunk_size=3)
    if error is TypeError:
        assert sample_posterior(guide, num_samples=2)["attention"].shape == (2, 1, 3, 4)
    else:
        assert predict(guide, num_samples=3).mean.shape == ()
