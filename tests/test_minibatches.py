"""Sub-sampled plates: whatever runs a model more than once keeps the indices of its first run."""

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FromPrior,
    LatentAttention,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    ScorePrior,
    importance_posterior,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.exact import posterior_attention
from pyro_attention.analysis.coverage import check_coverage
from pyro_attention.draws import BroadcastWarning, Minibatch
from pyro_attention.objectives.importance import ImportanceELBO

SIZE, BATCH, KEYS = 40, 6, 3
WIDTH = 1e-5  # so narrow that a value is that of its indices alone


class Data(nn.Module):
    """A number for each of 40 items, of which six are seen; their indices are kept by run."""

    def __init__(self, *, alignment=False, broadcasts=True, nested=False, size=SIZE, batch=BATCH, returns=True):
        super().__init__()
        torch.manual_seed(0)
        shape = (size, 1, KEYS)
        self.scores = nn.Parameter(torch.randn(shape))
        self.values, self.y = 2 * torch.randn(size, 1, KEYS, 1), 2 * torch.randn(size)
        prior = AlignmentPrior() if alignment else ScorePrior(LogNormal(WIDTH))
        self.attention = LatentAttention("attention", prior)
        self.size, self.batch, self.broadcasts, self.nested, self.returns = size, batch, broadcasts, nested, returns
        self.runs = []

    def forward(self):
        if not self.nested:
            with pyro.plate("data", self.size, subsample_size=self.batch) as index:
                return self.observe(index, index.tolist())
        groups = pyro.plate("groups", self.size // 8, subsample_size=2, dim=-2)
        with groups as group, pyro.plate("members", 8, subsample_size=self.batch // 2, dim=-1) as member:
            index = 8 * group.unsqueeze(-1) + member
            return self.observe(index, [group.tolist(), member.tolist()])

    def observe(self, index, known):
        self.runs.append(known)
        context = self.attention(self.scores[index], self.values[index], layout=Dense(event_dim=2)).context
        mean = context[..., 0, 0] if self.broadcasts else context.flatten(-2).reshape(*index.shape)
        pyro.sample("y", Normal(mean, 1.0), obs=self.y[index])
        return mean if self.returns else None

    def log_likelihood(self, known):
        """Of indices, times the size of the data in place of theirs, at the mean weights."""
        if self.nested:
            index = 8 * torch.tensor(known[0]).unsqueeze(-1) + torch.tensor(known[1])
        else:
            index = torch.tensor(known)
        mean = (self.scores[index].softmax(-1).unsqueeze(-2) @ self.values[index]).flatten(index.dim()).squeeze(-1)
        return Normal(mean, 1.0).log_prob(self.y[index]) * self.size / index.numel()


MODELS = {
    "plain": {},
    "one by one": {"broadcasts": False},
    "nested": {"nested": True},
    "nested, one by one": {"nested": True, "broadcasts": False},
}
every_model = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)


def kept(model, call):
    """What a call gives, whose runs all have the same indices, and these; another call has other ones."""
    results = []
    for _ in range(2):
        model.runs.clear()
        results.append((call(), model.runs[-1], [runs for runs in model.runs]))
    (first, indices, runs), (_, others, _) = results
    assert indices != others
    return first, indices, runs


OBJECTIVES = {
    "whole": lambda: EvidenceELBO(4),
    "chunks of one": lambda: EvidenceELBO(4, chunk_size=1),
    "chunks of two": lambda: EvidenceELBO(4, chunk_size=2),
    "uneven chunks": lambda: EvidenceELBO(4, chunk_size=3),
    "vectorized": lambda: AttentionELBO(num_particles=4, vectorize_particles=True),
}


@every_model
@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.filterwarnings("ignore::pyro_attention.draws.BroadcastWarning")
def test_objectives(make, options):
    """Value and gradient, with the second runs of the backward pass, are those of fixed indices."""
    model = Data(**options)
    guide, elbo = AttentionGuide(model, FromPrior()), make()

    def step():
        model.scores.grad = None
        loss = elbo.differentiable_loss(model, guide)
        loss.backward()
        return loss.item(), model.scores.grad.clone()

    step()  # a replay has indices of its own
    (loss, gradient), indices, runs = kept(model, step)
    assert all(run == indices for run in runs)
    expected = -model.log_likelihood(indices).sum()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    (wanted,) = torch.autograd.grad(expected, [model.scores])
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-3)


ALIGNMENTS = {
    "importance": (lambda: ImportanceELBO(4), Categorical(enumerate=False)),
    "score function": (lambda: ScoreFunctionELBO(num_particles=3), Categorical(enumerate=False)),
    "marginal": (lambda: AlignmentELBO(num_particles=3), Marginal()),
    "categorical": (lambda: AlignmentELBO(num_particles=2), Categorical()),
}


@pytest.mark.parametrize("broadcasts", [True, False])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ALIGNMENTS)
@pytest.mark.filterwarnings("ignore::pyro_attention.draws.BroadcastWarning")
def test_objectives_of_alignments(name, nested, broadcasts):
    make, family = ALIGNMENTS[name]
    if isinstance(make(), AlignmentELBO) and not broadcasts:
        pytest.skip("refused")
    model = Data(alignment=True, broadcasts=broadcasts, nested=nested)
    guide, elbo = AttentionGuide(model, family), make()
    elbo.loss(model, guide)
    loss, indices, runs = kept(model, lambda: elbo.loss(model, guide))
    if name != "score function":  # whose particles are a loop, as Pyro's
        assert all(run == indices for run in runs)
    if name == "marginal" and not nested:
        index = torch.tensor(indices)
        log_f = Normal(model.values[index].flatten(1), 1.0).log_prob(model.y[index].unsqueeze(-1))
        each = (model.scores[index].squeeze(-2).log_softmax(-1) + log_f).logsumexp(-1)
        assert loss == pytest.approx(-each.sum().item() * SIZE / BATCH, rel=1e-5)


DRAW = {
    "sample": lambda guide, size: sample_posterior(guide, num_samples=6, chunk_size=size)["attention"],
    "given": lambda guide, size: importance_posterior(guide, num_samples=6, chunk_size=size).resample()["attention"],
    "weighted": lambda guide, size: importance_posterior(guide, num_samples=6, chunk_size=size).log_importance_weights,
    "predict": lambda guide, size: predict(guide, num_samples=6, chunk_size=size, keep_samples=True).samples,
}


@every_model
@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize("name", DRAW)
@pytest.mark.filterwarnings("ignore::pyro_attention.draws.BroadcastWarning")
def test_posterior(name, chunk_size, options):
    """Weights so narrow are the same in all samples of the same items, and those of these items."""
    model = Data(**options)
    guide = AttentionGuide(model, FromPrior())
    if chunk_size > 1:
        DRAW[name](guide, chunk_size)  # a replay has indices of its own
    samples, indices, runs = kept(model, lambda: DRAW[name](guide, chunk_size))
    assert all(run == indices for run in runs)
    torch.testing.assert_close(samples, samples[:1].expand_as(samples), rtol=1e-3, atol=1e-3)
    if name == "weighted":
        scale = model.size / torch.tensor(samples[0].numel())
        torch.testing.assert_close(samples[0] * scale, model.log_likelihood(indices), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_explaining_keys(chunk_size):
    model = Data()
    guide = AttentionGuide(model, LogNormal(WIDTH))
    call = lambda: posterior_attention(guide, num_samples=5, chunk_size=chunk_size)["attention"]  # noqa: E731
    call()
    found, indices, runs = kept(model, call)
    assert all(run == indices for run in runs)
    index = torch.tensor(indices)
    log_f = Normal(model.values[index].flatten(1), 1.0).log_prob(model.y[index].unsqueeze(-1))
    expected = (model.scores[index].squeeze(-2).log_softmax(-1) + log_f).softmax(-1)
    torch.testing.assert_close(found.squeeze(-2), expected, rtol=1e-3, atol=1e-3)


def test_coverage():
    """Truth and draws are of the same items."""
    model = Data(size=300, batch=100)
    guide = AttentionGuide(model, FromPrior())
    model.runs.clear()
    check_coverage(guide, num_draws=19, bins=20, seed=0)
    assert len(model.runs) == 20
    assert all(run == model.runs[0] for run in model.runs)


def test_a_minibatch_keeps_what_is_drawn_and_leaves_what_is_given():
    def model(given):
        with pyro.plate("drawn", 50, subsample_size=3) as drawn, pyro.plate("given", 50, subsample=given) as other:
            return drawn.tolist(), other.tolist()

    same = Minibatch()
    with same:
        first, given = model(torch.tensor([1, 2]))
    with same:
        second, other = model(torch.tensor([3, 4]))
    assert first == second
    assert (given, other) == ([1, 2], [3, 4])
    assert model(torch.tensor([1]))[0] != first


def test_it_is_said_that_draws_go_one_by_one():
    model = Data(broadcasts=False)
    with pytest.warns(BroadcastWarning):
        EvidenceELBO(4).loss(model, AttentionGuide(model, FromPrior()))
