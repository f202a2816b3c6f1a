"""The layers stand where those that they mirror stood: in other people's models, which call and unpack them."""

import copy
import pickle

import pyro
import pytest
import torch
import torch_geometric.nn as pyg
from pyro.distributions import Normal
from torch import nn
from torchvision.models.vision_transformer import EncoderBlock

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    GraphAttention,
    LogNormal,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
    predict,
)
from pyro_attention.integrations.torch_nn import bayesian

BATCH, LENGTH, WIDTH, HEADS = 3, 5, 8, 2
PADDING = torch.arange(LENGTH) >= torch.tensor([[5], [3], [2]])
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 2, 1, 2, 0]])
nested = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def latent(model):
    """A copy of a model with our layers in place of torch's and PyG's."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if type(module) is nn.MultiheadAttention:
            setattr(model.get_submodule(parent), child, MultiheadAttention.from_torch(module))
        elif type(module) is pyg.GATConv:
            model.get_submodule(parent).add_module(child, GraphAttention.from_pyg(module))
    return model


def under_soft(model, *args, **kwargs):
    """What a model returns in a plate for the batch, and the names of its sites."""

    def in_plate(*args, **kwargs):
        with pyro.plate("batch", BATCH):
            return model(*args, **kwargs)

    guide = AttentionGuide(model, Soft())  # names the sites
    guide = AttentionGuide(in_plate, Soft()) if args[0].dim() == 3 else guide
    run = guide.run(*args, **kwargs)
    return run.output, [name for name, site in run.trace.nodes.items() if "prior" in (site.get("infer") or {})]


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


def make_encoder(norm_first=False):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    return encoder


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("gradient", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
@nested
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(x, training, gradient, masks, norm_first):
    """In eval mode without gradients torch nests the padded input and runs a fused kernel."""
    theirs = make_encoder(norm_first).train(training)
    mine = latent(theirs)
    arguments = {"src_key_padding_mask": PADDING} if masks in ("padding", "both") else {}
    if masks in ("causal", "both"):
        arguments["mask"] = torch.ones(LENGTH, LENGTH).triu(1).bool()
    with torch.set_grad_enabled(gradient):
        expected, alone = theirs(x, **arguments), mine(x, **arguments)
        guided, sites = under_soft(mine, x, **arguments)
    kept = (
        ~PADDING if "src_key_padding_mask" in arguments else torch.ones_like(PADDING)
    )  # torch's kernel zeros the rest
    assert_same(alone[kept], expected[kept])
    assert_same(guided[kept], expected[kept])
    assert sites == ["layers.0.self_attn", "layers.1.self_attn"]


def test_an_encoder_made_of_a_layer_with_latent_attention(x):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
    layer.self_attn = MultiheadAttention.from_torch(layer.self_attn)
    with pytest.warns(UserWarning, match="self.use_nested_tensor is False because"):
        nn.TransformerEncoder(layer, 2)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        output, sites = under_soft(encoder, x, src_key_padding_mask=PADDING)
    assert output.shape == x.shape
    assert sites == ["layers.0.self_attn", "layers.1.self_attn"]


@nested
def test_a_nested_tensor_is_refused(x):
    """Torch's first layer decides for all whether the input is nested."""
    theirs = make_encoder().eval()
    theirs.layers[1] = latent(theirs.layers[1])
    with torch.no_grad(), pytest.raises(ValueError, match=r"query is a nested tensor.*enable_nested_tensor=False"):
        theirs(x, src_key_padding_mask=PADDING)


def test_transformer_decoder(x):
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)
    theirs, memory = nn.TransformerDecoder(layer, 2), torch.randn(BATCH, 4, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    padding = torch.zeros(BATCH, 4).masked_fill(torch.arange(4) >= torch.tensor([[4], [1], [2]]), -torch.inf)
    output, sites = under_soft(latent(theirs), x, memory, tgt_mask=mask, memory_key_padding_mask=padding)
    assert_same(output, theirs(x, memory, tgt_mask=mask, memory_key_padding_mask=padding))
    assert sites == [f"layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn")]


class Regression(nn.Module):
    """A number for each sequence from a torch encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = latent(make_encoder())

    def forward(self, x, y=None):
        with pyro.plate("batch", len(x), dim=-1):
            mean = self.encoder(x, src_key_padding_mask=PADDING).mean((-2, -1))
            pyro.sample("y", Normal(mean, 1.0), obs=y)
        return mean


def test_a_torch_encoder_is_trained_and_predicts(x):
    """Samples put a dimension in front of what the second layer gets, and the encoder passes it on."""
    model = Regression()
    guide = AttentionGuide(model, {"encoder.layers.0.*": Weibull(), "*": LogNormal()})
    AttentionELBO(num_particles=2, vectorize_particles=True)(model, guide)(x, torch.zeros(BATCH)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    report = check_model(model, guide, x, torch.zeros(BATCH), elbo=AttentionELBO(kl_weight=1e-4))
    assert [site.name for site in report.sites] == [f"encoder.layers.{i}.self_attn" for i in range(2)]
    assert report.ok, report.problems
    prediction = predict(guide, x, num_samples=20, seed=0)
    assert prediction.variance.shape == (BATCH,)
    assert (prediction.variance > 0).all()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_vision_transformer_block(x, training):
    theirs = EncoderBlock(HEADS, WIDTH, 16, 0.0, 0.0).train(training)
    output, sites = under_soft(latent(theirs), x)
    assert_same(output, theirs(x))
    assert sites == ["self_attention"]


def test_pyg_sequential():
    theirs = pyg.Sequential(
        "x, edge_index",
        [
            (pyg.GATConv(WIDTH, 4, heads=2), "x, edge_index -> x"),
            nn.ReLU(),
            (pyg.GATConv(8, 3, heads=2, concat=False), "x, edge_index -> x"),
        ],
    )
    x = torch.randn(5, WIDTH)
    output, sites = under_soft(latent(theirs), x, EDGES)
    assert_same(output, theirs(x, EDGES))
    assert len(set(sites)) == 2


@pytest.mark.parametrize("convert", [latent, bayesian])
def test_attention_that_is_asked_for_by_its_class(convert):
    """PyG's layer tests isinstance() and leaves out attention of another class."""
    theirs = pyg.GPSConv(WIDTH, conv=None, heads=HEADS, dropout=0.0, norm=None)
    x, batch = torch.randn(LENGTH + 3, WIDTH), torch.tensor([0] * 3 + [1] * 2 + [2] * 3)
    mine = convert(copy.deepcopy(theirs))

    def in_plate():
        with pyro.plate("batch", BATCH):
            return mine(x, EDGES, batch)

    run = AttentionGuide(in_plate, Soft()).run()
    expected = theirs(x, EDGES, batch)
    assert_same(mine(x, EDGES, batch), expected)
    assert_same(run.output, expected)
    assert "prior" in run.trace.nodes[mine.attn.attention.name]["infer"]
    assert_same(pickle.loads(pickle.dumps(mine))(x, EDGES, batch), expected)
    mine.reset_parameters()
    assert not mine(x, EDGES, batch).allclose(expected, atol=0.1)


def test_hetero_conv():
    """A relation between nodes of one type, and one between two types; the layers get pairs."""
    theirs = pyg.HeteroConv(
        {
            ("paper", "cites", "paper"): pyg.GATConv(WIDTH, 4, heads=2),
            ("author", "writes", "paper"): pyg.GATConv((3, WIDTH), 4, heads=2, add_self_loops=False),
            ("paper", "written.by", "author"): pyg.GATConv((WIDTH, 3), 4, heads=2, add_self_loops=False),
        }
    )
    nodes = {"paper": torch.randn(5, WIDTH), "author": torch.randn(4, 3)}
    edges = dict.fromkeys(theirs.convs.keys(), EDGES)
    mine = latent(theirs)
    expected, alone = theirs(nodes, edges), mine(nodes, edges)
    run = AttentionGuide(mine, Soft()).run(nodes, edges)
    for name, output in expected.items():
        assert_same(alone[name], output)
        assert_same(run.output[name], output)
    sites = AttentionGuide(mine, Weibull())(nodes, edges)
    assert len(sites) == 3
    assert all(name.startswith("convs.<") for name in sites)


class Messages(pyg.MessagePassing):
    """What the page on graphs of one's own puts around the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)


class Network(nn.Module):
    """One layer, for a transformation of networks."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)


def test_to_hetero():
    nodes = {"paper": torch.randn(5, WIDTH), "author": torch.randn(4, WIDTH)}
    edges = {("paper", "cites", "paper"): EDGES, ("author", "writes", "paper"): EDGES, ("paper", "by", "author"): EDGES}
    layers = [layer((WIDTH, WIDTH), 4, add_self_loops=False) for layer in (pyg.GATConv, GraphAttention)]
    theirs, mine = (
        pyg.to_hetero(Network(layer), (list(nodes), list(edges))) for layer in (layers[0], Messages(layers[1]))
    )
    for path, layer in theirs.named_modules():
        if isinstance(layer, pyg.GATConv):
            mine.get_submodule(path).layer.load_state_dict(GraphAttention.from_pyg(layer).state_dict())
    run = AttentionGuide(mine, Soft()).run(nodes, edges)
    for name, output in theirs(nodes, edges).items():
        assert_same(run.output[name], output)


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_the_weights_of_pyg(add_self_loops):
    theirs = pyg.GATConv(WIDTH, 3, heads=2, add_self_loops=add_self_loops)
    mine, x = GraphAttention.from_pyg(theirs), torch.randn(5, WIDTH)
    for size in (None, (5, 5)):
        expected = theirs(x, EDGES, size=size, return_attention_weights=True)
        assert_same(mine(x, EDGES, size=size, return_attention_weights=True), expected)
    assert torch.equal(mine(x, EDGES, None, None, True)[0], mine(x, EDGES))


@pytest.mark.parametrize("residual", [True, False])
def test_one_projection_for_two_kinds_of_nodes(residual):
    theirs = pyg.GATConv(WIDTH, 3, heads=2, add_self_loops=False, residual=residual)
    x = torch.randn(5, WIDTH), torch.randn(4, WIDTH)
    assert_same(GraphAttention.from_pyg(theirs)(x, EDGES), theirs(x, EDGES))


def test_targets_without_features():
    """PyG's None adds nothing to the scores, and neither do zeros."""
    theirs = pyg.GATConv((WIDTH, 6), 3, heads=2, add_self_loops=False, residual=True)
    x, targets = torch.randn(5, WIDTH), torch.zeros(4, 6)
    assert_same(
        GraphAttention.from_pyg(theirs)((x, targets), EDGES[:, :5]), theirs((x, None), EDGES[:, :5], size=(5, 4))
    )


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
@pytest.mark.parametrize("form", ["int", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_other_forms_of_the_edges(form):
    """Those that PyG takes; its sparse matrices have a row for each target."""
    theirs, x = pyg.GATConv((WIDTH, WIDTH), 3, heads=2, add_self_loops=False), torch.randn(5, WIDTH)
    edges = (
        EDGES.int()
        if form == "int"
        else torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(6), (4, 5), check_invariants=True)
    )
    edges = edges if form == "int" else getattr(edges, form)()
    assert_same(GraphAttention.from_pyg(theirs)((x, x[:4]), edges), theirs((x, x[:4]), EDGES))


@pytest.mark.parametrize("size", [(5, 4), (6, None)])
def test_another_size_is_refused(size):
    with pytest.raises(ValueError, match="but x has 5 sources and 5 targets"):
        GraphAttention(WIDTH, 3)(torch.randn(5, WIDTH), EDGES, size=size)


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (GraphAttention((5, 3), 4, heads=2, add_self_loops=False), "(5, 3), 4, heads=2"),
        (MultiheadAttention(8, 2, kdim=3), "8, 2, kdim=3, vdim=8"),
    ],
    ids=["graph", "multihead"],
)
def test_sizes_are_shown(layer, shown):
    assert shown in repr(layer)
    assert pickle.loads(pickle.dumps(layer)).attention.name == layer.default_name
