"""Models small enough to train in a test, and their data."""

from dataclasses import dataclass

import pyro
import torch
from pyro.distributions import HalfNormal, Normal
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_attention import ContextualGammaPrior, EdgeList, LatentAttention, MultiheadAttention

__all__ = ["FreeScores", "GraphData", "SelfAttention", "Sequences", "Shifted", "attention_values"]

KEYS, WIDTH = 4, 5  # of the inputs of a bare LatentAttention, see the fixtures


@dataclass(frozen=True)
class Sequences:
    """Sequences ``[B, N, D]`` with one target each; True in ``padding`` marks what is not there."""

    x: Tensor
    y: Tensor
    padding: Tensor

    @classmethod
    def random(cls, batch=6, length=5, width=4, *, seed=0):
        """Sequences of lengths between two and ``length``."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, length, width, generator=generator)
        lengths = torch.randint(2, length + 1, (batch, 1), generator=generator)
        return cls(x, 3 * x[:, 0, 0] - x[:, 1, 1], torch.arange(length) >= lengths)


class SelfAttention(PyroModule):
    """Regression of one number per sequence by layers of self-attention ``layers.0``, ``layers.1``, ...

    Args:
        prior: Makes a prior network from (key width, heads).
        size: Size of the data set, of which a batch is a subsample.
    """

    def __init__(
        self, width=4, heads=2, layers=2, *, dropout=0.0, prior=ContextualGammaPrior, size=None, layer_options=None
    ):
        super().__init__()
        self.size = size
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            MultiheadAttention(
                width, heads, dropout, name=f"layers.{i}", prior=prior(width // heads, heads), **(layer_options or {})
            )
            for i in range(layers)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x, y=None, padding=None):
        with pyro.plate("batch", self.size or x.size(0), subsample=torch.arange(x.size(0)), dim=-1):
            for layer in self.layers:
                h = self.dropout(x)
                x = h + layer(h, h, h, key_padding_mask=padding)[0]
            mean = self.out(x.mean(-2)).squeeze(-1)
            pyro.sample("y", Normal(mean, 1.0), obs=y)
        return mean


class FreeScores(PyroModule):
    """One attention call (site ``attention``) whose scores are free parameters ``[1, M, N]`` and whose values are basis
    vectors, so that the context is the weights; observed with noise.
    """

    def __init__(self, prior, queries=3, keys=4, *, noise=0.3, layout=None, **options):
        super().__init__()
        self.prior_keys = torch.randn(1, keys, 4, generator=torch.Generator().manual_seed(0))
        self.scores = nn.Parameter(torch.zeros(1, queries, keys))
        self.noise, self.layout = noise, layout
        self.attention = LatentAttention("attention", prior, **options)

    def forward(self, y=None):
        basis = torch.eye(self.scores.size(-1)).unsqueeze(0)
        context = self.attention(self.scores, basis, keys=self.prior_keys, layout=self.layout).context
        pyro.sample("y", Normal(context, self.noise).to_event(3), obs=y)
        return context


class Shifted(PyroModule):
    """Self-attention whose output has a global shift, a global noise scale and one effect for each sequence."""

    def __init__(self, size=6, subsample=None):
        super().__init__()
        self.network, self.size, self.subsample, self.calls = SelfAttention(layers=1), size, subsample, 0

    def forward(self, x, y=None):
        self.calls += 1
        layer = self.network.layers[0]
        shift = pyro.sample("shift", Normal(0.0, 2.0))
        noise = pyro.sample("noise", HalfNormal(1.0))
        with pyro.plate("sequences", self.size, subsample_size=self.subsample) as index:
            effect = pyro.sample("effect", Normal(shift, 0.5))
            x = x[index]
            mean = self.network.out(layer(x, x, x)[0].mean(-2)).squeeze(-1) + effect
            pyro.sample("y", Normal(mean, 0.1 + noise), obs=None if y is None else y[index])
        return mean


@dataclass(frozen=True)
class GraphData:
    """A graph with features, labels, and which of them are observed."""

    features: Tensor
    edge_index: Tensor
    labels: Tensor
    labeled: Tensor

    @classmethod
    def random(cls, nodes=7, edges=16, features=5, classes=3, *, seed=0):
        """A graph with a self loop at node 2, and a last node without in-edges."""
        generator = torch.Generator().manual_seed(seed)
        source = torch.randint(0, nodes, (edges,), generator=generator)
        target = torch.randint(0, nodes - 1, (edges,), generator=generator)
        source[3] = target[3] = 2
        return cls(
            torch.randn(nodes, features, generator=generator),
            torch.stack([source, target]),
            torch.randint(0, classes, (nodes,), generator=generator),
            torch.arange(nodes) % 3 != 1,
        )

    @property
    def graph(self):
        """The layout, with self loops."""
        return EdgeList.from_edge_index(self.edge_index, num_nodes=self.features.size(0), add_self_loops=True)

    @property
    def arguments(self):
        """Arguments of a training step of ``models.gat.GAT``."""
        return self.features, self.graph, self.labels, self.labeled


def attention_values(guide, *args, **kwargs):
    """Posterior distribution and value of every unobserved site of one run under the guide."""
    trace = pyro.poutine.trace(guide).get_trace(*args, **kwargs)
    return {
        name: (site["fn"], site["value"])
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and not pyro.poutine.util.site_is_subsample(site)
    }
