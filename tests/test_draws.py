"""Several draws of models that count dimensions from the left: the numbers of single runs, or a refusal."""

import math
from contextlib import nullcontext
from functools import partial

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FromPrior,
    GraphAttention,
    LatentAttention,
    LogNormal,
    Marginal,
    MultiheadAttention,
    ScorePrior,
    check_model,
    exact_alignments,
    importance_posterior,
    predict,
)
from pyro_attention.draws import BroadcastWarning, is_due
from pyro_attention.objectives.importance import ImportanceELBO
from tests.helpers import flat

ITEMS, KEYS, WIDTH = 5, 4, 3


plain_bound = partial(EvidenceELBO, correction=None)  # whose value is that of the draws


def by_rows(c):
    return torch.stack([row.sum() for row in c])


def by_pairs(c):
    return torch.stack([row.sum() + float(index) for row, index in zip(c, range(ITEMS), strict=False)])


def batch_norm(c):
    rows = c[..., 0, 0, :]
    return nn.functional.batch_norm(rows, None, None, training=True).sum(-1)


def standardized(c):
    rows = c[..., 0, 0, :].sum(-1)
    return (rows - rows.mean(0)) / rows.std(0)


def recurrent(c):
    torch.manual_seed(7)
    return nn.GRU(WIDTH, 2, batch_first=True)(c[:, 0])[0].sum(-1).sum(-1)


# What a model does with a context [items, 1, 1, width], to get a number for each item. All are right for that shape.
FROM_THE_LEFT = {
    "index": lambda c: c[:, 0, 0].sum(-1),
    "index of the first": lambda c: c.transpose(0, 1)[0].sum(-1).squeeze(-1),
    "select": lambda c: c.select(1, 0).select(1, 0).sum(-1),
    "index_select": lambda c: c.index_select(0, torch.arange(ITEMS).flip(0)).sum((-3, -2, -1)),
    "flatten": lambda c: c.flatten(1).sum(1),
    "flatten module": lambda c: nn.Flatten()(c).square().sum(1),
    "reshape": lambda c: c.reshape(len(c), -1).sum(-1),
    "view": lambda c: c.view(ITEMS, WIDTH).sum(-1),
    "squeeze": lambda c: c.squeeze(1).squeeze(1).sum(-1),
    "sum": lambda c: c.sum((1, 2, 3)),
    "mean": lambda c: c.mean(1).mean(1).sum(1),
    "max": lambda c: c.amax((1, 2, 3)),
    "softmax": lambda c: (c.flatten(-3).softmax(1) * torch.arange(WIDTH)).sum(-1),
    "softmax over items": lambda c: c.flatten(-3).sum(-1).softmax(0),
    "norm": lambda c: c.flatten(-3).norm(dim=1),
    "normalize": lambda c: nn.functional.normalize(c.flatten(-3) + 1).amax(-1),
    "sort": lambda c: c.flatten(-3).sort(1).values[..., 0],
    "cumulated": lambda c: c.flatten(-3).sum(-1).cumsum(0),
    "transpose": lambda c: c.transpose(0, 3).sum((0, 1, 2)),
    "permute": lambda c: c.flatten(-3).permute(*range(c.flatten(-3).dim() - 1, -1, -1)).sum(0),
    "T": lambda c: c.flatten(-3).mT.sum(0),
    "einsum": lambda c: torch.einsum("bhmd,d->b", c, torch.arange(3.0)),
    "matrix product": lambda c: torch.mm(c.flatten(-3), torch.arange(3.0).unsqueeze(-1)).squeeze(-1),
    "batch norm": batch_norm,
    "standardized": standardized,
    "layer norm": lambda c: nn.functional.layer_norm(c, c.shape[1:]).amax((-3, -2, -1)),
    "rows": by_rows,
    "zip": by_pairs,
    "unbind": lambda c: torch.stack([row.sum() for row in c.unbind()]),
    "split": lambda c: c.split(1, 1)[0].flatten(1).sum(-1),
    "roll": lambda c: c.flatten(-3).sum(-1).roll(1, 0),
    "outer product": lambda c: (c.flatten(-3) @ c.flatten(-3).reshape(-1, WIDTH).mT).sum(-1),
    "bias of an item": lambda c: (c.flatten(-3).mT + torch.arange(5.0)).sum(0),
    "recurrent": recurrent,
}
FROM_THE_RIGHT = {
    "index": lambda c: c[..., 0, 0, :].sum(-1),
    "flatten": lambda c: c.flatten(-3).square().sum(-1),
    "bias of an item": lambda c: c.sum((-3, -2, -1)) + torch.arange(5.0),
    "softmax": lambda c: (c.softmax(-1) * torch.arange(WIDTH)).sum((-3, -2, -1)),
}
every_left = pytest.mark.parametrize("head", FROM_THE_LEFT.values(), ids=FROM_THE_LEFT)


class Pooling(nn.Module):
    """One query an item; a number of its context is observed, and returned unless the model gives None."""

    def __init__(self, head, *, alignment=False, items=ITEMS, returns=True):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shape = (items, 1, KEYS) if alignment else (items, 1, 1, KEYS)
        self.scores = nn.Parameter(torch.randn(shape, generator=generator))
        self.values = torch.randn(items, 1, KEYS, WIDTH, generator=generator)
        self.y = torch.randn(items, generator=generator)
        width = LogNormal(0.8, learnable=True)
        self.attention = LatentAttention("attention", AlignmentPrior() if alignment else ScorePrior(width))
        self.head, self.alignment, self.returns = head, alignment, returns

    def forward(self, *, with_y=True):
        with pyro.plate("data", len(self.y)):
            layout = Dense(event_dim=2) if self.alignment else Dense()
            context = self.attention(self.scores, self.values, layout=layout).context
            mean = self.head(context.unsqueeze(-2) if self.alignment else context)
            pyro.sample("y", Normal(mean, 0.7), obs=self.y if with_y else None)
        return mean if self.returns else None


def single_runs(guide, draws):
    """Log likelihoods ``[draws, items]`` of single runs, one behind the other."""
    rows = []
    for _ in range(draws):
        site = guide.run().trace.nodes["y"]
        rows.append(site["fn"].log_prob(site["value"]))
    return torch.stack(rows)


def bound(log_weights):
    return -(log_weights.logsumexp(0) - math.log(len(log_weights))).sum()


def seeded(call, *, warns=True):
    torch.manual_seed(0)
    if not warns:
        return call()
    with pytest.warns(BroadcastWarning, match=r"count dimensions from the right \(\[\.\.\., 0, :\]"):
        return call()


# Objectives


@every_left
@pytest.mark.parametrize("chunk_size", [None, 1, 2], ids="chunk={}".format)
def test_the_evidence_is_that_of_single_runs(head, chunk_size):
    model = Pooling(head)
    guide, leaves = AttentionGuide(model, FromPrior()), list(model.parameters())
    expected = seeded(lambda: bound(single_runs(guide, 5)), warns=False)
    elbo = plain_bound(5, chunk_size=chunk_size, max_plate_nesting=1)
    loss = seeded(lambda: elbo.differentiable_loss(model, guide), warns=chunk_size != 1)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(flat(loss, leaves), flat(expected, leaves))
    again = seeded(lambda: elbo.differentiable_loss(model, guide), warns=False)  # it is said once
    torch.testing.assert_close(again, expected)


@every_left
def test_vectorized_particles_are_those_of_single_runs(head):
    model = Pooling(head)
    guide, leaves = AttentionGuide(model, LogNormal(0.5, learnable=True)), list(model.parameters())
    options = {"num_particles": 3, "max_plate_nesting": 1}
    expected = seeded(lambda: AttentionELBO(**options).differentiable_loss(model, guide), warns=False)
    elbo = AttentionELBO(**options, vectorize_particles=True)
    loss = seeded(lambda: elbo.differentiable_loss(model, guide))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(flat(loss, leaves), flat(expected, leaves))


@every_left
def test_weighted_alignments_are_those_of_single_runs(head):
    model = Pooling(head, alignment=True)
    guide = AttentionGuide(model, Categorical(enumerate=False))
    expected = seeded(lambda: bound(single_runs(guide, 4)), warns=False)
    elbo = ImportanceELBO(4, max_plate_nesting=1)
    torch.testing.assert_close(seeded(lambda: elbo.differentiable_loss(model, guide)), expected)


def marginal(model):
    """The log evidence of independent queries, by a run for each key."""
    logits, rows = model.scores.squeeze(-2).log_softmax(-1), []
    for key in range(KEYS):
        context = model.values[:, :, key].unsqueeze(-2)
        rows.append(Normal(model.head(context), 0.7).log_prob(model.y))
    return (logits.mT + torch.stack(rows)).logsumexp(0).sum()


@every_left
@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
def test_enumerated_alignments_are_refused(head, family):
    model = Pooling(head, alignment=True)
    guide, elbo = AttentionGuide(model, family), AlignmentELBO(max_plate_nesting=1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"does not broadcast over alignments .* count dimensions from the right"):
            elbo.loss(model, guide)
    with pytest.raises(ValueError, match="does not broadcast over alignments"):
        exact_alignments(model)


@pytest.mark.parametrize("head", FROM_THE_RIGHT.values(), ids=FROM_THE_RIGHT)
def test_models_that_broadcast_keep_the_plate(head):
    model, shapes = Pooling(head), []
    model.attention.register_forward_hook(lambda _, __, output: shapes.append(output.context.shape))
    guide = AttentionGuide(model, FromPrior())
    elbo = plain_bound(7, max_plate_nesting=1)
    elbo.loss(model, guide)
    assert shapes.pop() == (7, ITEMS, 1, 1, WIDTH)
    torch.manual_seed(0)
    loss = elbo.loss(model, guide)
    torch.manual_seed(0)
    with pyro.plate("draws", 7, dim=-2):
        site = guide.run().trace.nodes["y"]
    rows = [site["fn"].base_dist.loc if hasattr(site["fn"], "base_dist") else site["fn"].loc][0]
    expected = bound(Normal(rows, 0.7).log_prob(model.y))
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    aligned = Pooling(head, alignment=True)
    assert -AlignmentELBO(max_plate_nesting=1).loss(aligned, AttentionGuide(aligned, Marginal())) == pytest.approx(
        marginal(aligned).item(), rel=1e-5
    )


def by_autocast(c):
    with torch.autocast("cpu", torch.bfloat16):
        return (c @ torch.ones(WIDTH, 1)).sum((-3, -2, -1)).float()


@pytest.mark.parametrize(
    ("total", "is_refused"),
    [
        (lambda c: c.sum((-3, -2, -1)), True),
        (lambda c: c.bfloat16().float().sum((-3, -2, -1)), False),
        (lambda c: c.half().sum((-3, -2, -1)).float(), False),
        (by_autocast, False),
    ],
    ids=["float32", "bfloat16", "float16", "autocast"],
)
def test_rounding_of_half_precision_is_no_difference(total, is_refused):
    """Log probabilities are float32, but the products below them round by another shape's sums, here by .4 %."""

    def head(c):
        return total(c) * (1.004 if c.dim() > 4 else 1.0)

    aligned = Pooling(head, alignment=True)
    objective = AlignmentELBO(max_plate_nesting=1)(aligned, AttentionGuide(aligned, Marginal()))
    with pytest.raises(ValueError, match="does not broadcast") if is_refused else nullcontext():
        objective()
    guide = AttentionGuide(Pooling(head), FromPrior())
    seeded(lambda: plain_bound(5, max_plate_nesting=1).loss(guide.model, guide), warns=is_refused)


# Posterior


@every_left
def test_chunks_of_the_posterior_are_those_of_single_runs(head):
    model = Pooling(head, returns=False)
    guide, options = AttentionGuide(model, LogNormal(0.5)), {"num_samples": 6, "seed": 0}
    single = importance_posterior(guide, **options)
    with pytest.warns(BroadcastWarning):
        chunks = importance_posterior(guide, chunk_size=4, **options)
    torch.testing.assert_close(chunks.log_importance_weights, single.log_importance_weights)
    torch.testing.assert_close(chunks.samples, single.samples)
    torch.manual_seed(0)
    log_ratio = chunks.log_importance_weights - single_runs(guide, 6)  # log p - log q
    trace = guide.run().trace.nodes["attention"]
    assert log_ratio.shape == (6, *trace["fn"].batch_shape)
    model.returns = True
    predicted = AttentionGuide(model, LogNormal(0.5))
    single = predict(predicted, with_y=False, **options)
    with pytest.warns(BroadcastWarning):
        chunks = predict(predicted, with_y=False, chunk_size=4, **options)
    torch.testing.assert_close(chunks.mean, single.mean)
    torch.testing.assert_close(chunks.variance, single.variance)


@pytest.mark.filterwarnings("ignore::pyro_attention.posterior.importance.UnreliableWeights")
def test_draws_given_the_observations_of_a_model_that_does_not_broadcast():
    model = Pooling(FROM_THE_LEFT["flatten"], returns=False)
    guide = AttentionGuide(model, FromPrior())
    options = {"num_samples": 50, "seed": 0}
    single = importance_posterior(guide, **options).resample(seed=1)
    with pytest.warns(BroadcastWarning):
        chunks = importance_posterior(guide, chunk_size=25, **options).resample(seed=1)
    torch.testing.assert_close(chunks, single)


# Of the kind


class OneQuery(nn.Module):
    """Attention pooling as everybody writes it."""

    def __init__(self, x, y, right):
        super().__init__()
        self.x, self.y, self.right = x, y, right
        self.query, self.out = nn.Parameter(torch.zeros(8)), nn.Linear(8, 1)
        self.att = MultiheadAttention(8, 2, prior=ScorePrior(LogNormal(0.5)))

    def forward(self):
        with pyro.plate("data", len(self.x)):
            c = self.att(self.query.expand(len(self.x), 1, 8), self.x, self.x)[0]
            mean = self.out(c[..., 0, :] if self.right else c[:, 0]).squeeze(-1)
            pyro.sample("y", Normal(mean, 0.5), obs=self.y)


def test_pooling_by_one_query():
    torch.manual_seed(0)
    model = OneQuery(torch.randn(16, 6, 8), torch.randn(16), right=False)
    guide = AttentionGuide(model, FromPrior())
    expected = seeded(lambda: bound(single_runs(guide, 8)), warns=False)
    torch.testing.assert_close(
        seeded(lambda: plain_bound(8, max_plate_nesting=1).differentiable_loss(model, guide)),
        expected,
    )
    report = check_model(model, guide, elbo=plain_bound(8, max_plate_nesting=1))
    assert all("draws are too few" in problem for problem in report.problems)  # which is another thing
    assert "log probability of site 'y', of shape (16,), is" in report.notes[0]
    assert "draws go one by one" in str(report)
    model.right = True
    assert not check_model(model, guide, elbo=plain_bound(8, max_plate_nesting=1)).notes


class Nodes(nn.Module):
    """Classes of nodes, whose attention is in no plate."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = GraphAttention(4, 3, heads=1, name="layer", prior=ScorePrior(LogNormal(0.7, learnable=True)))
        self.x, self.y = torch.randn(9, 4), torch.randint(3, (9,))
        self.edges = torch.stack([torch.arange(9), (torch.arange(9) + 1) % 9])

    def forward(self):
        logits = self.layer(self.x, self.edges)
        with pyro.plate("nodes", len(self.x)):
            pyro.sample("y", pyro.distributions.Categorical(logits=logits), obs=self.y)
        return logits


class Sequence(nn.Module):
    """Words of one sequence, whose attention is in no plate."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = MultiheadAttention(4, 1, name="layer", prior=ScorePrior(LogNormal(0.7, learnable=True)))
        self.x, self.y = torch.randn(6, 4), torch.randn(6)

    def forward(self):
        mean = self.layer(self.x, self.x, self.x)[0].sum(-1)
        with pyro.plate("words", 6):
            pyro.sample("y", Normal(mean, 1.0), obs=self.y)
        return mean


@pytest.mark.parametrize("make", [Nodes, Sequence])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_observations_outside_the_plate_of_the_attention_are_one_item(make, chunk_size):
    model = make()
    guide, leaves = AttentionGuide(model, FromPrior()), list(model.parameters())
    expected = seeded(lambda: bound(single_runs(guide, 6).sum(-1)), warns=False)
    elbo = plain_bound(6, chunk_size=chunk_size, max_plate_nesting=1)
    loss = seeded(lambda: elbo.differentiable_loss(model, guide))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(flat(loss, leaves), flat(expected, leaves))
    options = {"num_samples": 5, "seed": 0}
    single = importance_posterior(guide, **options)
    with pytest.warns(BroadcastWarning):
        chunks = importance_posterior(guide, chunk_size=64, **options)
    assert single.log_importance_weights.shape == (5,)
    torch.testing.assert_close(chunks.log_importance_weights, single.log_importance_weights)


def test_own_posteriors_of_observations_outside_the_plate_have_their_gradients():
    """The doubly reparameterised one, whose weights have other dimensions than the site."""
    model = Sequence()
    guide = AttentionGuide(model, Amortized(Anything(model), LogNormal(0.4, learnable=True)))
    leaves = list(guide.parameters())
    together = flat(seeded(lambda: plain_bound(4).differentiable_loss(model, guide)), leaves)
    # a chunk of one knows the number of its draw
    one_by_one = seeded(lambda: plain_bound(4, chunk_size=1).differentiable_loss(model, guide), warns=False)
    assert together.abs().max() > 0.01
    torch.testing.assert_close(together, flat(one_by_one, leaves))


class Anything(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(1, len(model.x), len(model.x)))

    def forward(self):
        return self.scores


def test_equal_twins_would_not_show_that_draws_are_mixed():
    """A mean over what is one item, and so many draws; of equal draws it is each of them."""
    model = Pooling(lambda c: c.mean(0, keepdim=True)[..., 0, 0, :].sum(-1), items=1)
    guide = AttentionGuide(model, FromPrior())
    expected = seeded(lambda: bound(single_runs(guide, 4)), warns=False)
    torch.testing.assert_close(
        seeded(lambda: plain_bound(4, max_plate_nesting=1).differentiable_loss(model, guide)),
        expected,
    )


def test_narrow_posteriors_hide_nothing():
    """Two draws of a width of 1e-5 are the same up to rounding; the replay moves them apart."""
    model = Pooling(FROM_THE_LEFT["softmax over items"])
    with pytest.warns(BroadcastWarning):
        plain_bound(4, max_plate_nesting=1).loss(model, AttentionGuide(model, LogNormal(1e-5)))


# What a replay looks at and leaves alone


class Noisy(nn.Module):
    """Dropout ahead of the attention and behind it, and noise, which a pass of several draws may have otherwise."""

    def __init__(self, norm=False):
        super().__init__()
        self.layer = MultiheadAttention(4, 1, 0.2, name="layer", prior=ScorePrior(LogNormal(0.7)))
        self.before, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4) if norm else None
        self.x, self.y = torch.randn(6, 5, 4), torch.randn(6)

    def forward(self):
        with pyro.plate("data", 6):
            x = self.before(self.x) + 0.1 * torch.randn_like(self.x)
            h = nn.functional.dropout(self.layer(x, x, x)[0], 0.4, self.training)[..., 0, :]
            h = h * torch.bernoulli(torch.full_like(h, 0.6))
            h = h if self.norm is None else self.norm(h)
            pyro.sample("y", Normal(h.sum(-1), 1.0), obs=self.y)


def test_noise_of_the_model_does_not_count():
    torch.manual_seed(0)
    model = Noisy()
    plain_bound(4, max_plate_nesting=1).loss(model, AttentionGuide(model, FromPrior()))


def test_statistics_of_the_batch_do_and_running_ones_are_as_before():
    torch.manual_seed(0)
    model = Noisy(norm=True)
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(4, max_plate_nesting=1)
    state = torch.get_rng_state()
    with pytest.warns(BroadcastWarning):
        elbo.loss(model, guide)
    assert model.norm.num_batches_tracked == 4  # those of the draws
    assert all(module.training for module in model.modules())
    first, twin = model.norm.running_mean.clone(), Noisy(norm=True)
    twin.x, twin.y = model.x, model.y
    twin.load_state_dict({**model.state_dict(), **{f"norm.{name}": value for name, value in fresh_norm().items()}})
    torch.set_rng_state(state)
    plain_bound(4, chunk_size=1, max_plate_nesting=1).loss(twin, AttentionGuide(twin, FromPrior()))
    torch.testing.assert_close(twin.norm.running_mean, first)


def fresh_norm():
    return nn.BatchNorm1d(4).state_dict()


class Normed(nn.Module):
    """A statistic over the items, where it trains; the running one, where not."""

    def __init__(self):
        super().__init__()
        self.pooling, self.norm = Pooling(lambda c: self.center(c.flatten(-3).sum(-1))), nn.BatchNorm1d(1)

    def center(self, rows):
        return rows - rows.mean(0) if self.training else rows

    def forward(self):
        return self.pooling()


def test_training_and_evaluation_are_looked_at_apart():
    """Whether the model is a module, or a function that knows it."""
    for wrap in (lambda model: model, lambda model: partial(model), lambda model: lambda: model()):
        model = Normed()
        guide, elbo = AttentionGuide(wrap(model), FromPrior()), plain_bound(4, max_plate_nesting=1)
        model.eval()
        elbo.loss(guide.model, guide)
        model.train()
        with pytest.warns(BroadcastWarning):
            elbo.loss(guide.model, guide)


def test_the_calls_that_are_replayed():
    assert [calls for calls in range(1, 1001) if is_due(calls)] == [1, 10, 100, 1000]
    model, runs = Pooling(FROM_THE_RIGHT["index"]), []
    model.attention.register_forward_hook(lambda *_: runs.append(1))
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(3, max_plate_nesting=1)
    counts = []
    for _ in range(11):
        runs.clear()
        elbo.loss(model, guide)
        counts.append(len(runs))
    assert counts == [4, *[1] * 8, 4, 1]  # two single runs and a pass of both


def test_draws_are_those_without_a_replay():
    """It leaves the generator alone: the first call draws what the second one does."""
    model = Pooling(FROM_THE_RIGHT["index"])
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(3, max_plate_nesting=1)
    assert seeded(lambda: elbo.loss(model, guide), warns=False) == seeded(lambda: elbo.loss(model, guide), warns=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_importance_weights_of_half_precision_are_summed_in_32_bits(dtype):
    """An item of many observations: 400 terms of about one nat each, whose sum has other digits in half precision."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 1, 6, 4, dtype=dtype), torch.randn(2, 400, dtype=dtype)
    attention = LatentAttention("attention", ScorePrior(LogNormal(0.3)))

    def model():
        with pyro.plate("data", 2, dim=-2):
            c = attention((x @ x.mT)[..., :1, :].unsqueeze(1), x.unsqueeze(1)).context[..., 0, 0, 0].to(dtype)
            with pyro.plate("words", 400, dim=-1):
                pyro.sample("y", Normal(c, torch.ones((), dtype=dtype)), obs=y)

    guide = AttentionGuide(model, FromPrior())
    weighted = importance_posterior(guide, num_samples=3, seed=0)
    assert weighted.log_importance_weights.dtype == torch.float32
    rows = []
    torch.manual_seed(0)
    for _ in range(3):
        site = guide.run().trace.nodes["y"]
        rows.append(site["fn"].log_prob(site["value"]).double().sum(-1))
    torch.testing.assert_close(weighted.log_importance_weights.double(), torch.stack(rows), rtol=1e-5, atol=1e-3)
    loss = seeded(lambda: plain_bound(3, chunk_size=1, max_plate_nesting=2).loss(model, guide), warns=False)
    assert loss == pytest.approx(bound(torch.stack(rows)).item(), rel=1e-5)
