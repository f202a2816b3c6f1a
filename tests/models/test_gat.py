"""Graph attention networks: the one as first published, and the one with skip connections."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from models.gat import GAT, ResidualGAT
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    EdgeList,
    Soft,
    Weibull,
    predict,
    sample_posterior,
)

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])  # node 4 has no neighbors
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


@pytest.mark.parametrize(
    ("name", "scores", "layers"), list(zip(NETWORKS, ("gat", "gatv2", "gatv2"), (1, 3, 2), strict=True))
)
def test_every_network_trains_all_it_has(name: str, scores: str, layers: int) -> None:
    model, layout, x = NETWORKS[name](scores=scores, layers=layers), graph(name), torch.rand(NODES, FEATURES)
    guide = AttentionGuide(model, Weibull())
    AttentionELBO()(model, guide)(x, layout, LABELS, LABELS < 2).backward()
    assert all(value.grad is not None for value in model.parameters())
    samples = sample_posterior(guide, x, layout, LABELS, num_samples=3)
    assert list(samples) == [f"layers.{index}" for index in range(layers)]
    prediction = predict(guide, x, layout, LABELS, num_samples=3, noise="both", keep_samples=True)
    assert prediction.samples.shape == (3, NODES, CLASSES)


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
    torch.testing.assert_close(logits(model, x.to_sparse_csr(), graph(name)), logits(model, x, graph(name)))


def test_own_features_are_kept_apart() -> None:
    """What a node's neighbors have does not reach a node without neighbors, and self loops are refused."""
    model, x = NETWORKS["separate"](), torch.rand(NODES, FEATURES)
    other = torch.cat([torch.rand(NODES - 1, FEATURES), x[-1:]])
    first, second = (logits(model, one, graph("separate")) for one in (x, other))
    torch.testing.assert_close(first[-1], second[-1])
    assert not first[:-1].allclose(second[:-1])
    with pytest.raises(ValueError, match="add_self_loops=True, expected False"):
        model(x, graph("gat"), LABELS)
