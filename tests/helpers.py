"""Shared by the tests: small attention problems in every layout, and the check of Monte Carlo estimates."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from inspect import signature

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor, nn

from pyro_attention import AttentionELBO, AttentionGuide, Dense, EdgeList, LatentAttention
from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.families.distribution import LogWeights
from pyro_attention.normalizers import NORMALIZERS


def assert_mean(draws, expected, *, errors=4.0):
    """Assert that the mean of the draws (dimension 0) lies within so many standard errors of what is expected."""
    draws = draws.detach().double()
    mean, error = draws.mean(0), draws.std(0) / math.sqrt(len(draws))
    distance = ((mean - expected) / error).abs().max()
    assert distance < errors, f"{distance:.1f} standard errors: {mean} +- {error} instead of {expected}"


class DenseForm:
    """Every query and key, with a mask."""

    def layout(self, mask):
        return Dense(mask)

    def scores(self, scores, mask):
        return scores

    def nodes(self, values):
        return values

    def to_dense(self, weights, mask):
        return weights


class MaskedEdgesForm(DenseForm):
    """An edge from every key to every query, with a mask over the edges."""

    def kept(self, mask):
        return torch.ones_like(mask)

    def layout(self, mask):
        edges, (queries, keys) = self.kept(mask), mask.shape
        graph = EdgeList.from_edge_index(edges.nonzero().T.flip(0), num_nodes=(keys, queries))
        return graph if mask[edges].all() else replace(graph, mask=mask[edges].unsqueeze(-1))

    def scores(self, scores, mask):
        return scores[..., self.kept(mask)].transpose(-1, -2)

    def nodes(self, values):
        return values.transpose(-3, -2)

    def to_dense(self, weights, mask):
        dense = weights.new_zeros(*weights.shape[:-2], weights.size(-1), *mask.shape)
        dense[..., self.kept(mask)] = weights.transpose(-1, -2)
        return dense


class EdgesForm(MaskedEdgesForm):
    """An edge for every unmasked entry, without a mask; a fully masked row is a node without in-edges."""

    def kept(self, mask):
        return mask


@dataclass(frozen=True)
class Problem:
    """Data of a small regression, always in dense coordinates.

    Scores ``[..., H, M, N]``, values (also the keys of contextual priors) ``[..., H, N, D]``, targets
    ``[..., H, M, D]``, mask ``[M, N]``.
    """

    scores: Tensor
    values: Tensor
    targets: Tensor
    mask: Tensor

    @classmethod
    def random(cls, batch=(), *, heads=2, mask=None, width=3, dtype=torch.float32, spread=1.0, seed=0):
        """A problem in which nobody may attend to key 2 and query 1 to nothing, unless a mask is given."""
        if mask is None:
            mask = torch.ones(4, 5, dtype=torch.bool)
            mask[1] = mask[:, 2] = mask[3, 3] = False  # key 3 is lost to query 3, so it is not causal
        queries, keys = mask.shape
        generator = torch.Generator().manual_seed(seed)
        shapes = (heads, queries, keys), (heads, keys, width), (heads, queries, width)
        scores, values, targets = (torch.randn(*batch, *shape, generator=generator) for shape in shapes)
        return cls((spread * scores).to(dtype).requires_grad_(), values.to(dtype), targets.to(dtype), mask)

    def with_(self, **changes):
        return replace(self, **changes)


class Regression(nn.Module):
    """Targets with unit noise around the context of one attention site, in a plate for every leading dimension."""

    def __init__(self, form, prior, normalizer, **options):
        super().__init__()
        self.form = form
        self.attention = LatentAttention("attention", prior, normalizer=normalizer, **options)

    def forward(self, problem):
        form, mask, batch = self.form, problem.mask, problem.scores.shape[:-3]
        nodes = form.nodes(problem.values)
        with ExitStack() as plates:
            for dim in range(-len(batch), 0):
                plates.enter_context(pyro.plate(f"plate{dim}", batch[dim], dim=dim))
            vectors = {"keys": nodes, "queries": form.nodes(problem.targets)}
            out = self.attention(form.scores(problem.scores, mask), nodes, layout=form.layout(mask), **vectors)
            pyro.deterministic("weights", form.to_dense(out.weights, mask), event_dim=3)
            context = pyro.deterministic("context", form.nodes(out.context), event_dim=3)
            pyro.sample("targets", Normal(context.float(), 1.0).to_event(3), obs=problem.targets.float())


# The argument that makes each family about as wide as a Weibull of concentration k. A new family needs a line here.
FAMILY_ARGUMENTS = {
    "soft": lambda k: {},
    "weibull": lambda k: {"concentration": k},
    "gamma": lambda k: {"concentration": k},
    "lognormal": lambda k: {"scale": 1 / k},
    "gaussian": lambda k: {"scale": 1 / k},
    "dirichlet": lambda k: {},
    "categorical": lambda k: {},
    "marginal": lambda k: {},
    "gumbel_softmax": lambda k: {},
    "sparse_categorical": lambda k: {},
}


def make_family(name, k=10.0, **options):
    """Build a registered family; options are dropped where it has no parameter."""
    arguments = FAMILY_ARGUMENTS[name](k)
    return FAMILIES[name](**arguments, **(options if arguments else {}))


def make_prior(name, *, heads=2, width=3):
    """Build a registered prior for keys of a width."""
    prior = PRIORS[name]
    return prior(width, heads) if "key_dim" in signature(prior).parameters else prior()


def make_normalizer(name, *, heads=2):
    """Build a registered normalizer."""
    normalizer = NORMALIZERS[name]
    return normalizer(heads) if "heads" in signature(normalizer).parameters else normalizer()


def make_model(form, prior, normalizer="softmax", *, heads=2, **options):
    """Build a regression with registered parts."""
    return Regression(form, make_prior(prior, heads=heads), make_normalizer(normalizer, heads=heads), **options)


def posterior_and_prior(guide, *args, site="attention"):
    """Distributions of an attention site in one run of the guide."""
    guide(*args)
    model_trace, guide_trace = guide.get_traces()
    return guide_trace.nodes[site]["fn"], model_trace.nodes[site]["fn"]


def log_mean(distribution):
    """``log E[S]`` of a distribution over log weights, in full shape."""
    return distribution.mean_value


POSITIVE_PRIORS = [name for name in PRIORS if PRIORS[name].kind == LogWeights.kind]
ALL_PAIRS = [
    (family, prior) for prior in PRIORS for family in FAMILIES if FAMILIES[family].kind in (None, PRIORS[prior].kind)
]
PAIRS = [(family, prior) for family, prior in ALL_PAIRS if prior in POSITIVE_PRIORS]
# one prior for each family, and the experiments' pair for each normalizer: it sees a value, not the prior
ONE_EACH = [(*pair, "softmax") for pair in dict(PAIRS).items()]
ONE_EACH += [("weibull", "gamma_contextual", name) for name in NORMALIZERS if name != "softmax"]


def draw(model, family, problem, *, seed=0):
    """Values of the sites of one run under the posterior."""
    torch.manual_seed(seed)
    return AttentionGuide(model, family)(problem)


def closed_form(model, family, problem, **options):
    """Loss and total KL (zero where there is none) of one evaluation with fixed noise."""
    elbo = AttentionELBO(**options)
    torch.manual_seed(0)
    loss = elbo.differentiable_loss(model, AttentionGuide(model, family), problem)
    return loss, elbo.kl_record.get("attention", torch.zeros(()))


def gradients(loss, *leaves):
    """Gradients of a loss, zero where it does not depend on a leaf."""
    return torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)


def flat(loss, leaves):
    """Gradients of a loss in one row."""
    return torch.cat([gradient.flatten() for gradient in gradients(loss, *leaves)])
