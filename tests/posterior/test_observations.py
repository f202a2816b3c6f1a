"""predict(observed=...): draws of an observation with its noise, beside those of the model's output."""

import pyro
import pytest
import torch
from pyro.distributions import Categorical, Normal, Poisson
from torch import nn

from pyro_attention import (
    AttentionGuide,
    Dense,
    FixedGammaPrior,
    FromPrior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    Weibull,
    predict,
)
from pyro_attention.guide import DRAWS
from tests.helpers import assert_mean

NOISE = torch.tensor([0.5, 2.0, 1.0, 3.0])
ITEMS, SCORES = len(NOISE), torch.zeros(len(NOISE), 1, 2)
VALUES = torch.tensor([[[0.0], [1.0]]])


class Reader(nn.Module):
    """A mean between the values of two keys, observed with a noise; ``deep`` adds a site in a second plate."""

    def __init__(self, likelihood=None, *, prior=None, deep=False, returns=True, dropout=0.0):
        super().__init__()
        self.attention, self.returns = LatentAttention("attention", prior or FixedGammaPrior()), returns
        self.deep = deep
        self.likelihood, self.dropout = likelihood or (lambda mean: Normal(mean, NOISE)), nn.Dropout(dropout)

    def forward(self, y=None, words=None):
        with pyro.plate("items", ITEMS, dim=-1):
            mean = self.dropout(self.attention(SCORES, VALUES, layout=Dense(event_dim=2)).context[..., 0, 0])
            pyro.sample("y", self.likelihood(mean), obs=y)
            if self.deep:
                with pyro.plate("positions", 3, dim=-2):
                    pyro.sample("words", Normal(mean, NOISE), obs=words)
        return mean if self.returns else None


@pytest.mark.parametrize("chunk_size", [1, 50])
@pytest.mark.parametrize("passed", [False, True], ids=["y is left out", "y is passed"])
def test_moments_are_those_of_the_mean_with_the_noise(chunk_size, passed):
    """Var[y] = Var[mean] + noise^2, E[y] = E[mean]; what is passed is no part of it; a model may return nothing."""
    count = 200 if chunk_size == 1 else 2000
    options = {"num_samples": count, "chunk_size": chunk_size, "seed": 0, "keep_samples": True}
    args = (torch.full((ITEMS,), 1e6),) if passed else ()
    mean = predict(AttentionGuide(Reader(), Weibull(2.0)), *args, **options)
    guide = AttentionGuide(Reader(deep=True, returns=False), Weibull(2.0))
    y, words = (predict(guide, *args, observed=name, **options) for name in ("y", "words"))
    assert (mean.observed, y.observed, words.observed) == (None, "y", "words")
    assert (y.samples.shape, words.samples.shape) == ((count, ITEMS), (count, 3, ITEMS))
    for found in (y.samples, *words.samples.unbind(1)):
        assert_mean(found, mean.mean)
        assert_mean((found - mean.mean).square(), mean.variance + NOISE**2)
    assert y.samples.unique(dim=0).shape == y.samples.shape  # each sample has noise of its own, also within a pass
    assert words.samples.flatten(1).T.corrcoef().fill_diagonal_(0).abs().max() < 0.4
    torch.testing.assert_close(predict(guide, *args, observed="y", **options).samples, y.samples)


def test_intervals_hold_observations_as_often_as_they_say():
    """Of data that the model draws, 90 % lie in intervals of y, and nearly none in those of the mean."""
    model, options = (
        Reader(prior=ScorePrior(LogNormal(0.5))),
        {"num_samples": 400, "chunk_size": 50, "quantiles": [0.05, 0.95], "seed": 0},
    )
    data = pyro.infer.Predictive(model, num_samples=300)()["y"]
    guide = AttentionGuide(model, FromPrior())  # which is exact before y is known
    covered = {}
    for observed in (None, "y"):
        found = predict(guide, observed=observed, **options).quantiles
        covered[observed] = ((data > found[0.05]) & (data < found[0.95])).float().mean(0)
    assert (covered["y"] - 0.9).abs().max() < 4 * (0.09 / 300 + 0.09 / 400) ** 0.5
    assert covered[None].max() < 0.7


@pytest.mark.parametrize("noise", ["none", "dropout", "both", ["attention"]], ids=str)
def test_the_noise_of_the_observation_stays(noise):
    guide = AttentionGuide(Reader(dropout=0.5), Weibull(2.0))
    found = predict(guide, observed="y", noise=noise, num_samples=200, seed=0, keep_samples=True)
    mean = predict(guide, noise=noise, num_samples=200, seed=0)
    assert_mean((found.samples - mean.mean).square(), mean.variance + NOISE**2)


def test_counts_and_classes():
    counts = predict(AttentionGuide(Reader(lambda mean: Poisson(3 + mean)), Weibull()), observed="y", num_samples=200)
    assert (counts.variance - 3.5).abs().max() < 1.5
    guide = AttentionGuide(Reader(lambda mean: Categorical(logits=torch.stack([mean, -mean], -1))), Weibull())
    with pytest.raises(TypeError, match=r"site 'y' returned torch.int64 \(labels, say\).* transform="):
        predict(guide, observed="y", num_samples=2)
    shares = predict(guide, observed="y", num_samples=200, transform=lambda y: nn.functional.one_hot(y, 2).float())
    assert (shares.mean[:, 0] - torch.sigmoid(torch.tensor(1.0))).abs().max() < 0.15


@pytest.mark.parametrize("name", ["attention", "z", "items", DRAWS])
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_sites_that_are_no_observation(name, chunk_size):
    guide = AttentionGuide(Reader(deep=True, returns=False), Weibull())
    with pytest.raises(ValueError, match=rf"observed is '{name}', expected .* the model has 'y', 'words'; weights are"):
        predict(guide, observed=name, num_samples=4, chunk_size=chunk_size)
