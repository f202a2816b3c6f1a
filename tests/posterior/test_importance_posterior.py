"""Posteriors that have seen the observations: against quadrature, NUTS, and sums over all keys."""

import math
import warnings

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Categorical as PyroCategorical
from pyro.distributions import Normal
from pyro.infer import MCMC, NUTS
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    Amortized,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    LatentAttention,
    LogNormal,
    MultiheadAttention,
    ScorePrior,
    Soft,
    Weibull,
    exact_alignments,
    sample_posterior,
)
from pyro_attention.alignments.exact import posterior_attention
from pyro_attention.alignments.posteriors import GumbelSoftmax
from pyro_attention.posterior.importance import ImportancePosterior, UnreliableWeights, importance_posterior
from tests.helpers import assert_mean

SCORES = torch.tensor([[[0.3, -0.2]], [[0.0, 0.5]], [[-0.4, 0.1]]])
VALUES, Y, NOISE = torch.tensor([[[0.0], [1.0]]]), torch.tensor([0.8, 0.1, 0.6]), 0.3


class TwoKeys(nn.Module):
    """Each number lies between the values of two keys."""

    def __init__(self, prior):
        super().__init__()
        self.attention = LatentAttention("attention", prior)

    def forward(self, y=Y, mask=True, noise=NOISE):
        with pyro.plate("data", len(SCORES)), poutine.mask(mask=mask):
            mean = self.attention(SCORES, VALUES, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
            pyro.sample("y", Normal(mean, noise), obs=y)


class Tilted(nn.Module):
    def forward(self, *_, **__):
        return SCORES + (Y[:, None, None] - 0.5) * torch.tensor([-2.0, 2.0])


GUIDES = {"prior": FromPrior(), "sees_y": Amortized(Tilted(), LogNormal(1.0)), "wide": LogNormal(1.3)}


def posterior_by_quadrature():
    """Mean and variance of the weight of key 1, and log evidence, from the normal difference of both log weights."""
    d = torch.linspace(-12, 12, 20001, dtype=torch.double).unsqueeze(-1)
    middle = (SCORES[..., 1] - SCORES[..., 0]).squeeze(-1)
    log_joint = Normal(middle, math.sqrt(2)).log_prob(d) + Normal(d.sigmoid(), NOISE).log_prob(Y)
    log_evidence = log_joint.logsumexp(0) + math.log(24 / 20000)
    weights = log_joint.softmax(0)
    mean = (weights * d.sigmoid()).sum(0)
    return mean, (weights * (d.sigmoid() - mean) ** 2).sum(0), log_evidence


@pytest.mark.parametrize("guide", GUIDES)
def test_any_guide_gives_the_posterior(guide):
    """Moments of resampled weights, and the log evidence, are those of quadrature; so is a seed's the second time."""
    q = AttentionGuide(TwoKeys(ScorePrior(LogNormal(1.0))), GUIDES[guide])
    mean, variance, log_evidence = posterior_by_quadrature()
    options = {"num_samples": 20_000, "chunk_size": 5000, "seed": 0}
    found = importance_posterior(q, **options)
    torch.testing.assert_close(found.log_evidence.double(), log_evidence, atol=0.03, rtol=0)
    drawn = found.resample(seed=1)["attention"]
    assert drawn.shape == (20_000, 3, 1, 2)
    one = drawn[..., 0, 1].double()
    error = (variance / found.effective_sample_size).sqrt()
    assert ((one.mean(0) - mean).abs() < 4 * error).all()
    torch.testing.assert_close(one.var(0), variance, rtol=0.1, atol=0)
    assert found.trusted.all()
    assert (found.effective_sample_size < 20_000).all()
    assert torch.equal(drawn, importance_posterior(q, **options).resample(seed=1)["attention"])


@pytest.mark.slow
def test_draws_given_the_observations_are_those_of_nuts():
    """Of three keys with two numbers each, from no closed form and no quadrature: mean and spread of the weights."""
    values = torch.tensor([[[0.0, 0.5], [1.0, 0.0], [0.3, -1.0]]])
    attention = LatentAttention("attention", ScorePrior(LogNormal(1.0)))

    def model(y):
        with pyro.plate("data", len(y)):
            mean = attention(torch.zeros(len(y), 1, 3), values, layout=Dense(event_dim=2)).context.squeeze(-2)
            pyro.sample("y", Normal(mean, NOISE).to_event(1), obs=y)

    y = torch.tensor([[0.9, -0.1], [0.2, -0.6]])
    torch.manual_seed(0)
    mcmc = MCMC(NUTS(model, max_tree_depth=4), num_samples=300, warmup_steps=100, disable_progbar=True)
    mcmc.run(y)
    chain = mcmc.get_samples()["attention"].softmax(-1).squeeze(-2).double()
    guide = AttentionGuide(model, FromPrior())
    found = importance_posterior(guide, y, num_samples=20_000, chunk_size=5000, seed=0)
    drawn, size = found.resample()["attention"].squeeze(-2).double(), found.effective_sample_size.view(-1, 1)
    effective = mcmc.diagnostics()["attention"]["n_eff"].squeeze(-2).clamp(max=300).amin(-1, keepdim=True)
    error = (drawn.var(0) / size + chain.var(0) / effective).sqrt()
    assert ((drawn.mean(0) - chain.mean(0)).abs() < 4 * error).all()
    assert ((drawn.mean(0) - 1 / 3).abs() > 8 * error).any(-1).all()  # it can fail: the prior is elsewhere
    torch.testing.assert_close(drawn.std(0), chain.std(0), rtol=0.3, atol=0)


def test_one_draw_a_pass_is_as_good_as_chunks():
    q = AttentionGuide(TwoKeys(ScorePrior(LogNormal(1.0))), FromPrior())
    found = [importance_posterior(q, num_samples=200, chunk_size=size, seed=1) for size in (1, 50)]
    assert found[0].log_importance_weights.shape == found[1].log_importance_weights.shape == (200, 3)
    assert_mean(found[0].log_importance_weights.exp() - found[1].log_importance_weights.exp(), 0)


def test_what_is_masked_keeps_its_prior():
    q = AttentionGuide(TwoKeys(ScorePrior(LogNormal(1.0))), FromPrior())
    found = importance_posterior(q, mask=torch.tensor([True, False, True]), num_samples=50)
    assert (found.log_importance_weights[:, 1] == 0).all()
    resampled = found.resample()["attention"][:, 1]
    assert torch.equal(resampled, found.samples["attention"][:, 1])


@pytest.mark.filterwarnings("ignore::pyro_attention.posterior.importance.UnreliableWeights")
def test_resampling_follows_the_weights():
    """Each item by itself, each draw as often as its weight says, to less than one; what is in an item stays whole."""
    log_weights = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.0, 0.0, 1.0, 0.0]]).log().T
    own, inner = torch.arange(4.0).view(4, 1, 1).expand(4, 2, 5), torch.arange(4.0).view(4, 1, 1, 1).expand(4, 2, 3, 5)
    found = ImportancePosterior({"own": own.unsqueeze(2), "inner": inner}, log_weights, (-2,), {"own": 2, "inner": 2})
    drawn = found.resample()
    for values in drawn.values():
        assert (values[:, 1] == 2).all()
        counts = (values[:, 0, 0, 0].unsqueeze(-1) == torch.arange(4.0)).sum(0)
        assert ((counts - 4 * log_weights[:, 0].exp()).abs() < 1).all()


def test_pareto_k():
    """It grows with the spread of the weights, 1 / k moments being finite; with ties it is as large as can be."""
    torch.manual_seed(0)
    uniform = torch.rand(4000, 3).clamp(min=1e-6)
    k = torch.tensor([0.2, 0.5, 1.0])
    found = ImportancePosterior({}, -k * uniform.log(), (), {}).pareto_k
    torch.testing.assert_close(found, k, atol=4 * 2 / (3 * 4000**0.5) ** 0.5, rtol=0)  # (1 + k) / sqrt(size)
    # one draw alone; equal ones; equal up to rounding; a third of the tail apart from ties, at the edge of Pyro's fit
    lonely = torch.full((100, 4), -math.inf)
    lonely[0], lonely[:, 1:] = 0.0, 0.0
    lonely[:16, 2], lonely[:15, 3] = 1e-7, torch.arange(1.0, 16.0)
    assert ImportancePosterior({}, lonely, (), {}).trusted.tolist() == [False, True, True, False]
    # a heavy tail of weights that are nearly equal says nothing, nor do five of them that are
    alike = ImportancePosterior({}, 1e-3 / (torch.arange(1000.0) + 1).view(-1, 1), (), {})
    assert alike.pareto_k > 0.7
    assert alike.trusted
    assert ImportancePosterior({}, torch.zeros(5, 1), (), {}).trusted
    assert not ImportancePosterior({}, torch.zeros(1, 1), (), {}).trusted


def test_warns_of_weights_that_few_draws_carry():
    q = AttentionGuide(TwoKeys(ScorePrior(LogNormal(1.0))), FromPrior())
    with pytest.warns(UnreliableWeights, match="in 3 of 3 items.*sees the observations"):
        importance_posterior(q, noise="attention", num_samples=50, y=torch.full((3,), 40.0)).resample()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importance_posterior(q, num_samples=200).resample()
        soft = AttentionGuide(TwoKeys(ScorePrior(LogNormal(0.01))), FromPrior())
        importance_posterior(soft, num_samples=5).resample()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "none"}, "noise is 'none', but draws without noise have no weights"),
        ({"y": None}, "the model observes nothing"),
        ({"y": torch.full((3,), 1e30)}, "the weights of 3 items vanish in all 30 draws"),
        ({"y": Y.where(Y > 0.5, torch.nan)}, r"at site 'y':[\s\S]*nan[\s\S]*poutine.mask"),
    ],
)
def test_mistakes(options, message):
    q = AttentionGuide(TwoKeys(ScorePrior(LogNormal(1.0))), FromPrior())
    with pytest.raises(ValueError, match=message):
        importance_posterior(q, num_samples=30, **options)


# The key that explains the observation


class Reader(nn.Module):
    """A word for each query ``[sentences, words]``, from the key that it reads; one key is padding."""

    def __init__(self, prior):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.scores, self.values = (torch.randn(2, 3, 1, 4, generator=generator), torch.randn(2, 1, 1, 4, 5))
        self.words = torch.tensor([[0, 1, 2], [3, 4, 0]])
        self.attention = LatentAttention("read", prior)
        self.mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)[:, None, None]

    def forward(self, seen=True):
        with pyro.plate("sentences", 2, dim=-2), pyro.plate("words", 3, dim=-1):
            layout = Dense(self.mask, event_dim=2)
            context = self.attention(self.scores, self.values, layout=layout).context.squeeze(-2)
            with poutine.mask(mask=seen):
                pyro.sample("word", PyroCategorical(logits=2 * context), obs=self.words)


@pytest.mark.parametrize("family", [Soft(), Weibull(2.0)], ids=["soft", "weibull"])
def test_explaining_keys(family):
    """By hand, from the mean weights and the likelihood of every key; a masked word keeps its weights."""
    torch.manual_seed(0)
    model, seen = Reader(FixedGammaPrior()), torch.tensor([[True, True, True], [True, False, True]])
    guide = AttentionGuide(model, family)
    count = 300 if isinstance(family, Weibull) else 1
    found, chunks = (posterior_attention(guide, seen, num_samples=count, chunk_size=n)["read"] for n in (1, 100))
    weights = sample_posterior(guide, seen, num_samples=2000, chunk_size=200)["read"].mean(0).squeeze(-2)
    log_f = (2 * model.values[:, 0, 0]).log_softmax(-1)  # [sentences, keys, words]
    likelihood = torch.stack([log_f[i].T[model.words[i]] for i in range(2)]).exp().where(seen.unsqueeze(-1), 1)
    expected = weights * likelihood
    tolerance = {"atol": 1e-6, "rtol": 1e-5} if isinstance(family, Soft) else {"atol": 0.04, "rtol": 0}
    for one in (found, chunks):
        torch.testing.assert_close(one.squeeze(-2), expected / expected.sum(-1, keepdim=True), **tolerance)
    assert (found[1, ..., 3] == 0).all()


def test_soft_attention_explains_as_the_alignment_with_its_weights():
    torch.manual_seed(0)
    model = Reader(FixedGammaPrior())
    alignment = Reader(AlignmentPrior())
    alignment.values = model.values
    found = posterior_attention(AttentionGuide(model, Soft()), num_samples=1)["read"]
    torch.testing.assert_close(found, exact_alignments(alignment)["read"])


def test_keys_are_compared_under_one_draw_of_other_latents():
    """By Bayes' rule at the shift that was drawn, which was another one for every key."""
    attention, shifts = LatentAttention("read", FixedGammaPrior()), []
    values, y = torch.tensor([[[0.0], [1.0], [1.0]]]), torch.tensor([0.5, 0.0])

    def model():
        shifts.append(pyro.sample("shift", Normal(0.0, 30.0)))
        with pyro.plate("queries", 2):
            context = attention(torch.zeros(2, 1, 3), values, layout=Dense(event_dim=2)).context[..., 0, 0]
            later = pyro.sample("later", Normal(context, 1e-3))  # follows the key
            pyro.sample("y", Normal(later + shifts[-1] - shifts[-1].detach(), 0.3), obs=y)
            pyro.sample("z", Normal(shifts[-1] + context, 0.3), obs=shifts[-1] + y)

    torch.manual_seed(0)
    found = posterior_attention(AttentionGuide(model, Soft(), keep_prior=["shift", "later"]), num_samples=1)["read"]
    assert len({shift.item() for shift in shifts[1:]}) == 1
    expected = (2 * Normal(values[0, :, 0], 0.3).log_prob(y.unsqueeze(-1))).softmax(-1).unsqueeze(-2)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("noise", [10.0, 1.0, 0.1, 0.03, 0.01])
@pytest.mark.parametrize("hidden", [[False, False, False], [False, False, True], [True, True, True]])
def test_explaining_keys_that_explain_little(noise, hidden):
    """Other keys, hidden ones too (where the others mix), may be more likely by so much that products underflow."""
    values, y, mask = torch.tensor([[[0.0], [2.0], [1.0]]]), torch.tensor([1.0, 0.9]), ~torch.tensor(hidden)
    found = []
    for prior in (FixedGammaPrior(), AlignmentPrior()):
        attention = LatentAttention("read", prior)

        def model(attention=attention):
            with pyro.plate("queries", 2), poutine.mask(mask=mask.any()):
                layout = Dense(mask, event_dim=2)
                context = attention(torch.zeros(2, 1, 3), values, layout=layout).context
                pyro.sample("y", Normal(context.squeeze(-1).squeeze(-1), noise), obs=y)

        soft = prior.kind == FixedGammaPrior.kind
        guide = AttentionGuide(model, Soft())
        found.append((posterior_attention(guide, num_samples=1) if soft else exact_alignments(model))["read"])
    torch.testing.assert_close(*found)
    assert found[0].sum(-1).tolist() == [[0.0 if all(hidden) else 1.0]] * 2


def test_relaxed_draws_have_no_importance_weights():
    """Their log probability is an expectation over keys, so that the weights would mean nothing."""
    model = TwoKeys(AlignmentPrior())
    for family in (GumbelSoftmax(0.5), Amortized(Tilted(), GumbelSoftmax(0.5))):
        guide = AttentionGuide(model, family)
        calls = (lambda: importance_posterior(guide, num_samples=5), lambda: EvidenceELBO(5).loss(model, guide))  # noqa: B023
        for call in calls:
            with pytest.raises(ValueError, match=r"site 'attention': draws of RelaxedAlignment .* Categorical\("):
                call()
    keys = importance_posterior(AttentionGuide(model, Categorical(enumerate=False)), num_samples=2000, seed=0)
    drawn = keys.resample(seed=0)["attention"]
    assert_mean(drawn, exact_alignments(model)["attention"])


def test_explaining_keys_need_one_head_in_plates():
    layer = MultiheadAttention(4, 2, name="layer")

    def model(x):
        with pyro.plate("data", len(x)):
            pyro.sample("y", Normal(layer(x, x, x)[0].mean((-1, -2)), 1.0), obs=torch.zeros(len(x)))

    guide = AttentionGuide(model, Soft())
    with pytest.raises(ValueError, match=r"site 'layer' has GammaWeights.*, expected positive weights of one head"):
        posterior_attention(guide, torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="site is 'other', expected one of 'layer'"):
        posterior_attention(guide, torch.zeros(2, 3, 4), site="other")
