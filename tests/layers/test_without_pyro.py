"""Layers that nobody runs by Pyro are ordinary attention: the weights of Soft(), whatever the prior."""

from contextlib import ExitStack, nullcontext

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import nn
from torch_geometric.nn import GATConv

from pyro_attention import (
    AlignmentPrior,
    AttentionGuide,
    Dense,
    DirichletPrior,
    DoublyNormalized,
    EdgeList,
    FixedGammaPrior,
    GraphAttention,
    LatentAttention,
    MultiheadAttention,
    Soft,
)
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior
from tests.helpers import POSITIVE_PRIORS, make_normalizer, make_prior

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 3, 4, 5
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
SOFT = torch.nn.functional.softmax


@pytest.fixture
def problem():
    """Scores and values, in a batch without a plate."""
    return torch.randn(BATCH, HEADS, QUERIES, KEYS), torch.randn(BATCH, HEADS, KEYS, WIDTH)


def expected_weights(scores, mask=MASK):
    return SOFT(scores.masked_fill(~mask, -1e9), -1) * mask


@pytest.mark.parametrize("normalize_scores", [True, False])
@pytest.mark.parametrize("normalizer", ["softmax", "doubly_normalized", "hybrid"])
@pytest.mark.parametrize("name", POSITIVE_PRIORS)
def test_dense(name, normalizer, normalize_scores, problem):
    scores, values = problem
    layer = LatentAttention(
        "attention", make_prior(name, width=WIDTH), normalizer=make_normalizer(normalizer),
        normalize_scores=normalize_scores,
    )  # fmt: skip
    output = layer(scores, values, keys=values, layout=Dense(MASK))
    expected = layer.normalizer(scores, Dense(MASK))
    torch.testing.assert_close(output.weights, expected)
    torch.testing.assert_close(output.context, expected @ values)
    if normalizer == "softmax":
        torch.testing.assert_close(output.weights, expected_weights(scores))

    def model():
        with pyro.plate("batch", BATCH):
            return layer(scores, values, keys=values, layout=Dense(MASK))

    guided = AttentionGuide(model, Soft()).run().output
    assert torch.equal(guided.weights, output.weights)
    assert torch.equal(model().weights, output.weights)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (DirichletPrior(), lambda scores: expected_weights(scores.clamp(-10, 10))),
        (FixedGaussianPrior(), expected_weights),
        (ContextualGaussianPrior(WIDTH), expected_weights),
    ],
    ids=["dirichlet", "gaussian", "contextual gaussian"],
)
def test_other_kinds_of_weights(prior, expected, problem):
    """The mean of the Dirichlet prior; of Gaussian weights the mean of the posterior."""
    scores, values = problem
    scores = 8 * scores
    output = LatentAttention("attention", prior)(scores, values, keys=values, layout=Dense(MASK))
    torch.testing.assert_close(output.weights, expected(scores))


def test_alignments():
    """E[z], as under Soft()."""
    scores, values, mask = torch.randn(BATCH, 1, KEYS), torch.randn(BATCH, 1, KEYS, WIDTH), MASK[0]
    layer = LatentAttention("alignment", AlignmentPrior())

    def model():
        with pyro.plate("words", BATCH):
            return layer(scores, values, layout=Dense(mask, event_dim=2))

    for output in (model(), layer(scores, values, layout=Dense(mask, event_dim=2))):
        torch.testing.assert_close(output.weights, expected_weights(scores, mask))
        torch.testing.assert_close(output.weights, AttentionGuide(model, Soft()).run().output.weights)


@pytest.mark.parametrize(
    "masks", [{}, {"is_causal": True}, {"key_padding_mask": torch.arange(4) > torch.tensor([[3], [1]])}]
)
@pytest.mark.parametrize("name", POSITIVE_PRIORS)
def test_blocked(name, masks):
    x = torch.randn(BATCH, 4, 8)
    layer = BlockedMultiheadAttention(8, HEADS, prior=make_prior(name, width=4))
    blocked = layer(x, x, x, need_weights=False, **masks)[0]
    layer.implementation = "dense"
    torch.testing.assert_close(blocked, layer(x, x, x, **masks)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "copy", "inputs"),
    [
        (
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            MultiheadAttention.from_torch,
            lambda: [torch.randn(BATCH, 4, 8)] * 3,
        ),
        (
            lambda: GATConv(8, 3, heads=2).eval(),
            GraphAttention.from_pyg,
            lambda: [torch.randn(5, 8), torch.randint(5, (2, 9))],
        ),
    ],
    ids=["torch", "pyg"],
)
def test_copies_are_the_layers_they_copy(make, copy, inputs):
    """Without a guide, twice, in batches without plates."""
    layer, arguments = make(), inputs()
    copied = copy(layer)
    for _ in range(2):
        torch.testing.assert_close(copied(*arguments), layer(*arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", POSITIVE_PRIORS)
def test_graphs_with_a_batch(name):
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]]), num_nodes=3)
    scores, values = torch.randn(BATCH, 4, HEADS), torch.randn(BATCH, 3, HEADS, WIDTH)
    layer = LatentAttention("attention", make_prior(name, width=WIDTH), normalizer=DoublyNormalized())
    output = layer(scores, values, keys=values, layout=graph)
    torch.testing.assert_close(output.weights, layer.normalizer(scores, graph))


HANDLERS = {
    "nothing": (nullcontext, False),
    "plate": (lambda: pyro.plate("batch", BATCH), False),
    "mask": (lambda: poutine.mask(mask=True), False),
    "scale": (lambda: poutine.scale(scale=2.0), False),
    "trace": (poutine.trace, True),
    "seed": (lambda: poutine.seed(rng_seed=1), False),  # sets a seed and stays off Pyro's stack
    "condition": (lambda: poutine.condition(data={"y": torch.ones(())}), True),
    "block": (poutine.block, True),
}


@pytest.mark.parametrize(("handler", "drawn"), HANDLERS.values(), ids=HANDLERS)
@pytest.mark.parametrize("inner", [nullcontext, lambda: pyro.plate("batch", BATCH)], ids=["", "in a plate"])
def test_which_handlers_run_a_model(handler, drawn, inner, problem):
    scores, values = (part[:1, :, :1] if part is problem[0] else part[:1] for part in problem)
    layer = LatentAttention("attention", FixedGammaPrior())
    with ExitStack() as stack:
        stack.enter_context(handler())
        if handler is not HANDLERS["plate"][0]:
            stack.enter_context(inner())
        weights = layer(scores, values).weights
    assert weights.allclose(SOFT(scores, -1)) != drawn


def test_predictive_draws_from_the_prior(problem):
    scores, values = problem
    layer = LatentAttention("attention", FixedGammaPrior())

    def model():
        with pyro.plate("batch", BATCH):
            return layer(scores, values).context

    draws = Predictive(model, num_samples=3)()["attention"]
    assert draws.std(0).min() > 0


def test_a_seed_is_not_touched(problem):
    layer = LatentAttention("attention", FixedGammaPrior()).eval()
    state = torch.get_rng_state()
    layer(*problem)
    assert torch.equal(torch.get_rng_state(), state)
