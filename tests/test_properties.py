"""Any sizes, none among them, masks, graphs, dtypes and sizes of scores: a training step is finite, or says why not."""

from collections.abc import Callable
from contextlib import ExitStack

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions import Normal
from torch import Tensor, nn

from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    Dense,
    EdgeList,
    GraphAttention,
    LatentAttention,
    MultiheadAttention,
)
from pyro_attention.alignments.priors import AlignmentPrior
from pyro_attention.families.gaussian import GaussianWeights
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import ALL_PAIRS, PAIRS, make_family, make_normalizer, make_prior

WIDTH, HEADS = 4, 2
DTYPES = torch.float32, torch.float64, torch.bfloat16
SPREADS = 0.0, 1.0, 1e3  # of the inputs; the scores of MultiheadAttention are as large as their square

many = settings(max_examples=25, deadline=None, derandomize=True, database=None)
sizes, seeds, normalizers = st.integers(0, 3), st.integers(0, 1000), st.sampled_from(list(NORMALIZERS))
plate_sizes = st.integers(1, 3)  # Pyro has no empty plates
inputs = {"dtype": st.sampled_from(DTYPES), "spread": st.sampled_from(SPREADS), "seed": seeds}


def masks(*shape: int) -> st.SearchStrategy[Tensor]:
    count = torch.Size(shape).numel()
    return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda x: torch.tensor(x).bool().view(shape))


def step(
    layer: nn.Module, family: str, call: Callable[[], tuple[Tensor, Tensor]], *leaves: Tensor, plates: tuple[int, ...]
) -> Tensor:
    """Weights of one training step with zeros observed around the context; the loss and all gradients are finite."""

    def model() -> Tensor:
        with ExitStack() as stack:
            for dim, size in enumerate(plates, start=-len(plates)):
                stack.enter_context(pyro.plate(f"plate{dim}", size, dim=dim))
            context, weights = call()
            zeros = torch.zeros(*plates, *context.shape[-2:])  # an enumerated context has one more dimension
            pyro.sample("y", Normal(context.float(), 1.0).to_event(2), obs=zeros)
        return weights

    posterior = make_family(family, k=3.0, learnable=True)
    elbo = AlignmentELBO(max_plate_nesting=len(plates)) if "enumerate" in posterior.infer else AttentionELBO()
    guide = AttentionGuide(model, posterior)
    loss = elbo.differentiable_loss(model, guide)
    everything = [*leaves, *layer.parameters(), *posterior.parameters()]
    found = torch.autograd.grad(loss, everything, allow_unused=True) if loss.requires_grad else []
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in found if gradient is not None)
    weights: Tensor = guide.run().output
    return weights


def assert_simplices(total: Tensor, seeing: Tensor) -> None:
    """Rows sum to one where a query sees anything, else to zero."""
    torch.testing.assert_close(total, seeing.to(total.dtype).expand(total.shape), rtol=1e-4, atol=1e-5)


@many
@given(st.data(), st.sampled_from(ALL_PAIRS), plate_sizes, plate_sizes, sizes, st.fixed_dictionaries(inputs))
def test_queries_in_plates(data, pair, batch, queries, keys, options):
    """One head; all kinds of weights."""
    family, prior = pair
    torch.manual_seed(options["seed"])
    mask = data.draw(masks(queries, 1, keys))
    scores = (options["spread"] ** 2 * torch.randn(batch, queries, 1, keys)).to(options["dtype"]).requires_grad_()
    values = torch.randn(batch, 1, 1, keys, WIDTH).to(options["dtype"])
    layer = LatentAttention("attention", make_prior(prior, heads=1, width=WIDTH))

    def call() -> tuple[Tensor, Tensor]:
        out = layer(scores, values, keys=values, layout=Dense(mask, event_dim=2))
        return out.context, out.weights

    if keys == 0 and layer.prior.kind == AlignmentPrior.kind:
        with pytest.raises(ValueError, match="expected at least one key"):
            step(layer, family, call, scores, plates=(batch, queries))
        return
    weights = step(layer, family, call, scores, plates=(batch, queries))
    assert (weights[..., ~mask] == 0).all()
    if layer.prior.kind != GaussianWeights.kind:
        assert_simplices(weights.sum(-1), mask.any(-1))


@many
@given(
    st.data(), st.sampled_from(PAIRS), st.sampled_from(list(NORMALIZERS)), sizes, sizes, st.fixed_dictionaries(inputs)
)
def test_graphs(data, pair, normalizer, nodes, edges, options):
    """Isolated nodes, the same edge twice, self loops, no edge and no node."""
    family, prior = pair
    torch.manual_seed(options["seed"])
    ends = st.lists(st.integers(0, nodes - 1), min_size=2 * edges, max_size=2 * edges) if nodes else st.just([])
    edge_index = torch.tensor(data.draw(ends), dtype=torch.int64).view(2, -1)
    parts = {"prior": make_prior(prior, width=WIDTH), "normalizer": make_normalizer(normalizer)}
    layer = GraphAttention(WIDTH, WIDTH, HEADS, add_self_loops=data.draw(st.booleans()), **parts).to(options["dtype"])
    x = (options["spread"] * torch.randn(nodes, WIDTH)).to(options["dtype"]).requires_grad_()

    def call() -> tuple[Tensor, Tensor]:
        out = layer.attend(x, edge_index)
        total = out.context.new_zeros(nodes, HEADS, dtype=out.weights.dtype).index_add(0, edge_index[1], out.weights)
        return out.context, total if out.self_loop_weights is None else total + out.self_loop_weights

    total = step(layer, family, call, x, plates=())
    seeing = torch.zeros(nodes, dtype=torch.bool)
    seeing[edge_index[1]] = True
    assert_simplices(total, (seeing | layer.add_self_loops).unsqueeze(-1))


@many
@given(st.data(), st.sampled_from(PAIRS), plate_sizes, sizes, sizes, st.fixed_dictionaries(inputs))
def test_sequences(data, pair, batch, queries, keys, options):
    """Padding and other masks; every normalizer, but where it would leak the future."""
    family, prior = pair
    torch.manual_seed(options["seed"])
    padding, causal = data.draw(masks(batch, keys)), data.draw(st.booleans())
    nobody = torch.zeros(batch, queries, dtype=torch.bool)
    normalizer = "softmax" if causal else data.draw(normalizers)
    parts = {"prior": make_prior(prior, width=WIDTH // HEADS), "normalizer": make_normalizer(normalizer)}
    layer = MultiheadAttention(WIDTH, HEADS, name="attention", **parts).to(options["dtype"])
    x, memory = (
        (options["spread"] * torch.randn(batch, length, WIDTH)).to(options["dtype"]).requires_grad_()
        for length in (queries, keys)
    )

    def call() -> tuple[Tensor, Tensor]:
        context, weights = layer(
            x, memory, memory, key_padding_mask=padding, query_padding_mask=nobody, is_causal=causal,
            average_attn_weights=False,
        )  # fmt: skip
        return context, weights

    weights = step(layer, family, call, x, memory, plates=(batch,))
    seen = ~padding[:, None, None, :].expand(batch, 1, queries, keys)
    assert_simplices(weights.sum(-1), (seen.tril() if causal else seen).any(-1))


@many
@given(st.data(), plate_sizes, sizes, seeds)
def test_a_mask_is_a_graph(data, queries, keys, seed):
    """A dense layout with a mask, and the graph whose edges are its unmasked entries."""
    torch.manual_seed(seed)
    mask = data.draw(masks(queries, keys))
    target, source = mask.nonzero().T
    dense = Dense(mask)
    edges = EdgeList.from_edge_index(torch.stack([source, target]), num_nodes=(keys, queries))
    scores, values = torch.randn(HEADS, queries, keys), torch.randn(HEADS, keys, WIDTH)

    def on_edges(x: Tensor) -> Tensor:
        return x.expand(HEADS, queries, keys)[:, target, source].T

    weights = dense.softmax(scores)
    torch.testing.assert_close(edges.softmax(on_edges(scores)), on_edges(weights))
    for over in (False, True):
        expected = dense.log_softmax(scores, over_queries=over)
        torch.testing.assert_close(edges.log_softmax(on_edges(scores), over_queries=over), on_edges(expected))
    contexts = edges.aggregate(on_edges(weights), values.transpose(0, 1)), dense.aggregate(weights, values)
    torch.testing.assert_close(contexts[0].transpose(0, 1), contexts[1])
    torch.testing.assert_close(edges.spread_keys(values[..., 0]), on_edges(dense.spread_keys(values[..., 0])))
    spread = torch.arange(float(HEADS))
    assert edges.spread_heads(spread).expand(len(source), HEADS).equal(on_edges(dense.spread_heads(spread)))
