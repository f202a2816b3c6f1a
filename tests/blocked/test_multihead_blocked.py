"""BlockedMultiheadAttention is the dense layer with the same noise, and says what it cannot do."""

import pyro
import pytest
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from pyro.nn import PyroModule
from pyro.optim import Adam

from pyro_attention import (
    Amortised,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dirichlet,
    FixedGammaPrior,
    Gamma,
    LogNormal,
    Soft,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from pyro_attention.blocked import BlockedMultiheadAttention, attend_blocked
from pyro_attention.blocked import distributions as pairs_module
from pyro_attention.blocked import distributions as value_module
from pyro_attention.blocked.attention import READS
from pyro_attention.blocked.distributions import NOISE
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.families.base import PRIORS
from pyro_attention.families.weibull import WeibullWeights
from tests.helpers import assert_mean, make_prior

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

    def forward(self, x, **masks):
        with pyro.plate("batch", x.size(-3), dim=-1):
            context = self.layer(x, x, x, need_weights=False, **masks)[0]
            pyro.factor("output", -context.square().sum((-1, -2)))
        return context


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@pytest.fixture
def blocked(x):
    model = Model()
    return model, AttentionGuide(model, Weibull())


class DenseNoise(pyro.poutine.messenger.Messenger):
    """Gives a dense site the noise that a blocked one would draw."""

    def _pyro_sample(self, msg):
        q = msg["fn"]
        if type(q) not in NOISE:
            return
        (kind, scale), shape = NOISE[type(q)], q.full_shape
        table = CounterNoise(kind, int(torch.randint(2**63 - 1, ())), (shape[:-2].numel(), *shape[-2:]))
        location = getattr(q, q.parameter_names[0])
        msg["value"] = location + scale(q) * table.dense(dtype=torch.float64).view(shape)


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


BLOCKED = [name for name in PRIORS if name.startswith(("gamma", "lognormal"))]
CASES = [(prior, "weibull", masks, True) for prior in BLOCKED for masks in MASKS]
CASES += [(prior, "lognormal", "padded", True) for prior in BLOCKED]
CASES += [(prior, "weibull", masks, False) for prior in BLOCKED for masks in ("padded", "causal, padded in front")]
CASES += [("gamma_contextual", "soft", masks, True) for masks in MASKS]


@pytest.mark.parametrize(("prior", "family", "masks", "normalize"), CASES)
def test_equals_dense(prior, family, masks, normalize, x, monkeypatch):
    masks = MASKS[masks]
    monkeypatch.setattr(pairs_module, "_WINDOW_ENTRIES", 2 * BATCH * HEADS * LENGTH)  # two queries at a time
    model, x = Model(prior, normalize_scores=normalize).double(), x.double().requires_grad_()
    posterior = FAMILIES[family]().double()
    actual = evaluate(model, posterior, x, masks)
    stock = evaluate(model, posterior, x, masks, TraceMeanField_ELBO())
    model.layer.implementation = "dense"
    expected = evaluate(model, posterior, x, masks)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stock[0], expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", ["weibull", "lognormal"])
def test_sampled_kl(family, x, monkeypatch):
    """Through log_prob of prior and posterior, with gradients."""
    monkeypatch.setattr(pairs_module, "_WINDOW_ENTRIES", 1)
    model, x, masks = Model().double(), x.double().requires_grad_(), MASKS["causal, padded"]
    posterior = FAMILIES[family]().double()
    actual = evaluate(model, posterior, x, masks, AttentionELBO(kl="sampled"))
    model.layer.implementation = "dense"
    expected = evaluate(model, posterior, x, masks, AttentionELBO(kl="sampled"))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_repeatable(blocked, x):
    guide = blocked[1]
    contexts = []
    for seed in (0, 0, 1):
        pyro.set_rng_seed(seed)
        contexts.append(guide.run(x).output)
    assert torch.equal(contexts[0], contexts[1])
    assert not torch.equal(contexts[0], contexts[2])
    assert not torch.equal(guide.run(x).output, guide.run(x).output)


@pytest.mark.parametrize("parallel", [False, True])
def test_stock_predictive_points_to_sample_posterior(parallel, blocked, x):
    model, guide = blocked
    with pytest.raises(RuntimeError, match=r"pyro_attention\.sample_posterior \(in place of Pyro's Predictive\)"):
        Predictive(model, guide=guide, num_samples=2, parallel=parallel)(x)


def test_posterior_samples(blocked, x):
    model, guide = blocked
    weights = sample_posterior(guide, x, num_samples=400, chunk_size=200, seed=0, **MASKS["padded keys"])["attention"]
    assert weights.shape == (400, BATCH, HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(weights.sum(-1), (~PADDING).any(-1).float()[:, None, None].expand(400, -1, 2, 6))
    logs = sample_posterior(guide, x, num_samples=2, log_weights=True, **MASKS["padded keys"])["attention"]
    assert logs.shape == (2, BATCH, HEADS, LENGTH, LENGTH)
    model.layer.implementation = "dense"
    expected = sample_posterior(guide, x, num_samples=4000, chunk_size=2000, **MASKS["padded keys"])["attention"]
    assert_mean(weights[:, 0], expected[:, 0].mean(0), errors=5)


def test_predictions(blocked, x):
    model, guide = blocked
    assert predict(guide, x, num_samples=3).variance.max() > 0
    mean = predict(guide, x, num_samples=2, noise="none")
    assert mean.variance.max() == 0
    torch.testing.assert_close(mean.mean, AttentionGuide(model, Soft()).run(x).output)


@pytest.mark.parametrize(
    "read",
    [lambda guide, x: sample_posterior(guide, x, num_samples=1), lambda guide, x: guide(x)["attention"].to_dense()],
    ids=["samples", "dense"],
)
def test_weights_beyond_memory_are_read_by_windows(read, blocked, x, monkeypatch):
    monkeypatch.setattr(value_module, "_LARGEST", BATCH * HEADS * LENGTH**2 - 1)
    with pytest.raises(ValueError, match=r"weights of shape \(3, 2, 6, 6\) would take .* GB.*value.window"):
        read(blocked[1], x)


def test_vectorised_particles(blocked, x):
    model, guide = blocked
    losses = []
    for vectorised in (False, True):
        elbo = AttentionELBO(num_particles=100, vectorize_particles=vectorised, max_plate_nesting=1)
        losses.append(elbo.loss(model, guide, x))
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_svi_trains(x):
    model = Model()
    svi = SVI(model, AttentionGuide(model, Weibull(learnable=True)), Adam({"lr": 0.01}), AttentionELBO())
    losses = [svi.step(x) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("prior", ["gamma_contextual", "lognormal_contextual"])
def test_half_precision(prior, x):
    model = Model(prior)
    guide, elbos = AttentionGuide(model, LogNormal()), [AttentionELBO() for _ in range(3)]
    expected = elbos[0].loss(model, guide, x)
    with torch.autocast("cpu", torch.bfloat16):
        elbos[1].loss(model, guide, x)
    model.bfloat16()
    assert guide.run(x.bfloat16()).output.dtype == torch.bfloat16
    elbos[2].loss(model, guide, x.bfloat16())
    kl = [elbo.kl_record["attention"] for elbo in elbos]
    assert expected > 0
    assert {value.dtype for value in kl} == {torch.float32}
    torch.testing.assert_close(kl[1:], [kl[0], kl[0]], rtol=0.02, atol=0)


@pytest.mark.parametrize("masks", MASKS)
def test_check_model(masks, blocked, x):
    model, guide = blocked
    reports = []
    for implementation in ("blocked", "dense"):
        model.layer.implementation = implementation
        reports.append(check_model(model, guide, x, elbo=AttentionELBO(kl_weight=1e-3), **MASKS[masks]))
    assert reports[0].ok
    (site,), (expected,) = (report.sites for report in reports)
    assert site.masked == pytest.approx(expected.masked)
    assert (site.masked == 0) == (masks == "none")
    assert site.gradient_norm is None
    assert expected.gradient_norm > 0


@pytest.mark.parametrize("masked", ["query_padding_mask", "key_padding_mask"])
@pytest.mark.parametrize("implementation", ["blocked", "dense"])
def test_check_model_reports_a_site_that_is_masked_altogether(implementation, masked, blocked, x):
    model, guide = blocked
    model.layer.implementation = implementation
    report = check_model(model, guide, x, **{masked: torch.ones(BATCH, LENGTH, dtype=torch.bool)})
    assert report.sites[0].masked == 1
    assert any("site 'attention': every entry is masked" in problem for problem in report.problems)


def test_a_given_value_is_used(x):
    model, log_weights = Model(), torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    given = pyro.condition(model, {"attention": log_weights})
    blocked = given(x, **MASKS["causal"])
    model.layer.implementation = "dense"
    torch.testing.assert_close(given(x, **MASKS["causal"]), blocked)


q = torch.zeros(BATCH, HEADS, LENGTH, 4)


@pytest.mark.parametrize(
    ("tensors", "masks", "error", "message"),
    [
        ((q[0, 0], q, q), {}, ValueError, r"queries have shape \(6, 4\), expected \[..., heads, positions, width\]"),
        ((q, q, q[..., 1:, :]), {}, ValueError, r"values have shape \(3, 2, 5, 4\)"),
        ((q[..., 1:], q, q), {}, ValueError, r"queries of shape \(3, 2, 6, 3\) do not fit keys of shape"),
        ((q, q.long(), q), {}, TypeError, "keys have dtype torch.int64, expected floating point"),
        ((q, q, q), {"key_mask": torch.ones(3, 6)}, TypeError, "mask has dtype torch.float32"),
        ((q, q, q), {"query_mask": PADDING[:, 1:]}, ValueError, r"query_mask has shape \(3, 5\), expected \(3, 6\)"),
        ((q, q, q), {"key_mask": PADDING[:2]}, ValueError, r"key_mask has shape \(2, 6\), expected \(3, 6\)"),
    ],
)
def test_wrong_tensors(tensors, masks, error, message):
    with pytest.raises(error, match=message):
        attend_blocked(Model().layer.attention, *tensors, **masks)


class Sharper(Weibull):
    """Its spread depends on the scores."""

    def posterior(self, prior, *args):
        k = 1 + prior.scores.exp()
        return prior.matched(WeibullWeights, prior.scores - torch.lgamma(1 + 1 / k), k)


class ScaledByScores(LogNormal):
    """So does its spread, by another method."""

    def value(self, prior):
        return torch.exp(prior.scores)


class Unmatched(Weibull):
    """Does not let the prior make its distribution."""

    def posterior(self, prior, *args):
        return WeibullWeights(prior.scores, self.value(prior), layout=prior.layout, shape=prior.full_shape)


class Biased(Weibull):
    """Prefers some keys, beyond their scores."""

    def posterior(self, prior, *args):
        return prior.matched(WeibullWeights, prior.scores + torch.arange(LENGTH), self.value(prior))


class Halved(Weibull):
    """Half the concentration."""

    def value(self, prior):
        return super().value(prior) / 2


class Own(FixedGammaPrior):
    """Somebody's own prior, of which it is said what it reads: a subclass may read the scores."""


@pytest.mark.parametrize(
    "pairs",
    [((FixedGammaPrior(2.0), Halved(8.0)), (FixedGammaPrior(2.0), Weibull(4.0))),
     ((Own(2.0), Weibull()), (FixedGammaPrior(2.0), Weibull()))],
    ids=["family", "prior"],
)  # fmt: skip
def test_own_classes(pairs, x, monkeypatch):
    monkeypatch.setitem(READS, Own, "nothing")
    losses, contexts = [], []
    for prior, family in pairs:
        pyro.set_rng_seed(0)
        model = Model(prior)
        guide = AttentionGuide(model, family)
        losses.append(AttentionELBO().loss(model, guide, x))
        contexts.append(guide.run(x).output)
    assert losses[0] == losses[1]
    torch.testing.assert_close(*contexts)


@pytest.mark.parametrize(
    "family",
    [Gamma(), Amortised(torch.nn.Identity(), Weibull()), Sharper(), ScaledByScores(), Unmatched(), Biased()],
    ids=lambda family: type(family).__name__,
)  # fmt: skip
def test_families_that_are_not_blocked(family, blocked, x):
    message = r"'attention'.*draws Weibull and LogNormal weights around its scores.*use MultiheadAttention"
    with pytest.raises(ValueError, match=message):
        AttentionGuide(blocked[0], family).run(x)


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda model, x: AttentionGuide(model, Dirichlet()).run(x), ValueError, "fits priors of kind"),
        (lambda model, x: pyro.poutine.trace(model)(x), NotImplementedError, "run the model under an AttentionGuide"),
        (lambda model, x: AttentionGuide(model, Weibull()).run(x * torch.nan), ValueError,
         "144 of 144 queries are NaN or infinite"),
        (lambda model, x: AttentionGuide(model, Weibull()).run(x * 1e25), ValueError,
         r"'attention': \d+ of 36 rows of scores are NaN or infinite; check"),
        (lambda model, x: AttentionGuide(lambda: model.layer(x, x, x, need_weights=False), Weibull()).run(), ValueError,
         "no plate at dimension -1"),
        (lambda _, x: AttentionGuide(Model(ContextualGammaPrior(5)), Weibull()).run(x), ValueError,
         "the contextual prior expects"),
    ],
    ids=["kind", "no guide", "nan", "overflow", "plate", "prior"],
)  # fmt: skip
def test_other_errors(run, error, message, blocked, x):
    with pytest.raises(error, match=message):
        run(blocked[0], x)
