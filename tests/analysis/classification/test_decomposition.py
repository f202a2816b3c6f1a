"""Entropy and variance by source."""

import math

import pytest
import torch
from torch import nn

from pyro_attention import AttentionGuide, FixedGammaPrior, LatentAttention, Weibull, predict
from pyro_attention.analysis import decompose_uncertainty, split_variance
from pyro_attention.posterior.predictive import Prediction
from tests.analysis.classification.random_logits import for_all, sampled, shuffled


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities if p > 0)


@pytest.mark.parametrize(
    ("samples", "total", "aleatoric"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], math.log(2), 0.0),
        ([[0.9, 0.1], [0.5, 0.5]], entropy(0.7, 0.3), (entropy(0.9, 0.1) + math.log(2)) / 2),
    ],
    ids=["certain samples", "uncertain samples"],
)
def test_by_hand(samples, total, aleatoric):
    parts = decompose_uncertainty(torch.tensor(samples, dtype=torch.float64).unsqueeze(1))
    assert parts.total.item() == pytest.approx(total)
    assert parts.aleatoric.item() == pytest.approx(aleatoric)
    assert parts.mutual_information.item() == pytest.approx(total - aleatoric)


@for_all()
def test_properties(problem, seed):
    probabilities = problem.probabilities
    samples, items, classes = probabilities.shape
    parts = decompose_uncertainty(probabilities)
    assert (parts.mutual_information >= 0).all()
    assert (parts.aleatoric >= -1e-12).all()
    assert (parts.total <= math.log(classes) + 1e-12).all()
    # at most the entropy of which sample it was
    assert (parts.mutual_information <= math.log(samples) + 1e-12).all()
    torch.testing.assert_close(parts.total, parts.aleatoric + parts.mutual_information, rtol=0, atol=1e-12)
    # the mutual information is the mean divergence from the mean
    mean = probabilities.mean(0)
    divergence = torch.where(probabilities > 0, probabilities * (probabilities / mean).log(), 0.0).sum(-1).mean(0)
    torch.testing.assert_close(parts.mutual_information, divergence, rtol=0, atol=1e-9)
    order = shuffled(items, seed)
    moved = decompose_uncertainty(probabilities[shuffled(samples, seed)][:, order])
    torch.testing.assert_close(moved.total, parts.total[order])
    torch.testing.assert_close(moved.mutual_information, parts.mutual_information[order], rtol=0, atol=1e-12)
    one = decompose_uncertainty(probabilities[:1])
    assert (one.mutual_information == 0).all()
    assert one.total.equal(one.aleatoric)


def test_small_disagreement_survives_float32():
    """Samples that differ by 1e-4: a mutual information of 1e-9 beside entropies of 1."""
    exact = sampled(samples=10, items=50, noise=1e-4).probabilities
    expected = decompose_uncertainty(exact).mutual_information
    single = decompose_uncertainty(exact.float())
    assert single.total.dtype == torch.float32
    assert expected.median() < 1e-8
    torch.testing.assert_close(single.mutual_information.double(), expected, rtol=0.02, atol=1e-11)


def test_samples_must_be_there():
    with pytest.raises(ValueError, match=r"shape \(3, 2\), expected \[S, items, classes\]; keep the samples"):
        decompose_uncertainty(torch.full((3, 2), 0.5))


# variance


def prediction(*variances, num_samples=100):
    variance = torch.tensor(variances)
    return Prediction(mean=torch.zeros_like(variance), variance=variance, num_samples=num_samples)


def test_split_by_hand():
    split = split_variance(attention=prediction(1.0, 3.0), dropout=prediction(2.0, 0.0), both=prediction(4.0, 2.0))
    assert split.total.tolist() == [4.0, 2.0]
    assert split.attention.tolist() == [1.0, 3.0]
    assert split.dropout.tolist() == [2.0, 0.0]
    assert split.interaction.tolist() == [1.0, -1.0]
    assert (split.attention_share, split.dropout_share) == pytest.approx((4 / 6, 2 / 6))
    assert split.interaction_share == 0
    assert not math.isnan(
        split_variance(attention=prediction(1.0), dropout=prediction(0.0), both=prediction(1.0)).dropout_share
    )
    nothing = split_variance(attention=prediction(0.0), dropout=prediction(0.0), both=prediction(0.0))
    assert math.isnan(nothing.attention_share)


def test_split_of_a_model():
    """Attention plus an independent dropped constant of variance .7^2 * .3/.7 = .21: hardly an interaction."""
    attention, dropout = LatentAttention("attention", FixedGammaPrior()), nn.Dropout(0.3)

    def model():
        context = attention(torch.zeros(1, 300, 4), torch.arange(4.0).reshape(1, 4, 1)).context
        return context.flatten() + dropout(torch.full((300,), 0.7))

    split = split_variance(
        **{
            noise: predict(AttentionGuide(model, Weibull(2.0)), num_samples=60, noise=noise, seed=3)
            for noise in ("attention", "dropout", "both")
        }
    )
    assert split.dropout.mean().item() == pytest.approx(0.21, rel=0.05)
    assert abs(split.interaction_share) < 0.05
    assert min(split.attention_share, split.dropout_share) > 0.2
    total = split.attention_share + split.dropout_share + split.interaction_share
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (torch.ones(2), TypeError, r"dropout is a Tensor, expected the Prediction of predict\(...\)"),
        (prediction(1.0, 1.0, num_samples=1), ValueError, "dropout has 1 sample, expected at least 2 for a variance"),
        (prediction(1.0), ValueError, r"dropout has shape \(1,\), both \(2,\); expected predictions of the same items"),
        (prediction(1.0, math.nan), ValueError, "dropout has variances that are NaN or infinite"),
    ],
    ids=["type", "samples", "shape", "nan"],
)
def test_wrong_predictions(wrong, error, message):
    with pytest.raises(error, match=message):
        split_variance(attention=prediction(1.0, 1.0), dropout=wrong, both=prediction(2.0, 2.0))
