"""GraphAttention under Soft() is PyG's GATConv or GATv2Conv, and models.gat.GAT a network of two of the first."""

import pyro
import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, SumAggregation

from models.gat import GAT
from pyro_attention import AttentionGuide, FixedGammaPrior, GraphAttention, Soft, Weibull
from tests.toy_models import GraphData, attention_values

FEATURES, WIDTH, EDGE_WIDTH = 5, 4, 3
both_scores = pytest.mark.parametrize("conv", [GATConv, GATv2Conv])


@pytest.fixture
def data():
    """Self loop at node 2, a double edge, and a last node without in-edges."""
    data = GraphData.random()
    data.edge_index[:, 5] = data.edge_index[:, 4]
    return data


def pair(in_channels=FEATURES, conv=GATConv, **options):
    """A layer of PyG with weights and bias of a trained one, and its copy."""
    theirs = conv(in_channels, WIDTH, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.7)
    return theirs, GraphAttention.from_pyg(theirs)


def run(model, *args, family=None):
    """The dataclass of a layer, or what a model returns, under a guide."""
    model = model.attend if isinstance(model, GraphAttention) else model
    return AttentionGuide(model, Soft() if family is None else family).run(*args).output


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def compare(theirs, mine, x, edge_index, edge_attr=None):
    """Outputs, the weights of the input edges and those of the self loops."""
    expected, (edges, weights) = theirs(x, edge_index, edge_attr, return_attention_weights=True)
    output = run(mine, x, edge_index, edge_attr)
    assert_same(output.context, expected)
    if not theirs.add_self_loops:
        assert_same(output.weights, weights)
        assert output.self_loop_weights is None
        return
    # PyG drops the self loops of the input and appends one per node
    loop = edge_index[0] == edge_index[1]
    assert edges[:, : (~loop).sum()].equal(edge_index[:, ~loop])
    expected_edges, expected_loops = weights.split([int((~loop).sum()), output.context.size(-2)])
    assert_same(output.weights[~loop], expected_edges)
    assert (output.weights[loop] == 0).all()
    assert_same(output.self_loop_weights, expected_loops)


@both_scores
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_layer(data, conv, concat, heads, add_self_loops, residual):
    options = {"concat": concat, "heads": heads, "add_self_loops": add_self_loops, "residual": residual}
    theirs, mine = pair(conv=conv, **options)
    compare(theirs, mine, data.features, data.edge_index)
    if not add_self_loops and not residual:  # nobody to attend to
        assert_same(run(mine, data.features, data.edge_index).context[-1], mine.bias)


@both_scores
@pytest.mark.parametrize("options", [{"bias": False}, {"negative_slope": 0.01}, {"dropout": 0.5}], ids=str)
def test_options(data, conv, options):
    theirs, mine = pair(conv=conv, heads=2, **options)
    compare(theirs.eval(), mine.eval(), data.features, data.edge_index)


@both_scores
@pytest.mark.parametrize("fill_value", ["mean", "add", "max", "min", "mul", 0.7])
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_edge_features(data, conv, fill_value, add_self_loops):
    theirs, mine = pair(conv=conv, heads=2, edge_dim=EDGE_WIDTH, fill_value=fill_value, add_self_loops=add_self_loops)
    compare(theirs, mine, data.features, data.edge_index, torch.randn(data.edge_index.size(1), EDGE_WIDTH))


@both_scores
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("edge_dim", [None, EDGE_WIDTH])
def test_bipartite(conv, residual, edge_dim):
    """Seven sources, four targets of another width, the last without in-edges."""
    theirs, mine = pair((FEATURES, 2), conv=conv, heads=3, add_self_loops=False, residual=residual, edge_dim=edge_dim)
    edge_index = torch.stack([torch.randint(0, 7, (12,)), torch.randint(0, 3, (12,))])
    x = torch.randn(7, FEATURES), torch.randn(4, 2)
    compare(theirs, mine, x, edge_index, None if edge_dim is None else torch.randn(12, edge_dim))


@pytest.mark.parametrize("bipartite", [False, True])
def test_shared_weights(data, bipartite):
    theirs, mine = pair((FEATURES, FEATURES) if bipartite else FEATURES, conv=GATv2Conv, heads=2, share_weights=True)
    x = (data.features, torch.randn_like(data.features)) if bipartite else data.features
    assert mine.lin_dst is None
    compare(theirs, mine, x, data.edge_index)


def test_second_scores_order_neighbours_by_the_query(data):
    """Static scores have one order of the keys for all queries; dynamic ones need not."""
    orders = []
    for conv in (GATConv, GATv2Conv):
        _, mine = pair(conv=conv, add_self_loops=False)
        every_pair = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T.flip(0)
        weights = run(mine, data.features, every_pair).weights.view(7, 7)
        orders.append({tuple(row.argsort().tolist()) for row in weights})
    assert len(orders[0]) == 1
    assert len(orders[1]) > 1


@both_scores
@pytest.mark.parametrize("edge_index", [torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0], [0]])], ids=str)
def test_graphs_with_next_to_nothing(conv, edge_index):
    compare(*pair(conv=conv, heads=2), torch.randn(3, FEATURES), edge_index)


@both_scores
def test_gradients(data, conv):
    theirs, mine = pair(conv=conv, heads=2)
    x = data.features.requires_grad_()
    expected = torch.autograd.grad(theirs(x, data.edge_index).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(run(mine, x, data.edge_index).context.square().sum(), x), expected)


def test_an_edge_list_built_once(data):
    _, mine = pair(heads=2)
    direct, built = run(mine, data.features, data.edge_index), run(mine, data.features, data.graph)
    for name in ("context", "weights", "self_loop_weights"):
        assert getattr(direct, name).equal(getattr(built, name))


def test_batch_of_features_on_one_graph(data):
    _, mine = pair(heads=2)
    x = torch.randn(2, 7, FEATURES)
    with pytest.raises(ValueError, match=r"site 'graph_attention': batch shape \(2,\) has no plate"):
        run(mine, x, data.graph)

    def model():
        with pyro.plate("batch", 2):
            return mine.attend(x, data.graph)

    output = run(model)
    for i in range(2):
        single = run(mine, x[i], data.graph)
        assert_same((output.context[i], output.weights[i]), (single.context, single.weights))


@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision(data, autocast):
    """Weights in float32, close to those of float32 scores; context in the dtype of the projected nodes."""
    _, mine = pair(heads=2)
    expected = run(mine, data.features, data.edge_index)
    x = data.features.requires_grad_()
    if not autocast:
        mine, x = mine.bfloat16(), data.features.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = run(mine, x, data.edge_index)
    assert output.weights.dtype == torch.float32
    torch.testing.assert_close(output.weights, expected.weights, rtol=0, atol=0.1)
    torch.testing.assert_close(output.context.float(), expected.context, rtol=0.05, atol=0.1)
    output.context.float().sum().backward()
    assert data.features.grad.isfinite().all()


def test_value_dropout_leaves_the_scores_alone(data):
    _, mine = pair(heads=2, bias=False)
    dropping = GraphAttention(FEATURES, WIDTH, heads=2, bias=False, value_dropout=0.5)
    dropping.load_state_dict(mine.state_dict())
    plain, dropped = (run(layer, data.features, data.edge_index) for layer in (mine, dropping.train()))
    assert torch.equal(plain.weights, dropped.weights)
    assert not torch.allclose(plain.context, dropped.context)
    # of a node that attends to itself alone, values are dropped or doubled
    alone = torch.zeros(2, 0, dtype=torch.long)
    plain, dropped = (run(layer, data.features, alone).context for layer in (mine, dropping))
    kept = (dropped != 0).float()
    assert 0 < kept.mean() < 1
    assert_same(dropped, 2 * kept * plain)
    assert_same(run(dropping.eval(), data.features, alone).context, plain)


def test_sparse_features(data):
    _, mine = pair(heads=2)
    x = data.features.relu()
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        assert_same(run(mine, sparse, data.edge_index).context, run(mine, x, data.edge_index).context)
    with pytest.raises(ValueError, match=r"x has shape \(7, 4\), expected \[..., nodes, 5\]"):
        mine(x[:, 1:].to_sparse(), data.edge_index)


def test_permuting_the_nodes_permutes_the_results(data):
    _, mine = pair(heads=2)
    order = torch.randperm(7)
    position = order.argsort()
    plain = run(mine, data.features, data.edge_index)
    permuted = run(mine, data.features[order], position[data.edge_index])
    assert_same(permuted.context, plain.context[order])
    assert_same(permuted.weights, plain.weights)
    assert_same(permuted.self_loop_weights, plain.self_loop_weights[order])
    shuffle = torch.randperm(data.edge_index.size(1))
    assert_same(run(mine, data.features, data.edge_index[:, shuffle]).weights, plain.weights[shuffle])


def test_stochastic_weights(data):
    """Rows are distributions and the context is their mixture of the projected nodes."""
    _, mine = pair(heads=2, bias=False)
    output = run(mine, data.features, data.edge_index, family=Weibull(2.0))
    assert not output.weights.allclose(run(mine, data.features, data.edge_index).weights)
    target, total = data.edge_index[1], output.self_loop_weights.clone()
    assert_same(total.index_add(0, target, output.weights), torch.ones(7, 2))
    nodes = mine.lin_src(data.features).unflatten(-1, (2, WIDTH))
    context = output.self_loop_weights.unsqueeze(-1) * nodes
    messages = output.weights.unsqueeze(-1) * nodes[data.edge_index[0]]
    assert_same(output.context, context.index_add(0, target, messages).flatten(1))


def test_the_copy_keeps_dtype_name_and_prior():
    prior = FixedGammaPrior()
    copy = GraphAttention.from_pyg(GATConv(3, 4).double(), name="layers.7", prior=prior)
    assert {parameter.dtype for parameter in copy.parameters()} == {torch.float64}
    assert (copy.attention.name, copy.attention.prior) == ("layers.7", prior)


@pytest.mark.parametrize("training", [True, False])
def test_the_copy_keeps_the_mode(training):
    assert GraphAttention.from_pyg(GATConv(3, 4).train(training)).training == training


@pytest.mark.parametrize("aggr", ["add", "sum", SumAggregation()], ids=str)
def test_names_of_the_sum(data, aggr):
    compare(*pair(heads=2, aggr=aggr), data.features, data.edge_index)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("in_channels", "edge_dim"), [(-1, None), (-1, -1), ((-1, -1), None)])
def test_sizes_that_pyg_finds_out(data, in_channels, edge_dim, residual):
    """Once it has seen data, the layer has parameters, though its ``in_channels`` stays -1."""
    theirs = GATConv(in_channels, WIDTH, heads=2, edge_dim=edge_dim, residual=residual)
    edge_attr = None if edge_dim is None else torch.randn(data.edge_index.size(1), EDGE_WIDTH)
    theirs(data.features, data.edge_index, edge_attr)
    compare(theirs, GraphAttention.from_pyg(theirs), data.features, data.edge_index, edge_attr)


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_one_number_an_edge(data, add_self_loops):
    theirs, mine = pair(heads=2, edge_dim=1, add_self_loops=add_self_loops)
    compare(theirs, mine, data.features, data.edge_index, torch.randn(data.edge_index.size(1)))


@pytest.mark.parametrize(("edges", "nodes"), [(5, 2), (9, 2), (50, 3)])
@pytest.mark.parametrize("heads", [1, 2])
def test_multigraphs(edges, nodes, heads):
    """More edges between two nodes than torch's product with a pattern takes, all of them alike or not."""
    torch.manual_seed(0)
    for edge_index in (torch.tensor([[0], [1]]).expand(2, edges), torch.randint(nodes, (2, edges))):
        theirs, mine = (layer.double() for layer in pair(heads=heads, add_self_loops=False))
        x = torch.randn(nodes, FEATURES, dtype=torch.float64, requires_grad=True)
        outputs = theirs(x, edge_index), mine(x, edge_index)
        leaves = [x, theirs.att_src, theirs.lin.weight], [x, mine.score.att_src, mine.lin_src.weight]
        gradients = [torch.autograd.grad(out.square().sum(), of) for out, of in zip(outputs, leaves, strict=True)]
        torch.testing.assert_close(*gradients)


class PygGAT(nn.Module):
    """The network of Velickovic et al. (2018), as PyG's examples write it."""

    def __init__(self, in_features, classes, hidden, heads, output_heads):
        super().__init__()
        self.first = GATConv(in_features, hidden, heads, dropout=0.6)
        self.second = GATConv(hidden * heads, classes, output_heads, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = nn.functional.dropout(x, 0.6, self.training)
        x = nn.functional.elu(self.first(x, edge_index))
        return self.second(nn.functional.dropout(x, 0.6, self.training), edge_index)


@pytest.mark.parametrize("output_heads", [1, 8])
def test_network(data, output_heads):
    theirs = PygGAT(FEATURES, 3, 8, 8, output_heads).eval()
    mine = GAT(FEATURES, 3, output_heads=output_heads)
    for name, conv in (("layers.0", theirs.first), ("layers.1", theirs.second)):
        copied = GraphAttention.from_pyg(conv, name=name)
        mine.layers[int(name[-1])].load_state_dict(copied.state_dict(), strict=False)
    mine.eval()
    assert_same(run(mine, data.features, data.graph), theirs(data.features, data.edge_index))
    sites = attention_values(AttentionGuide(mine, Soft()), *data.arguments)
    assert {name: value.shape[-1] for name, (_, value) in sites.items()} == {"layers.0": 8, "layers.1": output_heads}
