"""One call makes a network of torch, PyG or Hugging Face Bayesian: model, guide and loss."""

import copy

import pyro
import pytest
import torch
import torch_geometric.nn as pyg
import transformers
from pyro.distributions import Bernoulli, Normal
from torch import nn
from torch.nn.functional import cross_entropy

from pyro_attention import AttentionELBO, AttentionGuide, GraphAttention, LogNormal, Soft, bayesian, predict, scheme
from pyro_attention.attention import name_sites
from pyro_attention.integrations.huggingface import ELBOModel
from pyro_attention.integrations.huggingface import bayesian as bayesian_transformer
from pyro_attention.integrations.pyg import bayesian as bayesian_graph
from pyro_attention.integrations.torch_nn import bayesian as bayesian_torch
from pyro_attention.objectives.validation import KLWarning

BATCH, LENGTH, WIDTH, CLASSES = 3, 5, 8, 4
WEIGHTS = ("soft", "weibull", "lognormal", "gamma", "gaussian", "evidence")


class Classifier(nn.Module):
    """An encoder of torch, and a class of each sequence."""

    def __init__(self, outputs=CLASSES, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=batch_first)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, outputs)
        self.length = -2 if batch_first else -3  # from the right, as draws stand at the left

    def forward(self, x):
        return self.out(self.encoder(x).mean(self.length))


class GraphClassifier(nn.Module):
    """GATConv, and GATv2Conv with features of the edges."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GATConv(WIDTH, 4, heads=2), pyg.GATv2Conv(8, CLASSES, heads=2, concat=False)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


X, Y = torch.randn(BATCH, LENGTH, WIDTH), torch.tensor([0, 3, 1])
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 2, 1, 2, 0]])
NODES, CLASS_OF, TRAIN = torch.randn(4, WIDTH), torch.tensor([0, 3, 1, 2]), torch.tensor([True, False, True, True])


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_network_of_torch_trains_and_predicts(name):
    torch.manual_seed(0)
    network = Classifier()
    model, guide, loss = bayesian(network, name, likelihood="classification")
    assert name_sites(model) == [f"network.encoder.layers.{i}.self_attn" for i in range(2)]
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
    values = []
    for _ in range(25):
        optimizer.zero_grad()
        value = loss(X, y=Y)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]
    assert predict(guide, X, num_samples=3).mean.shape == (BATCH, CLASSES)
    assert model(X).shape == (BATCH, CLASSES)


@pytest.mark.parametrize("make", [Classifier, lambda: Classifier(batch_first=False)])
def test_under_soft_the_loss_is_that_of_the_network(make):
    network = make()
    second = network.length == -3
    x = X.transpose(0, 1) if second else X
    expected = cross_entropy(copy.deepcopy(network)(x), Y, reduction="sum")
    loss = bayesian(network, "soft", likelihood="classification", batch_dim=int(second)).loss
    torch.testing.assert_close(loss(x, y=Y), expected)


def test_one_of_torchs_own_layers_has_its_batch_second():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0)
    x, classes = torch.randn(LENGTH, BATCH, WIDTH), torch.randint(WIDTH, (BATCH, LENGTH))
    expected = cross_entropy(copy.deepcopy(layer)(x).permute(1, 2, 0), classes, reduction="sum")
    torch.testing.assert_close(bayesian(layer, "soft", likelihood="classification").loss(x, y=classes), expected)
    model, guide, _ = bayesian(nn.MultiheadAttention(WIDTH, 2), likelihood="regression")
    assert guide.run(x, x, x, y=torch.zeros(BATCH, LENGTH, WIDTH)).trace.nodes["network"]["fn"].batch_shape == (BATCH,)
    assert model(x, x, x).shape == x.shape


def test_regression_learns_its_noise_and_a_function_gives_any_distribution():
    network, y = Classifier(outputs=1), torch.randn(BATCH, 1)
    model, _, loss = bayesian(network, "soft", likelihood="regression")
    mean = model(X)
    torch.testing.assert_close(loss(X, y=y), -Normal(mean, 1.0).log_prob(y).sum())
    loss(X, y=y).backward()
    assert model.log_scale.grad != 0
    loss = bayesian(Classifier(), "soft", likelihood=lambda output: Bernoulli(logits=output).to_event(1)).loss
    y, observed = torch.ones(BATCH, CLASSES), torch.tensor([True, False, True])
    expected = Bernoulli(logits=loss.model(X)).log_prob(y)[observed].sum()
    torch.testing.assert_close(loss(X, y=y, observed=observed), -expected)


def test_a_graph_network_is_the_same_under_soft():
    network = GraphClassifier()
    expected = copy.deepcopy(network)(NODES, EDGES)
    model, guide, loss = bayesian(network, "soft", likelihood="classification")
    assert isinstance(network.first, GraphAttention)
    torch.testing.assert_close(model(NODES, EDGES), expected)
    torch.testing.assert_close(guide.run(NODES, EDGES).output, expected)
    wanted = cross_entropy(expected[TRAIN], CLASS_OF[TRAIN], reduction="sum")
    torch.testing.assert_close(loss(NODES, EDGES, y=CLASS_OF, observed=TRAIN), wanted)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_graph_network_trains(name):
    loss = bayesian(GraphClassifier(), name, likelihood="classification").loss
    loss(NODES, EDGES, y=CLASS_OF, observed=TRAIN).backward()
    assert all(
        layer.lin_src.weight.grad.abs().sum() > 0 for layer in (loss.model.network.first, loss.model.network.second)
    )
    assert sum(isinstance(module, GraphAttention) for module in loss.model.modules()) == 2


def test_models_of_pyg_are_converted_in_place():
    """A GAT, a sequence, a tied layer; and one layer alone."""
    gat = pyg.GAT(WIDTH, 8, num_layers=2, out_channels=3, heads=2, edge_dim=2)
    edge_attr = torch.randn(6, 2)
    expected = gat(NODES, EDGES, edge_attr=edge_attr)
    assert name_sites(bayesian_graph(gat)) == ["convs.0", "convs.1"]
    torch.testing.assert_close(AttentionGuide(gat, Soft()).run(NODES, EDGES, edge_attr=edge_attr).output, expected)
    tied = pyg.GATConv(WIDTH, 4, heads=2)
    sequence = pyg.Sequential("x, edge_index", [(tied, "x, edge_index -> x"), (tied, "x, edge_index -> x")])
    expected = sequence(NODES, EDGES)
    run = AttentionGuide(bayesian_graph(sequence, sites="module_*"), Soft()).run(NODES, EDGES)
    torch.testing.assert_close(run.output, expected)
    assert [name for name, site in run.trace.nodes.items() if site["type"] == "sample"] == ["module_0", "module_0.1"]
    layer = pyg.GATConv(WIDTH, 4).double().eval()
    copied = bayesian_graph(layer)
    assert copied.lin_src.weight.dtype == torch.float64
    assert not copied.training
    torch.testing.assert_close(copied(NODES.double(), EDGES), layer(NODES.double(), EDGES))


def test_a_network_that_attends_along_edges_and_between_all():
    network = pyg.GPSConv(WIDTH, pyg.GATConv(WIDTH, 4, heads=2), heads=2, dropout=0.0, norm=None)
    expected = copy.deepcopy(network)(NODES, EDGES)
    model, guide, _ = bayesian(network, "weibull", likelihood="regression")
    torch.testing.assert_close(model(NODES, EDGES), expected)
    assert len([name for name in guide(NODES, EDGES) if name.startswith("network.")]) == 2


def make_bert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(intermediate_size=16, num_labels=3, **sizes)
    ).eval()


WORDS = {"input_ids": torch.randint(20, (BATCH, LENGTH)), "labels": torch.tensor([0, 2, 1])}


def test_a_model_of_transformers_has_the_loss_that_trainer_takes():
    before = make_bert()(**WORDS).loss
    model, _, loss = bayesian(make_bert(), "soft")
    torch.testing.assert_close(loss(**WORDS)["loss"], before)
    torch.testing.assert_close(model(**WORDS).loss, before)
    assert isinstance(loss, ELBOModel)


@pytest.mark.filterwarnings("ignore::pyro_attention.draws.BroadcastWarning")  # its draws go one by one
def test_a_model_of_transformers_learns_its_width():
    loss = bayesian(make_bert(), "evidence", draws=4).loss
    loss(**WORDS)["loss"].backward()
    widths = [weight for name, weight in loss.model.named_parameters() if "prior" in name]
    assert widths
    assert all(weight.grad is not None for weight in widths)


def test_one_call_gives_what_three_lines_give():
    """The same draws: the call makes the prior, the guide and the objective that the pages write out."""
    pyro.set_rng_seed(0)
    mine = bayesian(make_bert(), "lognormal", scale=0.5, prior="fixed").loss
    model = bayesian_transformer(make_bert(), prior="lognormal_fixed")
    theirs = ELBOModel(model, AttentionGuide(model, LogNormal(0.5)), AttentionELBO(kl_weight=0.01, kl_mean=True))
    losses = []
    for loss in (mine, theirs):
        pyro.set_rng_seed(1)
        losses.append(loss(**WORDS)["loss"])
    torch.testing.assert_close(*losses)
    torch.manual_seed(2)
    network = Classifier()
    torch.manual_seed(3)
    theirs = bayesian_torch(copy.deepcopy(network), prior="gamma_contextual")
    torch.manual_seed(3)
    mine = bayesian(network, scheme("weibull", concentration=5.0), likelihood="regression")
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(mine.model.network.get_parameter(name), weight)


REFUSED = {
    "alignments": (lambda: bayesian(Classifier(), "marginal", likelihood="regression"), "is one of alignments"),
    "relaxed": (lambda: bayesian(Classifier(), "dirichlet", likelihood="regression"), "is one of alignments"),
    "no attention": (lambda: bayesian(nn.Linear(1, 1), likelihood="regression"), "Linear holds no attention"),
    "no module": (lambda: bayesian(print), "network is a builtin"),
    "no likelihood": (lambda: bayesian(Classifier()), "likelihood is None, expected one of 'classification', 'regr"),
    "likelihood": (lambda: bayesian(Classifier(), likelihood="binary"), "likelihood is 'binary'"),
    "likelihood of a head": (lambda: bayesian(make_bert(), likelihood="classification"), "the likelihood of its head"),
    "option": (lambda: bayesian(Classifier(), "soft", kl_weight=1.0, likelihood="regression"), "no option 'kl_weight'"),
    "options of a scheme": (
        lambda: bayesian(Classifier(), scheme("soft"), scale=1.0, likelihood="regression"), "expected none beside a Sch"
    ),
    "sites": (lambda: bayesian(Classifier(), sites="decoder.*", likelihood="regression"), "no torch.nn.MultiheadAtt"),
    "sites of both": (
        lambda: bayesian(pyg.GPSConv(4, pyg.GATConv(4, 4)), sites="attn", likelihood="regression"), "expected '\\*'"
    ),
    "shape": (lambda: bayesian(Classifier(1), likelihood="regression").loss(X, y=torch.zeros(3)), "reshape y or the"),
    "one label for several": (
        lambda: bayesian(nn.TransformerEncoderLayer(4, 1, 8, batch_first=True), likelihood="classification").loss(
            torch.zeros(3, 3, 4), y=torch.zeros(3, dtype=torch.int64)
        ),
        r"y has shape \(3,\), expected \(3, 3\)",
    ),
    "no batch": (lambda: bayesian(Classifier(), likelihood="regression").loss(), "was given no tensor first"),
    "empty batch": (lambda: bayesian(Classifier(), likelihood="regression").model(X[:0]), "empty batch.*leave it"),
    "flow": (
        lambda: bayesian_graph(nn.ModuleList([pyg.GATConv(2, 2, flow="target_to_source")])),
        "'0': cannot copy a GATConv with flow='target_to_source'",
    ),
    "no graph": (lambda: bayesian_graph(Classifier()), "the model has 0 GATConv or GATv2Conv"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case):
    make, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_network_that_is_bayesian_already_and_a_family_in_place_of_a_name_are_refused():
    layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
    model, _, _ = bayesian(nn.Sequential(layer, nn.Linear(4, 2)), "weibull", likelihood="classification")
    with pytest.raises(ValueError, match="the network is Bayesian already"):
        bayesian(model, "weibull", likelihood="classification")
    with pytest.raises(TypeError, match=r"scheme is the family LogNormal.*'lognormal', scale=0\.5\)"):
        bayesian(nn.Linear(4, 2), LogNormal(), likelihood="classification")
    with pytest.raises(ValueError, match="did you mean 'weibull'"):
        bayesian(nn.Linear(4, 2), "weibul", likelihood="classification")


def test_forgotten_observations_are_named_and_no_smaller_weight_is_advised():
    layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
    _, guide, loss = bayesian(nn.Sequential(layer, nn.Linear(4, 1)), "weibull", likelihood="regression")
    x = torch.randn(3, 5, 4)
    with pytest.warns(KLWarning, match=r"the loss holds the KL alone: .*pass the observations, such as loss\(x, y=y\)"):
        loss(x).backward()
    with pytest.raises(ValueError, match=r"an observation of the right shape \(y=torch\.zeros"):
        predict(guide, x, observed="y", num_samples=4)
    drawn = predict(guide, x, y=torch.zeros(3, 5, 1), observed="y", num_samples=4, seed=0).mean
    assert drawn.equal(predict(guide, x, y=torch.ones(3, 5, 1), observed="y", num_samples=4, seed=0).mean)
