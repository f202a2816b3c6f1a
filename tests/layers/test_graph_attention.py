"""GraphAttention under Soft() is PyG's GATConv or GATv2Conv, and GAT a network of two; and what it refuses."""

import pyro
import pytest
import torch
from torch import nn
from torch_geometric import utils
from torch_geometric.nn import GATConv, GATv2Conv

from models.gat import GAT
from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    EdgeList,
    GraphAttention,
    Marginal,
    NodeLikelihood,
    Soft,
    Weibull,
)
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
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 3, "concat": False, "residual": True},
        {"heads": 3, "add_self_loops": False, "bias": False},
        {"heads": 2, "negative_slope": 0.01, "dropout": 0.5, "residual": True},
    ],
    ids=str,
)
def test_layer(data, conv, options):
    theirs, mine = pair(conv=conv, **options)
    compare(theirs.eval(), mine.eval(), data.features, data.edge_index)


@pytest.mark.parametrize("fill_value", ["mean", "add", "max", "min", "mul", 0.7, torch.arange(3.0)], ids=str)
def test_edge_features(data, fill_value):
    for conv, add_self_loops in ((GATConv, True), (GATv2Conv, True), (GATConv, False)):
        theirs, mine = pair(
            conv=conv, heads=2, edge_dim=EDGE_WIDTH, fill_value=fill_value, add_self_loops=add_self_loops
        )
        compare(theirs, mine, data.features, data.edge_index, torch.randn(data.edge_index.size(1), EDGE_WIDTH))
    theirs, mine = pair(heads=2, edge_dim=1)
    compare(theirs, mine, data.features, data.edge_index, torch.randn(data.edge_index.size(1)))


@pytest.mark.parametrize("fill_value", ["mean", "add", "max", "min", "mul", 0.7])
def test_features_of_self_loops(data, fill_value):
    """Of all nodes, one of which has no in-edge; a self loop of the input does not count."""
    layer = GraphAttention(FEATURES, WIDTH, edge_dim=EDGE_WIDTH, fill_value=fill_value)
    edge_attr = torch.randn(data.edge_index.size(1), EDGE_WIDTH)
    others = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    expected = utils.add_self_loops(others, edge_attr[data.edge_index[0] != data.edge_index[1]], fill_value, 7)[1]
    graph = EdgeList.from_edge_index(data.edge_index, num_nodes=7, add_self_loops=True)
    assert_same(layer._loop_features(edge_attr, graph), expected[-7:])


@both_scores
@pytest.mark.parametrize(("residual", "edge_dim"), [(True, None), (False, EDGE_WIDTH)])
def test_bipartite(conv, residual, edge_dim):
    """Seven sources, four targets of another width, the last without in-edges."""
    theirs, mine = pair((FEATURES, 2), conv=conv, heads=3, add_self_loops=False, residual=residual, edge_dim=edge_dim)
    edge_index = torch.stack([torch.randint(0, 7, (12,)), torch.randint(0, 3, (12,))])
    x = torch.randn(7, FEATURES), torch.randn(4, 2)
    compare(theirs, mine, x, edge_index, None if edge_dim is None else torch.randn(12, edge_dim))


def test_shared_weights_and_targets_without_features(data):
    x = data.features, torch.randn(4, FEATURES)
    for conv, in_channels in ((GATv2Conv, (FEATURES, FEATURES)), (GATConv, FEATURES)):
        options = {"share_weights": True} if conv is GATv2Conv else {}
        theirs, mine = pair(in_channels, conv=conv, heads=2, add_self_loops=False, **options)
        assert mine.lin_dst is None
        compare(theirs, mine, x, data.edge_index.clamp(max=3))
    theirs, mine = pair((FEATURES, 6), heads=2, add_self_loops=False, residual=True)
    edges = data.edge_index.clamp(max=3)
    assert_same(mine((x[0], torch.zeros(4, 6)), edges), theirs((x[0], None), edges, size=(7, 4)))


@both_scores
@pytest.mark.parametrize("edge_index", [torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0], [0]])], ids=str)
def test_graphs_with_next_to_nothing(conv, edge_index):
    compare(*pair(conv=conv, heads=2), torch.randn(3, FEATURES), edge_index)


@both_scores
@pytest.mark.parametrize(("edges", "nodes"), [(16, 7), (50, 3)])
def test_gradients(conv, edges, nodes):
    """Of a graph, and of more edges between two nodes than torch's product with a pattern takes."""
    theirs, mine = (layer.double() for layer in pair(conv=conv, heads=2, add_self_loops=False))
    x, edge_index = (
        torch.randn(nodes, FEATURES, dtype=torch.float64, requires_grad=True),
        torch.randint(nodes, (2, edges)),
    )
    leaves = [x, next(theirs.parameters())], [x, mine.score.att_src if conv is GATConv else mine.score.att]
    outputs = theirs(x, edge_index), run(mine, x, edge_index).context
    found = [torch.autograd.grad(out.square().sum(), of) for out, of in zip(outputs, leaves, strict=True)]
    torch.testing.assert_close(*found)


def test_the_weights_of_pyg_and_edges_in_other_forms(data):
    theirs, mine = pair(heads=2)
    expected = theirs(data.features, data.edge_index, return_attention_weights=True)
    for edges in (data.edge_index, data.edge_index.int(), data.graph):
        assert_same(mine(data.features, edges, size=(7, None), return_attention_weights=True), expected)
    theirs, mine = pair((FEATURES, FEATURES), heads=2, add_self_loops=False)
    edges, x = EdgeList.from_edge_index(data.edge_index, num_nodes=7), (data.features, data.features[:4])
    edges = torch.stack([edges.sources.index, edges.targets.index]).clamp(max=3).unique(dim=1)
    matrix = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.size(1)), (4, 7), check_invariants=True)
    for form in (matrix, matrix.to_sparse_csr(), matrix.to_sparse_csc()):  # a row for each target
        assert_same(mine(x, form), theirs(x, edges))


@pytest.mark.parametrize("form", ["numpy", "data", "other data", "in place"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_edges_that_change_between_calls(data, form, dtype):
    """NumPy and ``.data`` write into a tensor without a new version of it."""
    theirs, mine = pair(heads=2)
    edges = data.edge_index.to(dtype).numpy().copy()
    edge_index = torch.from_numpy(edges)
    compare(theirs, mine, data.features, edge_index.long())
    before = mine(data.features, edge_index)
    if form == "numpy":
        edges[0] = edges[0][::-1].copy()
    elif form == "data":
        edge_index.data[0] = edge_index[0].flip(0)
    elif form == "other data":
        edge_index.data = edge_index[:, 3:].flip(0)
    else:
        edge_index[0] = edge_index[0].flip(0)
    after = mine(data.features, edge_index)
    assert not torch.allclose(after, before)
    assert_same(after, theirs(data.features, edge_index.long()))


def test_batch_of_features_on_one_graph(data):
    _, mine = pair(heads=2)
    x = torch.randn(2, 7, FEATURES)

    def model():
        with pyro.plate("batch", 2):
            return mine.attend(x, data.graph)

    output = run(model)
    for i in range(2):
        single = run(mine, x[i], data.graph)
        assert_same((output.context[i], output.weights[i]), (single.context, single.weights))


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


def test_network(data):
    theirs = PygGAT(FEATURES, 3, 8, 8, 8).eval()
    mine = GAT(FEATURES, 3, output_heads=8)
    for name, conv in (("layers.0", theirs.first), ("layers.1", theirs.second)):
        copied = GraphAttention.from_pyg(conv, name=name)
        mine.layers[int(name[-1])].load_state_dict(copied.state_dict(), strict=False)
    mine.eval()
    assert_same(run(mine, data.features, data.graph), theirs(data.features, data.edge_index))
    sites = attention_values(AttentionGuide(mine, Soft()), *data.arguments)
    assert {name: value.shape[-1] for name, (_, value) in sites.items()} == {"layers.0": 8, "layers.1": 8}


# what is refused


class OtherConv(GATConv):
    """May compute something else."""


@pytest.mark.parametrize(
    ("conv", "error", "message"),
    [
        (lambda: OtherConv(3, 4), TypeError, "OtherConv, expected a GATConv or GATv2Conv"),
        (lambda: GATConv(3, 4, flow="target_to_source"), ValueError, r"flow='target_to_source'.*edge_index.flip\(0\)"),
        (lambda: GATv2Conv(3, 4, aggr="max"), ValueError, "a MaxAggregation, expected .* aggr='add'"),
    ],
)
def test_layers_that_cannot_be_copied(conv, error, message):
    with pytest.raises(error, match=f"cannot copy .*{message}"):
        GraphAttention.from_pyg(conv())


x = torch.zeros(7, FEATURES)


@pytest.mark.parametrize(
    ("options", "arguments", "error", "message"),
    [
        ({}, {"edge_index": torch.tensor([[0, 7], [1, 2]])}, ValueError, "names source nodes 0 to 7, expected 0 to 6"),
        ({"edge_dim": 3}, {"edge_attr": torch.zeros(15, 3)}, ValueError, r"edge_attr has shape \(15, 3\), expected"),
        ({}, {"x": (x, None)}, TypeError, r"x is \(Tensor, NoneType\), expected .*\(sources, targets\); .* zeros"),
        (
            {"in_channels": (5, 5)},
            {"x": (x, x[:4]), "edge_index": torch.zeros(2, 1).long()},
            ValueError,
            "one set of nodes, got 7 sources and 4 targets",
        ),
        ({"share_weights": True}, {}, ValueError, "share_weights needs scores='gatv2'"),
    ],
)
def test_wrong_calls(data, options, arguments, error, message):
    def call():
        layer = GraphAttention(**{"in_channels": FEATURES, "out_channels": WIDTH, **options})
        layer(**{"x": data.features, "edge_index": data.edge_index, **arguments})

    with pytest.raises(error, match=message):
        call()


def test_prior_over_all_nodes():
    """The released code's softmax: prior weights of all nodes, not those of a neighborhood, add up to one."""
    torch.manual_seed(0)
    near, far = (ContextualGammaPrior(2, heads=2, all_nodes=everywhere).network for everywhere in (False, True))
    far.load_state_dict(near.state_dict())
    keys, edges = torch.rand(7, 2, 2), torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 0, 3]])
    graph = EdgeList.from_edge_index(edges, num_nodes=7, add_self_loops=True)
    torch.testing.assert_close(graph.targets.sum(near(keys, graph).exp()), torch.ones(7, 2))
    torch.testing.assert_close(far(keys, graph)[-7:].exp().sum(0), torch.ones(2))  # the loops, one edge a node
    graphs = torch.rand(3, 7, 2, 2)  # such as several draws of the layer below
    torch.testing.assert_close(far(graphs, graph), torch.stack([far(nodes, graph) for nodes in graphs]))
    one_query = EdgeList.from_edge_index(edges * torch.tensor([[1], [0]]), num_nodes=(7, 1))
    torch.testing.assert_close(far(keys, one_query).log_softmax(0), near(keys, one_query))


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize(
    ("prior", "family", "objective"), [(None, Weibull(), AttentionELBO), (AlignmentPrior(), Marginal(), AlignmentELBO)]
)
def test_a_graph_that_inference_mode_has_met_first(data, prior, family, objective, built):
    """What is kept of it serves the training step that comes next, as after the sanity check of a trainer."""
    layer, elbo = GraphAttention(FEATURES, WIDTH, prior=prior), objective(max_plate_nesting=0)

    def model(graph):
        output = layer.attend(data.features, graph)
        likelihood = NodeLikelihood(pyro.distributions.Normal(output.context.sum(-1), 1.0), output)
        pyro.sample("y", likelihood, obs=torch.zeros(len(data.features)))

    guide, gradients = AttentionGuide(model, family), []
    for evaluates_first in (False, True):
        edge_index = data.edge_index.clone()
        count = len(data.features)
        graph = EdgeList.from_edge_index(edge_index, num_nodes=count, add_self_loops=True) if built else edge_index
        if evaluates_first:
            with torch.inference_mode():
                elbo.differentiable_loss(model, guide, graph)
        pyro.set_rng_seed(0)
        loss = elbo.differentiable_loss(model, guide, graph)
        gradients.append(torch.autograd.grad(loss, layer.lin_src.weight)[0])
    torch.testing.assert_close(*gradients)
