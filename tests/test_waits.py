"""How often a training step waits for its device, and that nothing it makes lands on another one.

Steps run on the device "meta", whose tensors hold no numbers: what would ask a GPU for a number, or copy to it or from
it, is counted and answered here. It refuses operations between devices, as a GPU does.
"""

import contextlib
import copy

import pyro
import pytest
import torch
import transformers
from pyro.nn import PyroModule
from torch.nn.utils import rnn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from guides.plain import PLAIN_SCHEMES
from guides.schemes import build_scheme
from models.attention_regression import AttentionRegression
from models.gat import GAT
from models.vqa import MCAN
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Categorical,
    DoublyNormalized,
    EdgeList,
    EvidenceELBO,
    FromPrior,
    Gamma,
    GraphAttention,
    Hybrid,
    LogNormal,
    MultiheadAttention,
    ScoreFunctionELBO,
    ScorePrior,
    Soft,
    Weibull,
    WidthNetwork,
    exact_alignments,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.posteriors import GumbelSoftmax
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.families.lognormal import FixedLogNormalPrior
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.layers.multihead import Mask
from pyro_attention.objectives import validation
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.ops import segment
from pyro_attention.posterior.importance import _pareto_k
from tests.models import test_headlines, test_nmt, test_vqa
from tests.toy_alignments import Toy, make_problem
from tests.toy_models import GraphData, SelfAttention, Sequences

LIGHT = {"kl_weight": 1e-3}


class Waits(TorchDispatchMode):
    """Counts what has to wait for a device, and answers for it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(tensor.is_meta for tensor in tensors) and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return func(*args, **kwargs)
        if name in ("_local_scalar_dense", "nonzero", "equal", "bincount", "masked_select", "unique_consecutive"):
            self.seen.append(name)
            if name == "_local_scalar_dense":
                return args[0].dtype.is_floating_point * 1.0 or (args[0].dtype == torch.bool) or 1
            return True if name == "equal" else args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.int64)
        if name in ("_to_copy", "copy_"):
            target = torch.device(kwargs.get("device") or args[0].device)
            source = args[name == "copy_"]
            if source.device != target:
                self.seen.append(name)
                if source.is_meta:
                    return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return func(*args, **kwargs)


def packed(words, lengths, *, batch_first, enforce_sorted=True):
    """Pack sequences that are sorted already: torch would wait for the copies of the order that it makes itself."""
    assert batch_first
    assert enforce_sorted
    assert lengths.device.type == "cpu"
    return words


@pytest.fixture(autouse=True)
def meta(monkeypatch):
    """What the device lacks: autocast, sparse products, and packed sequences, which ask for their lengths."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *a, **k: contextlib.nullcontext() if kind == "meta" else autocast(kind, *a, **k)
    )
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": kind != "meta" and enabled(kind))
    monkeypatch.setattr(segment, "in_transform", lambda *_: True)
    monkeypatch.setattr(rnn, "pack_padded_sequence", packed)
    monkeypatch.setattr(rnn, "pad_packed_sequence", lambda outputs, **_: (outputs, None))
    monkeypatch.setattr(validation, "_FIRST", 0)  # the steps are later ones


def sequences(family=None, elbo=None, *, layers=2, padding=True, **options):
    data, model = Sequences.random(), SelfAttention(layers=layers, **options)
    arguments = (data.x, data.y, data.padding)[: 2 + padding]
    return elbo or AttentionELBO(**LIGHT), AttentionGuide(model, family or Weibull()), arguments


def graph(*, reused):
    data, model = GraphData.random(), GAT(5, 3, hidden=4, heads=2, output_heads=3, dropout=0.5)
    edges = data.graph if reused else data.edge_index
    return AttentionELBO(**LIGHT), AttentionGuide(model, Weibull()), (data.features, edges, *data.arguments[2:])


class EdgeFeatures(PyroModule):
    """A layer that makes features of self loops, some of which replace those of the input."""

    def __init__(self, fill_value):
        super().__init__()
        self.layer = GraphAttention(5, 4, edge_dim=3, fill_value=fill_value)

    def forward(self, x, edge_index, edge_attr, y):
        pyro.sample("y", pyro.distributions.Normal(self.layer(x, edge_index, edge_attr), 1.0).to_event(2), obs=y)


def edge_features(fill_value):
    data = GraphData.random()
    arguments = data.features, data.edge_index, torch.randn(data.edge_index.size(1), 3), torch.randn(7, 4)
    return AttentionELBO(**LIGHT), AttentionGuide(EdgeFeatures(fill_value), Weibull()), arguments


def translation(name):
    scheme = build_scheme(name, top_k=3)
    model = test_nmt.make(prior=scheme.prior(test_nmt.SIZES.memory, 1))
    guide = scheme.guide(model, test_nmt.network(model) if scheme.amortized else None)
    return scheme.objective(), guide, test_nmt.batch()


def headlines():
    guide = test_headlines.guided(test_headlines.make(), Weibull, Weibull)
    return AttentionELBO(**LIGHT), guide, test_headlines.batch()


def mcan():
    scores = torch.eye(3, test_vqa.ANSWERS, dtype=torch.float64)
    guide = AttentionGuide(test_vqa.make(MCAN), Weibull())
    return AttentionELBO(**LIGHT), guide, (*test_vqa.questions(), scores)


def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 8}
    model = bayesian(
        transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=3, **sizes))
    )
    mask = (torch.arange(7) < torch.tensor([[7], [5], [3]])).long()
    batch = {"input_ids": torch.randint(20, (3, 7)), "attention_mask": mask, "labels": torch.tensor([0, 2, 1])}
    return AttentionELBO(**LIGHT), AttentionGuide(model, Weibull()), batch


def blocked(**options):
    layer = BlockedMultiheadAttention(8, 2, **options)

    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, y):
            with pyro.plate("batch", len(x)):
                output = self.layer(x, x, x, need_weights=False, key_padding_mask=x[..., 0] > 1)[0]
                pyro.sample("y", pyro.distributions.Normal(output.sum((-1, -2)), 1.0), obs=y)

    return AttentionELBO(**LIGHT), AttentionGuide(Model(), Weibull()), (torch.randn(3, 6, 8), torch.randn(3))


def toy(family, elbo):
    return elbo, AttentionGuide(Toy(), family), make_problem()


def width():
    prior = lambda *_: ScorePrior(LogNormal(WidthNetwork(2, 2)))  # noqa: E731
    return sequences(FromPrior(), EvidenceELBO(4, max_plate_nesting=1), layers=1, prior=prior)


PACKED = 1  # its lengths
STEPS = {
    "classifier, 12 layers": (lambda: sequences(layers=12), 0),
    "LogNormal prior": (lambda: sequences(LogNormal(), prior=lambda *_: FixedLogNormalPrior()), 0),
    "doubly normalized": (lambda: sequences(padding=False, layer_options={"normalizer": DoublyNormalized()}), 0),
    "hybrid": (lambda: sequences(padding=False, layer_options={"normalizer": Hybrid(2)}), 0),
    "learned width": (width, 0),
    "graph, EdgeList": (lambda: graph(reused=True), 0),
    "graph, edge_index": (lambda: graph(reused=False), 0),
    "graph, edge features": (lambda: edge_features("mean"), 0),
    "graph, edge features, products": (lambda: edge_features("mul"), 0),
    "soft translation": (lambda: translation("soft"), PACKED + 1),
    "weibull translation": (lambda: translation("weibull"), PACKED + 1),
    "marginal translation": (lambda: translation("marginal"), PACKED + 1),  # the number of rows
    "enumerated translation": (lambda: translation("categorical_enum"), 3 * PACKED + 1),
    "sparse marginal translation": (lambda: translation("sparse_marginal"), PACKED + 1),
    "sparse enumerated translation": (lambda: translation("sparse_enum"), 3 * PACKED + 1),
    "MCAN": (mcan, PACKED),
    "headlines": (headlines, 1),
    "BERT": (bert, 1),
    "gumbel": (lambda: toy(GumbelSoftmax(), AttentionELBO()), 0),
    "score function": (lambda: toy(Categorical(enumerate=False), ScoreFunctionELBO()), 0),
    "importance": (lambda: toy(Categorical(enumerate=False), ImportanceELBO(3, max_plate_nesting=2)), 0),
}


def moved(elbo, guide, arguments):
    """Guide and arguments on the device; nesting is guessed before, where there are numbers."""
    keywords = arguments if isinstance(arguments, dict) else {}
    positional = () if keywords else arguments
    elbo.loss(guide.model, guide, *positional, **keywords)
    guide.model.to("meta")
    guide.to("meta")
    move = lambda x: x.to("meta") if isinstance(x, torch.Tensor | EdgeList) else x  # noqa: E731
    return tree_map(move, positional), tree_map(move, keywords)


@pytest.mark.parametrize("name", STEPS)
def test_waits_of_a_step(name):
    make, most = STEPS[name]
    elbo, guide, arguments = make()
    arguments, keywords = moved(elbo, guide, arguments)
    for validates in (False, True):  # printed by pytest -rP
        with pyro.validation_enabled(validates), Waits() as waits:
            loss = elbo.differentiable_loss(guide.model, guide, *arguments, **keywords)
            loss.backward()
        assert loss.is_meta
        assert all(parameter.grad is None or parameter.grad.is_meta for parameter in guide.model.parameters())
        print(f"{name}: {len(waits.seen)} with validation {'on' if validates else 'off'}")
        assert len(waits.seen) <= most + validates, waits.seen


def test_a_blocked_step_does_not_wait():
    """While nothing is validated, which looks at its family."""
    elbo, guide, arguments = blocked()
    arguments, _ = moved(elbo, guide, arguments)
    with pyro.validation_enabled(False), Waits() as waits:
        loss = elbo.differentiable_loss(guide.model, guide, *arguments)
        loss.backward()
    assert loss.is_meta
    assert waits.seen == []


@pytest.mark.parametrize(
    "family",
    # the gradient of a drawn Gamma variable is not computed without numbers
    [Weibull(), LogNormal(), Gamma(), Weibull(learnable=True), LogNormal(learnable=True)],
    ids=str,
)
def test_a_family_may_stay_behind(family):
    """A guide that was made before its model was moved has a number on the CPU."""
    elbo, guide, arguments = sequences(copy.deepcopy(family))
    elbo.loss(guide.model, guide, *arguments)
    guide.model.to("meta")
    arguments = [argument.to("meta") for argument in arguments]
    with pyro.validation_enabled(False), Waits():
        loss = elbo.differentiable_loss(guide.model, guide, *arguments)
        loss.backward()
    assert loss.is_meta
    assert all(parameter.grad.is_cpu for parameter in guide.families.parameters())


@pytest.mark.parametrize("name", sorted(PLAIN_SCHEMES.keys() - {"dirichlet"}))  # which is not drawn without numbers
def test_parameters_of_plain_guides_lie_where_their_inputs_do(name):
    model = AttentionRegression(3).to("meta")
    arguments = [torch.ones(shape, device="meta") for shape in ((6, 3), (6, 4, 3), (6, 4), (6,))]
    with pyro.validation_enabled(False), Waits():
        trace = pyro.poutine.trace(PLAIN_SCHEMES[name].guide).get_trace(model, *arguments)
    assert trace.nodes["attention"]["value"].is_meta
    assert all(trace.nodes[site]["value"].is_meta for site in trace.param_nodes)


def test_labels_may_lie_where_the_first_layer_does():
    """As those of a model do that lies on several GPUs."""
    elbo, guide, arguments = bert()
    _, keywords = moved(elbo, guide, arguments)
    with pyro.validation_enabled(False), Waits():
        labels = torch.tensor([0, 2, 1])
        assert elbo.differentiable_loss(guide.model, guide, **{**keywords, "labels": labels}).is_meta


def test_tails_of_importance_weights_are_fitted_on_the_cpu():
    """Pyro's fit computes in part there, and a wait for each number of each item would take long."""
    with Waits() as waits:
        assert _pareto_k(torch.randn(50, 4, device="meta")).is_meta
    assert len(waits.seen) <= 2  # there and back


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_both_kinds_are_taken_without_a_wait(dtype):
    """Torch's encoders make numbers of a boolean mask; where these lie must not matter."""
    layer, x = MultiheadAttention(4, 2).to("meta"), torch.zeros(2, 3, 4, device="meta")
    mask = torch.zeros(2, 3, dtype=dtype, device="meta")
    with pyro.validation_enabled(False), Waits() as waits:
        assert layer(x, x, x, key_padding_mask=mask, query_padding_mask=mask)[0].is_meta
        assert not Mask.read("key_padding_mask", mask).has_bias  # which blocked attention refuses
    assert waits.seen == []


def test_draws_and_predictions_stay_on_their_device():
    for make in (sequences, lambda: graph(reused=True), bert):
        elbo, guide, arguments = make()
        arguments, keywords = moved(elbo, guide, arguments)
        with pyro.validation_enabled(False), Waits():
            for chunk_size in (1, 2) if make is sequences else (1,):
                drawn = sample_posterior(guide, *arguments, num_samples=3, chunk_size=chunk_size, **keywords)
                assert all(value.is_meta and len(value) == 3 for value in drawn.values())
            if make is not bert:
                assert predict(guide, *arguments, num_samples=3, quantiles=[0.5]).quantiles[0.5].is_meta
    elbo, guide, arguments = toy(Soft(), AttentionELBO())
    arguments, _ = moved(elbo, guide, arguments)
    with pyro.validation_enabled(False), Waits():
        assert all(each.is_meta for each in exact_alignments(guide.model, *arguments, max_plate_nesting=2).values())
