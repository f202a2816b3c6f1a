"""Single attention layers: on graphs compared with PyG's, by normalizer, and blocked or dense by length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import scaled_dot_product_attention

from experiments.benchmarks.measuring import Benchmark, training_step
from experiments.files import UserError
from guides.schemes import build_scheme
from models.gat import GAT
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    DoublyNormalized,
    EdgeList,
    Hybrid,
    LatentAttention,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.blocked import attend_blocked
from pyro_attention.blocked.ops.fused_attention import unfused
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.layers.graph import GraphScores
from pyro_attention.normalizers import Normalizer, Softmax

# Graphs

FEATURES = 64
GRAPH_ROWS = ("GATConv", "Soft", "WC")


@dataclass(frozen=True)
class Graph:
    """Sizes of a random symmetric graph and of the output layer; the number of edges has no self loops."""

    nodes: int
    edges: int  # directed
    scores: GraphScores = "gat"
    classes: int = 3  # PubMed's
    output_heads: int = 8

    def edge_index(self) -> Tensor:
        """Sources and targets, int64 ``[2, edges]``."""
        generator = torch.Generator().manual_seed(0)
        source = torch.randint(self.nodes, (self.edges // 2,), generator=generator)
        target = (source + torch.randint(1, self.nodes, (self.edges // 2,), generator=generator)) % self.nodes
        return torch.stack([torch.cat([source, target]), torch.cat([target, source])])


class _GraphLayers(PyroModule):
    """Layers of a GAT, observed through the sum of the outputs."""

    def __init__(self, network: GAT) -> None:
        super().__init__()
        self.layers = network.layers

    def forward(self, x: Tensor, graph: EdgeList) -> None:
        first, second = self.layers
        pyro.factor("output", second(nn.functional.elu(first(x, graph)), graph).sum())


def make_graph_step(contestant: str, graph: Graph) -> Callable[[], None]:
    """Make forward and backward of the sum of the outputs and of the KL; the edge list is built beforehand."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(graph.nodes, FEATURES), graph.edge_index()
    if contestant == "GATConv":
        return _pyg_layers(x, edge_index, graph)
    edges = EdgeList.from_edge_index(edge_index, num_nodes=graph.nodes, add_self_loops=True)
    scheme = build_scheme("soft" if contestant == "Soft" else "weibull")
    options: dict[str, Any] = {"output_heads": graph.output_heads, "scores": graph.scores, "prior": scheme.prior}
    model = _GraphLayers(GAT(FEATURES, graph.classes, dropout=0.0, **options))
    loss = scheme.objective()(model, scheme.guide(model))
    return lambda: loss(x, edges).backward()


def _pyg_layers(x: Tensor, edge_index: Tensor, graph: Graph) -> Callable[[], None]:
    with warnings.catch_warnings():  # it scripts functions when it is imported
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)
        from torch_geometric.nn import GATConv, GATv2Conv

    conv = GATConv if graph.scores == "gat" else GATv2Conv
    first, second = conv(FEATURES, 8, heads=8), conv(64, graph.classes, heads=graph.output_heads, concat=False)
    return lambda: second(nn.functional.elu(first(x, edge_index)), edge_index).sum().backward()


GRAPHS = Benchmark(
    title="Graph attention layers",
    text="Forward and backward of the two attention layers of a GAT (64-wide dense input, 8 heads of 8) on random "
    "graphs: of Cora's size (7 classes, one output head), of PubMed's (3 classes, 8 averaged heads) and, with PubMed's "
    "heads, of 20000 nodes. WC: Weibull posterior, contextual Gamma prior, KL included. Soft: the same layers, "
    "deterministic. GATConv: PyG's layers, GATv2Conv for GATv2. Edges are counted without self loops.",
    make_step=make_graph_step,
    contestants=GRAPH_ROWS,
    sizes={
        "Cora": Graph(2708, 10556, classes=7, output_heads=1),
        "Cora, GATv2": Graph(2708, 10556, "gatv2", classes=7, output_heads=1),
        "PubMed": Graph(19717, 88648),
        **{f"{n} edges": Graph(20_000, n) for n in (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)},
    },
    rounds=20,
)

# By normalizer

KINDS: dict[str, Callable[[int], Normalizer]] = {
    "softmax": lambda _: Softmax(),
    "doubly normalized": lambda _: DoublyNormalized(),
    "hybrid": Hybrid,
}


class Tokens(NamedTuple):
    """Number of positions, and the guide."""

    length: int
    guide: str


class _Normalized(PyroModule):
    """One layer, observed through the mean square of its output."""

    def __init__(self, normalizer: Normalizer) -> None:
        super().__init__()
        self.layer = MultiheadAttention(256, 4, normalizer=normalizer)

    def forward(self, x: Tensor) -> None:
        with pyro.plate("batch", len(x)):
            context = self.layer(x, x, x, need_weights=False)[0]
            pyro.factor("output", -context.square().sum((-1, -2)))


def make_normalized_step(contestant: str, sizes: Tokens) -> Callable[[], Tensor]:
    """Make a training step (forward, backward, Adam) through guide and ELBO, which returns the loss."""
    torch.manual_seed(0)
    x = torch.randn(4, sizes.length, 256)
    model = _Normalized(KINDS[contestant](4))
    family = Soft() if sizes.guide == "soft" else Weibull()
    return training_step(AttentionELBO()(model, AttentionGuide(model, family)), x)


NORMALIZERS = Benchmark(
    title="Normalizers of self-attention",
    text="Training steps of one self-attention layer, batch 4, width 256, 4 heads, by guide and length n.",
    make_step=make_normalized_step,
    contestants=tuple(KINDS),
    sizes={
        f"{guide}, n = {length}": Tokens(length, guide)
        for guide in ("soft", "Weibull")
        for length in (64, 128, 256, 512)
    },
    rounds=10,
    memory=False,
)

# Blocked attention between free queries, keys and values

CONCENTRATION = 10.0
SOFTMAX, DENSE, NAIVE, BLOCKWISE = "scaled_dot_product_attention", "dense", "naive dense", "blocked"


@dataclass(frozen=True)
class Positions:
    """Number of positions and heads, and their width; the batch is 1."""

    length: int
    heads: int = 2
    width: int = 32
    dtype: torch.dtype = torch.float32


class SoftmaxLayer(nn.Module):
    """Torch's softmax attention of ``[3, 1, H, N, D]``; its loss is the mean of squares of the context."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors)

    def forward(self) -> Tensor:
        return scaled_dot_product_attention(*self.vectors).square().mean(dtype=torch.float32)


class LatentLayer(PyroModule):
    """Attention with latent weights: a Pyro model that is observed through the mean of squares of the context."""

    def __init__(self, vectors: Tensor, *, blocked: bool) -> None:
        super().__init__()
        self.vectors, self.blocked = nn.Parameter(vectors), blocked
        self.attention = LatentAttention("attention", ContextualGammaPrior(vectors.size(-1)).to(vectors.device))

    def forward(self) -> None:
        queries, keys, values = self.vectors
        queries = queries / math.sqrt(queries.size(-1))
        with pyro.plate("batch", len(queries), dim=-1):
            if self.blocked:
                output = attend_blocked(self.attention, queries, keys, values)
            else:
                output = self.attention(queries @ keys.mT, values, keys=keys)
        pyro.factor("output", -output.context.square().mean(dtype=torch.float32))


class NaiveLayer(nn.Module):
    """Latent attention without this library: Weibull weights, and torch's distributions for the KL."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors, self.network = nn.Parameter(vectors), KeyNetwork(vectors.size(-1))
        self.log_concentration = nn.Parameter(torch.tensor(CONCENTRATION).log())

    def forward(self) -> Tensor:
        queries, keys, values = self.vectors
        k = self.log_concentration.exp()
        scale = (queries @ keys.mT / math.sqrt(queries.size(-1))).softmax(-1) / torch.lgamma(1 + 1 / k).exp()
        prior = self.network(keys, Dense()).exp()
        weights = scale * torch.empty_like(scale).exponential_() ** (1 / k)
        context = weights / weights.sum(-1, keepdim=True) @ values
        posterior = TorchWeibull(scale, k, validate_args=False)
        kl = kl_divergence(posterior, Gamma(prior.expand_as(scale), 1.0, validate_args=False))
        return context.square().mean() + kl.sum()


def make_blocked_step(contestant: str, sizes: Positions) -> Callable[[], Tensor] | None:
    """Make forward and backward of a loss, which the step returns: the negative ELBO, or the likelihood of softmax.

    The posterior is Weibull with a learned concentration. Layers whose memory grows as the square of the length stop at
    8192 positions.

    Raises:
        UserError: There is a GPU on which attention is not fused.
    """
    if contestant in (DENSE, NAIVE) and sizes.length > 8192:
        return None
    torch.manual_seed(0)
    vectors = torch.randn(3, 1, sizes.heads, sizes.length, sizes.width, dtype=sizes.dtype)
    if vectors.is_cuda and (reason := unfused(*vectors)) is not None:
        raise UserError(f"attention of width {sizes.width} in {sizes.dtype} is not fused on this GPU: {reason}")
    if contestant == SOFTMAX:
        return training_step(SoftmaxLayer(vectors), optimizer=None)
    if contestant == NAIVE:
        return training_step(NaiveLayer(vectors), optimizer=None)
    model = LatentLayer(vectors, blocked=contestant == BLOCKWISE)
    family = Weibull(CONCENTRATION, learnable=True).to(vectors.device)
    return training_step(AttentionELBO()(model, AttentionGuide(model, family)), optimizer=None)


BLOCKED = Benchmark(
    title="Blocked attention",
    text="Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, 2 heads of width "
    '32, learned concentration: the library\'s dense and blocked paths, and "naive dense" as a user would write it. '
    "Beside them torch's softmax attention of the same shapes, without anything Bayesian.",
    make_step=make_blocked_step,
    contestants=(SOFTMAX, DENSE, NAIVE, BLOCKWISE),
    sizes={f"{length} positions": Positions(length) for length in (1024, 2048, 4096, 8192, 16384, 32768)},
)
