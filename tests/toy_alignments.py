"""A small problem of latent alignments, and what is known of it on paper: sums over every alignment."""

import itertools

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_attention import AlignmentPrior, Dense, LatentAttention
from tests.helpers import gradients

NEVER = -1e12  # not -inf, which has no gradient
BATCH, QUERIES, KEYS, WIDTH, CLASSES = 2, 3, 4, 5, 6


class Toy(nn.Module):
    """Each query attends to one of the unpadded keys of its sentence and predicts a class from it."""

    def __init__(self, prior=AlignmentPrior):
        super().__init__()
        self.score = nn.Linear(WIDTH, WIDTH).double()
        self.out = nn.Linear(WIDTH, CLASSES).double()
        self.attention = LatentAttention("alignment", prior())
        self.calls = 0

    def scores(self, keys, queries):
        return (self.score(queries) @ keys.mT).unsqueeze(-2)

    def forward(self, keys, queries, labels, mask, real):
        self.calls += 1
        pyro.module("toy", self)
        layout = Dense(mask[:, None, None, :], event_dim=2)
        batch, time = pyro.plate("batch", len(keys), dim=-2), pyro.plate("time", queries.size(1), dim=-1)
        with batch, time, pyro.poutine.mask(mask=real):
            output = self.attention(self.scores(keys, queries), keys[:, None, None], layout=layout)
            logits = self.out(output.context.squeeze(-2))
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)

    def log_likelihood(self, problem, weights):
        """log f(y | weights of the first keys), ``[..., B, T]``, written out without the library."""
        logits = self.out(weights @ problem[0][:, : weights.size(-1)]).log_softmax(-1)
        return logits.gather(-1, problem[2][..., None].expand(*logits.shape[:-1], 1)).squeeze(-1)


class Network(nn.Module):
    """An inference network."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH).double()
        self.label = nn.Embedding(CLASSES, WIDTH).double()

    def forward(self, keys, queries, labels, mask, real):
        return ((self.map(queries) + self.label(labels)) @ keys.mT).unsqueeze(-2)


def make_problem():
    """Keys, queries, labels, mask of the keys and of the queries."""
    torch.manual_seed(0)
    keys = torch.randn(BATCH, KEYS, WIDTH, dtype=torch.float64)
    queries = torch.randn(BATCH, QUERIES, WIDTH, dtype=torch.float64)
    labels = torch.randint(CLASSES, (BATCH, QUERIES))
    mask = torch.tensor([[True] * KEYS, [True, True, True, False]])
    real = torch.tensor([[True] * QUERIES, [True, True, False]])
    return keys, queries, labels, mask, real


def pad(problem):
    """The same problem with three more keys and two more queries, which are padding."""
    keys, queries, labels, mask, real = problem
    return (
        torch.cat([keys, keys.new_full((BATCH, 3, WIDTH), 1e3)], 1),
        torch.cat([queries, queries.new_full((BATCH, 2, WIDTH), -7.0)], 1),
        nn.functional.pad(labels, (0, 2)),
        nn.functional.pad(mask, (0, 3)),
        nn.functional.pad(real, (0, 2)),
    )


def without_keys(problem):
    """The queries of the second sentence see no key."""
    keys, queries, labels, mask, real = problem
    return keys, queries, labels, mask & torch.tensor([[True], [False]]), real


def log_factors(model, problem):
    """log p(z) and log f(y | z), ``[B, T, N]``."""
    keys, queries, _, mask, _ = problem
    prior = model.scores(keys, queries).squeeze(-2).masked_fill(~mask[:, None], NEVER).log_softmax(-1)
    keys_alone = torch.eye(KEYS, dtype=keys.dtype)[:, None, None].expand(KEYS, BATCH, QUERIES, KEYS)
    return prior, model.log_likelihood(problem, keys_alone[:, : len(keys)]).movedim(0, -1)


def brute_force_evidence(model, problem):
    """Sum over every joint alignment of every sentence."""
    prior, likelihood = log_factors(model, problem)
    total = 0.0
    for b, real in enumerate(problem[-1]):
        places = real.nonzero().flatten().tolist()
        joint = [
            sum(prior[b, t, z] + likelihood[b, t, z] for t, z in zip(places, choice, strict=True))
            for choice in itertools.product(range(KEYS), repeat=len(places))
        ]
        total = total + torch.stack(joint).logsumexp(0)
    return total


def expected(model, problem, log_q):
    """E_q[log f] - KL(q || p), summed over the real queries."""
    prior, likelihood = log_factors(model, problem)
    q = log_q.exp()
    terms = torch.where(q > 0, q * (likelihood + prior - log_q), 0.0).sum(-1)
    return terms[problem[-1]].sum()


def assert_same(loss, reference, parameters):
    """A loss and its gradients are those of a reference of the other sign."""
    torch.testing.assert_close(loss, -reference, rtol=1e-10, atol=1e-10)
    found, wanted = gradients(loss, *parameters), gradients(-reference, *parameters)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
