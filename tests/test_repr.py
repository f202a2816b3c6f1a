"""Distributions, priors, families, layouts and layers show their sizes and parameters."""

import pytest
import torch

from pyro_attention import (
    ContextualGammaPrior,
    Dense,
    EdgeList,
    FixedGammaPrior,
    FixedGaussianPrior,
    LatentAttention,
    LogNormal,
)
from pyro_attention.families.alignment import AlignmentWeights, CategoricalAlignment
from pyro_attention.families.dirichlet import DirichletWeights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.layers.scores import GraphAdditive

SCORES = torch.zeros(2, 1, 3, 4)
GRAPH = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2, add_self_loops=True)
ALIGNMENT = CategoricalAlignment(torch.zeros(2, 1, 3))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            WeibullWeights(SCORES, torch.tensor(10.0)),
            "WeibullWeights(batch_shape=(2,), event_shape=(1, 3, 4), log_scale: (2, 1, 3, 4), concentration: ())",
        ),
        (
            GammaWeights(SCORES[..., 0, :], torch.tensor(0.0), layout=Dense(event_dim=2)),
            "GammaWeights(batch_shape=(2,), event_shape=(1, 4), log_concentration: (2, 1, 4), log_rate: ())",
        ),
        (
            DirichletWeights(SCORES),
            "DirichletWeights(batch_shape=(2,), event_shape=(1, 3, 4), log_concentration: (2, 1, 3, 4))",
        ),
        (ALIGNMENT, "CategoricalAlignment(batch_shape=(2,), event_shape=(), logits: (2, 3))"),
        (AlignmentWeights(ALIGNMENT), "AlignmentWeights(batch_shape=(2,), event_shape=(1, 3))"),
        (FixedGammaPrior(2.0, 0.5), "FixedGammaPrior(concentration=2.0, rate=0.5)"),
        (FixedGaussianPrior(scale=2.0), "FixedGaussianPrior(gaussian_loc=0.0, gaussian_scale=2.0)"),
        (
            ContextualGammaPrior(8, heads=2),
            "ContextualGammaPrior(\n  rate=1.0\n  (network): KeyNetwork(8, heads=2, hidden_dim=10)\n)",
        ),
        (KeyNetwork(3), "KeyNetwork(3, heads=1, hidden_dim=10)"),
        (LogNormal(0.5, learnable=True), "LogNormal(scale=0.5, learnable=True)"),
        (GraphAdditive(3, 4), "GraphAdditive(heads=3, dim=4, negative_slope=0.2)"),
        (Dense(torch.ones(4, dtype=torch.bool)), "Dense(mask: (4,), event_dim=3, causal=False)"),
        (GRAPH, "EdgeList(edges=4, sources=2, targets=2, has_self_loops=True, mask: None)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr(shown, expected):
    assert repr(shown) == expected


def test_an_attention_layer_shows_its_site():
    assert "'encoder.0', normalize_scores=False" in repr(
        LatentAttention("encoder.0", FixedGammaPrior(), normalize_scores=False)
    )
