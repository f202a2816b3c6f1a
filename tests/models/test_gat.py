"""Graph attention networks: the one as first published, and the one with skip connections."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from models.gat import GAT
from models.residual_gat import ResidualGAT
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    EdgeList,
    GraphAttention,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # node 4 has no neighbours
NODES, FEATURES, CLASSES = 5, 6, 3
LABELS = torch.arange(NODES) % CLASSES
NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "gat": lambda **options: GAT(FEATURES, CLASSES, **{"hidden": 4, "heads": 2} | options),
    "residual": lambda **options: ResidualGAT(FEATURES, CLASSES, **{"hidden": 4, "heads": 2} | options),
    "separate": lambda **options: ResidualGAT(FEATURES, CLASSES, separate=True, **{"hidden": 4, "heads": 2} | options),
}


def graph(name: str) -> EdgeList:
    return EdgeList.from_edge_index(EDGES, num_nodes=NODES, add_self_loops=name != "separate")


def logits(model: nn.Module, features: torch.Tensor, layout: EdgeList) -> torch.Tensor:
    return predict(AttentionGuide(model, Soft()), features, layout, LABELS, num_samples=1, noise="none").mean


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scores", ["gat", "gatv2"])
@pytest.mark.parametrize("layers", [1, 3])
def test_every_network_trains_all_it_has(name: str, scores: str, layers: int) -> None:
    model, layout, x = NETWORKS[name](scores=scores, layers=layers), graph(name), torch.rand(NODES, FEATURES)
    guide = AttentionGuide(model, Weibull())
    AttentionELBO()(model, guide)(x, layout, LABELS, LABELS < 2).backward()
    assert all(value.grad is not None for value in model.parameters())
    samples = sample_posterior(guide, x, layout, LABELS, num_samples=3)
    assert list(samples) == [f"layers.{index}" for index in range(layers)]
    prediction = predict(guide, x, layout, LABELS, num_samples=3, noise="both", keep_samples=True)
    assert prediction.samples.shape == (3, NODES, CLASSES)
    assert prediction.mean.isfinite().all()
    with pytest.raises(ValueError, match="layers is 0, expected 1 and more"):
        NETWORKS[name](layers=0)


def test_gat_is_by_default_the_two_layers_of_the_original() -> None:
    torch.manual_seed(3)
    model = GAT(FEATURES, CLASSES)
    torch.manual_seed(3)
    priors = [ContextualGammaPrior(8, 8)]
    first = GraphAttention(FEATURES, 8, 8, dropout=0.6, value_dropout=0.6, name="layers.0", prior=priors[0])
    priors.append(ContextualGammaPrior(CLASSES, 1))
    second = GraphAttention(
        64, CLASSES, 1, concat=False, dropout=0.6, value_dropout=0.6, name="layers.1", prior=priors[1]
    )
    names = {f"layers.{index}.{name}": value for index, layer in enumerate((first, second))
             for name, value in layer.named_parameters()}  # fmt: skip
    assert names.keys() == dict(model.named_parameters()).keys()
    assert all(names[name].equal(value) for name, value in model.named_parameters())
    x, layout = torch.rand(NODES, FEATURES), graph("gat")
    expected = second.eval()(nn.functional.elu(first.eval()(x, layout)), layout)
    torch.testing.assert_close(logits(model, x, layout), expected)


@pytest.mark.parametrize(("value_dropout", "p"), [(True, 0.4), (False, 0.0)])
def test_value_dropout_can_be_switched_off(value_dropout: bool, p: float) -> None:
    layers = list(GAT(FEATURES, CLASSES, dropout=0.4, value_dropout=value_dropout).layers)
    assert [layer.value_dropout.p for layer in layers] == [p, p]
    assert [layer.attention.dropout.p for layer in layers] == [0.4, 0.4]


@pytest.mark.parametrize("name", ["residual", "separate"])
def test_residual_network_is_its_formula(name: str) -> None:
    model, layout, x = NETWORKS[name](layers=2).eval(), graph(name), torch.rand(NODES, FEATURES)
    h = nn.functional.gelu(model.input(x))
    for block in model.blocks:
        own = nn.functional.layer_norm(h, (8,), block.norm.weight, block.norm.bias)
        read = block.attention(own, layout)
        first, _, _, second, _ = block.feed_forward
        read = torch.cat([own, read], 1) if name == "separate" else read
        h = h + second(nn.functional.gelu(first(read)))
    norm, output = model.output
    torch.testing.assert_close(logits(model, x, layout), output(norm(h)))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_features(name: str) -> None:
    model, x = NETWORKS[name](), torch.rand(NODES, FEATURES).round()
    expected = logits(model, x, graph(name))
    torch.testing.assert_close(logits(model, x.to_sparse_csr(), graph(name)), expected)


def test_own_features_are_kept_apart() -> None:
    """What a node's neighbours have does not reach a node without neighbours, and self loops are refused."""
    model, x = NETWORKS["separate"](), torch.rand(NODES, FEATURES)
    other = torch.cat([torch.rand(NODES - 1, FEATURES), x[-1:]])
    first, second = (logits(model, one, graph("separate")) for one in (x, other))
    torch.testing.assert_close(first[-1], second[-1])
    assert not first[:-1].allclose(second[:-1])
    with pytest.raises(ValueError, match="add_self_loops=True, expected False"):
        model(x, graph("gat"), LABELS)
