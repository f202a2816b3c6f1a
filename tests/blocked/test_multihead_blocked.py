"""BlockedMultiheadAttention is the dense layer with the same noise, or says what cannot be blocked."""

import copy

import pyro
import pytest
import torch
from pyro.infer import Predictive, TraceMeanField_ELBO
from pyro.nn import PyroModule

from pyro_attention import (
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Dirichlet,
    DoublyNormalized,
    FixedGammaPrior,
    Gamma,
    LogNormal,
    MultiheadAttention,
    Soft,
    Weibull,
    WidthNetwork,
    check_model,
    predict,
    sample_posterior,
)
from pyro_attention.blocked import BlockedMultiheadAttention, BlockedValue
from pyro_attention.blocked import distributions as module
from pyro_attention.blocked.attention import READS
from pyro_attention.blocked.distributions import NOISE, BlockedPosterior, Pairs
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.draws import BroadcastWarning
from pyro_attention.families.distribution import around_scores
from pyro_attention.families.lognormal import FixedLogNormalPrior
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.layers.scores import ScaledDotProduct
from tests.helpers import make_prior

BATCH, LENGTH, HEADS, WIDTH = 3, 6, 2, 8
PADDING = torch.arange(LENGTH) >= torch.tensor([[6], [3], [0]])  # nothing, the end, everything
MASKS = {
    "none": {},
    "padded keys": {"key_padding_mask": PADDING},
    "padded": {"key_padding_mask": PADDING, "query_padding_mask": PADDING},
    "causal": {"is_causal": True},
    "causal, padded in front": {"is_causal": True, "key_padding_mask": PADDING.flip(-1)},
    "causal, padded": {"is_causal": True, "key_padding_mask": PADDING, "query_padding_mask": PADDING},
}
FAMILIES = {
    "weibull": lambda: Weibull(torch.tensor([3.0, 5.0]), learnable=True),
    "lognormal": lambda: LogNormal(0.4, learnable=True),
    "soft": Soft,
}


class Model(PyroModule):
    """Self-attention, observed through a sum of squares."""

    def __init__(self, prior="gamma_contextual", **options):
        super().__init__()
        prior = make_prior(prior, heads=HEADS, width=WIDTH // HEADS) if isinstance(prior, str) else prior
        self.layer = BlockedMultiheadAttention(WIDTH, HEADS, name="attention", prior=prior, **options)

    def dense(self):
        """The same with all weights in memory."""
        model = copy.deepcopy(self)
        model.layer.__class__ = MultiheadAttention
        return model

    def forward(self, x, **arguments):
        with pyro.plate("batch", x.size(-3), dim=-1):
            context = self.layer(x, x, x, **{"need_weights": False, **arguments})[0]
            pyro.factor("output", -context.square().sum((-1, -2)))
        return context


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@pytest.fixture
def blocked():
    model = Model()
    return model, AttentionGuide(model, Weibull())


# against dense attention


class DenseNoise(pyro.poutine.messenger.Messenger):
    """Gives a dense site the noise that a blocked one would draw."""

    def _pyro_sample(self, msg):
        q = msg["fn"]
        if type(q) not in NOISE:
            return
        (kind, scale), shape = NOISE[type(q)], q.full_shape
        table = CounterNoise(kind, int(torch.randint(2**63 - 1, ())), (shape[:-2].numel(), *shape[-2:]))
        location = getattr(q, q.parameter_names[0])
        msg["value"] = location + scale(q) * table.block(dtype=torch.float64).view(shape)


def evaluate(model, family, x, masks, elbo=None):
    """Loss, KL, context and the gradients of everything."""
    elbo, guide = elbo or AttentionELBO(), AttentionGuide(model, family)
    with DenseNoise():
        pyro.set_rng_seed(0)
        loss = elbo.differentiable_loss(model, guide, x, **masks)
        pyro.set_rng_seed(0)
        context = guide.run(x, **masks).output
    leaves = [x, *model.parameters(), *family.parameters()]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return loss, getattr(elbo, "kl_record", {}).get("attention", 0.0), context, *gradients


CASES = [("gamma_contextual", "weibull", masks, True) for masks in MASKS]
for prior in ("gamma_fixed", "lognormal_fixed", "lognormal_contextual"):
    CASES += [(prior, "weibull", masks, True) for masks in ("padded", "causal, padded in front")]
CASES += [(prior, "lognormal", "padded", False) for prior in ("gamma_fixed", "lognormal_contextual")]
CASES += [("gamma_contextual", "weibull", "causal, padded in front", False), ("gamma_fixed", "soft", "padded", True)]


@pytest.mark.parametrize(("prior", "family", "masks", "normalize"), CASES)
def test_equals_dense(prior, family, masks, normalize, x, monkeypatch):
    masks = MASKS[masks]
    monkeypatch.setattr(module, "_WINDOW_ENTRIES", 2 * BATCH * HEADS * LENGTH)  # two queries at a time
    prior = FixedLogNormalPrior(scale=2.0) if prior == "lognormal_fixed" else prior
    model, x = Model(prior, normalize_scores=normalize).double(), x.double().requires_grad_()
    posterior = FAMILIES[family]().double()
    actual = evaluate(model, posterior, x, masks)
    stock = evaluate(model, posterior, x, masks, TraceMeanField_ELBO())
    for a, b in zip(actual, evaluate(model.dense(), posterior, x, masks), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stock[0], actual[0], rtol=1e-12, atol=1e-12)


def test_sampled_kl(x, monkeypatch):
    """Through log_prob of prior and posterior, with gradients."""
    monkeypatch.setattr(module, "_WINDOW_ENTRIES", 1)
    model, x, results = Model().double(), x.double().requires_grad_(), []
    posterior = LogNormal(0.4, learnable=True).double()
    for each in (model, model.dense()):
        results.append(evaluate(each, posterior, x, MASKS["causal, padded"], AttentionELBO(kl="sampled")))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_posterior_samples_predictions_and_particles(blocked, x):
    model, guide = blocked
    guide = AttentionGuide(model, Weibull(2.0))
    weights = sample_posterior(guide, x, num_samples=20, chunk_size=10, seed=0, **MASKS["padded keys"])["attention"]
    torch.testing.assert_close(weights.sum(-1), (~PADDING).any(-1).float()[:, None, None].expand(20, -1, 2, 6))
    assert weights[:, 0].std(0).min() > 0
    mean = predict(guide, x, num_samples=2, noise="none")
    assert predict(guide, x, num_samples=3).variance.max() > mean.variance.max() == 0
    torch.testing.assert_close(mean.mean, AttentionGuide(model, Soft()).run(x).output)
    sharp = AttentionGuide(model, Weibull(1e6))
    options = {"kl_weight": 0, "num_particles": 2, "max_plate_nesting": 1}
    losses = [AttentionELBO(**options).loss(model, sharp, x)]
    with pytest.warns(BroadcastWarning, match="site 'attention' holds no numbers that could be compared"):
        losses.append(AttentionELBO(**options, vectorize_particles=True).loss(model, sharp, x))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(RuntimeError, match=r"pyro_attention\.sample_posterior \(in place of Pyro's Predictive\)"):
        Predictive(model, guide=guide, num_samples=2)(x)


@pytest.mark.parametrize("masks", ["padded", "causal, padded in front"])
def test_check_model_and_a_given_value(masks, blocked, x):
    contexts, reports = [], []
    for model in (blocked[0].dense(), blocked[0]):
        given = pyro.condition(model, {"attention": torch.ones(BATCH, HEADS, LENGTH, LENGTH).tril()})
        guide = AttentionGuide(model, Weibull())
        contexts.append(given(x, **MASKS[masks]))
        reports.append(check_model(model, guide, x, elbo=AttentionELBO(kl_weight=1e-3), **MASKS[masks]))
    torch.testing.assert_close(*contexts)
    assert reports[1].ok
    assert reports[0].sites[0].masked == pytest.approx(reports[1].sites[0].masked)
    report = check_model(model, guide, x, key_padding_mask=torch.ones(BATCH, LENGTH, dtype=torch.bool))
    assert any("site 'attention': every entry is masked" in problem for problem in report.problems)


# the value of a site


def test_value(blocked, x):
    value = blocked[1](x, **MASKS["causal"])["attention"]
    assert (value.shape, value.dtype) == ((BATCH, HEADS, LENGTH, LENGTH), torch.float32)
    everything = value.window(slice(None))
    assert everything.requires_grad
    for rows in (slice(1, 3), slice(-2, None), slice(3, 3), slice(0, 6, 2)):
        torch.testing.assert_close(value.window(rows), everything[..., rows, :])
    with pytest.raises(RuntimeError, match=r"site 'attention'.*materialize first, some queries by value\.window"):
        torch.stack([value, value])


# families and priors of one's own


class Sharper(Weibull):
    """Its spread depends on the scores."""

    def posterior(self, call, prior):
        k = 1 + call.scores.exp()
        return around_scores(WeibullWeights, call, prior, call.scores - torch.lgamma(1 + 1 / k), k)


class Steeper(Weibull):
    """Multiplies the scores."""

    def posterior(self, call, prior):
        return WeibullWeights(2 * call.scores, self.value(call), layout=call.layout, shape=prior.full_shape)


class Biased(Weibull):
    """Prefers some keys, beyond their scores."""

    def posterior(self, call, prior):
        location = call.scores + torch.arange(call.scores.size(-1))
        return around_scores(WeibullWeights, call, prior, location, self.value(call))


class Own(FixedGammaPrior):
    """Somebody's own prior, of which it is said what it reads: a subclass may read the scores."""


def test_own_prior(x, monkeypatch):
    monkeypatch.setitem(READS, Own, "nothing")
    losses = []
    for prior in (Own(2.0), FixedGammaPrior(2.0)):
        pyro.set_rng_seed(0)
        model = Model(prior)
        losses.append(AttentionELBO().loss(model, AttentionGuide(model, Weibull()), x))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("family", "message"),
    [
        *((family, r"'attention'.*draws Weibull and LogNormal weights around its scores.*use MultiheadAttention") for
          family in (Gamma(), Amortized(torch.nn.Identity(), Weibull()), Sharper(), Steeper(), Biased(),
                      Weibull(WidthNetwork(WIDTH // HEADS)), LogNormal(WidthNetwork(1, of="scores")))),
        (Dirichlet(), "fits priors of kind"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_families_that_are_not_blocked(family, message, blocked, x):
    with pytest.raises(ValueError, match=message):
        AttentionGuide(blocked[0], family).run(x)


def test_scores_that_overflow_and_no_guide(blocked, x):
    with pytest.raises(ValueError, match=r"'attention': \d+ of 36 rows of scores are NaN or infinite; check"):
        blocked[1].run(x * 1e25)
    with pytest.raises(NotImplementedError, match="run the model under an AttentionGuide"):
        pyro.poutine.trace(blocked[0])(x)


# what is not blocked


class OtherScore(ScaledDotProduct):
    """Might be no product."""


AT_CALLS = [
    ({}, {"attn_mask": torch.zeros(LENGTH, LENGTH)}, "attn_mask, only key_padding_mask"),
    ({}, {"key_padding_mask": torch.ones(BATCH, LENGTH)}, "a key_padding_mask with numbers other than 0 and -inf"),
    ({"dropout": 0.1}, {}, r"dropout of the weights \(here 0.1 in training mode\)"),
    ({}, {"need_weights": True}, "need_weights=True; pass need_weights=False"),
]
OF_LAYERS = [
    ({"normalizer": DoublyNormalized()}, {}, "the normalizer DoublyNormalized, only Softmax"),
    ({"prior": Own()}, {}, "the prior Own, only Gamma and LogNormal priors that do not read the scores"),
]


@pytest.mark.parametrize(("options", "arguments", "message"), AT_CALLS + OF_LAYERS)
def test_what_is_not_blocked(options, arguments, message, x):
    """A layer that never can be says so when it is built."""
    with pytest.raises(ValueError, match=f"site 'attention'.*not support {message}.*; (or )?use "):
        AttentionGuide(Model(**options), Weibull())(x, **arguments)


def test_other_scores(x):
    model = Model()
    model.layer.score = OtherScore()
    with pytest.raises(ValueError, match="not support scores by OtherScore, only ScaledDotProduct"):
        model(x)
    dropping = Model(dropout=0.1).eval()
    assert type(AttentionGuide(dropping, Weibull())(x)["attention"]) is BlockedValue


def test_a_seed_is_drawn_on_the_cpu():
    """Whatever torch's default device is: a GPU would have to be waited for in every call."""
    pairs = Pairs(torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    with torch.device("meta"):
        assert BlockedPosterior(pairs, None, site="attention").rsample().seed >= 0
