"""
A graph with a posterior for every edge
=======================================

A graph attention network reads the features of a node's neighbors, weighted by attention. In this tutorial the weight
of every edge is a random variable. You train a network on a small graph, and then ask which neighbors a node listens
to, and how sure the model is of that.
"""

import matplotlib.pyplot as plt
import pyro
import torch
from torch import nn

# %%
# The graph
# ---------
#
# Sixty nodes belong to three groups. Most edges join nodes of one group. The features of a node tell its group, with
# noise. Replace ``x``, ``edge_index`` and ``y`` by your own graph: the format is that of PyTorch Geometric, with the
# sources in row 0 and the targets in row 1.

torch.manual_seed(0)
y = torch.arange(60) % 3
same = y.unsqueeze(0) == y.unsqueeze(1)
adjacency = torch.rand(60, 60) < torch.where(same, 0.18, 0.03)
adjacency = (adjacency | adjacency.T).fill_diagonal_(False)
edge_index = adjacency.nonzero().T
x = nn.functional.one_hot(y, 3).float() + 0.9 * torch.randn(60, 3)
train = torch.rand(60) < 0.4
print(f"{len(y)} nodes, {edge_index.size(1)} edges, {int(train.sum())} nodes with a label")

# %%
# The model
# ---------
#
# ``GraphAttention`` has the arguments of PyG's ``GATConv``. The labels are one observation, not a plate over nodes,
# because the nodes depend on each other through the edges. Only the labels of the training nodes count.

from pyro.distributions import Categorical

from pyro_attention import GraphAttention


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphAttention(3, 8, heads=2)
        self.second = GraphAttention(16, 3)

    def forward(self, x, edge_index, y=None):
        logits = self.second(self.first(x, edge_index).relu(), edge_index)
        if y is not None:
            likelihood = Categorical(logits=logits).mask(train).to_event(1)
            pyro.sample("y", likelihood, obs=y)
        return logits


# %%
# Training
# --------

from pyro_attention import AttentionELBO, AttentionGuide, Weibull, check_model

guide = AttentionGuide(Network(), Weibull(concentration=5.0))
elbo = AttentionELBO(kl_weight=0.001)
print(check_model(guide.model, guide, x, edge_index, y, elbo=elbo))

# %%
# The report above lists every attention site before you train: its shape and its KL. It says what is wrong where
# something is: with the weight 1, that the KL outweighs the data.

loss = elbo(guide.model, guide)
optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
for _ in range(300):
    optimizer.zero_grad()
    loss(x, edge_index, y).backward()
    optimizer.step()

from pyro_attention import predict

prediction = predict(guide, x, edge_index, num_samples=50, transform=lambda logits: logits.softmax(-1), seed=0)
right = prediction.mean.argmax(-1) == y
print(f"right on {right[train].float().mean():.2f} of the labeled nodes")
print(f"right on {right[~train].float().mean():.2f} of the others")

# %%
# A posterior for every edge
# --------------------------
#
# ``edge_intervals`` puts the samples beside their edges: source, target, mean and credible interval. The layer gives
# each node an edge to itself; these are labeled ``added``.

from pyro_attention import sample_posterior
from pyro_attention.analysis import edge_intervals

samples = sample_posterior(guide, x, edge_index, num_samples=200, seed=0)
print({name: tuple(drawn.shape) for name, drawn in samples.items()})
table = edge_intervals(samples["second"], edge_index, level=0.9)

node = int(torch.bincount(edge_index[1]).argmax())
edges = (table.target == node).nonzero().squeeze(-1)
edges = edges[table.mean[edges, 0].argsort()]
for edge in edges.flip(0)[:5].tolist():
    source, mean = int(table.source[edge]), table.mean[edge, 0]
    low, high = table.low[edge, 0], table.high[edge, 0]
    name = "itself" if table.added[edge] else f"node {source}"
    print(f"node {node} listens to {name:8s} (group {int(y[source])}): {mean:.3f}, from {low:.3f} to {high:.3f}")

# %%
# The same as a picture. The color says whether the neighbor belongs to the group of the node.

figure, axis = plt.subplots(figsize=(6, 0.32 * len(edges) + 1), layout="constrained")
for place, edge in enumerate(edges.tolist()):
    color = "#15803d" if y[table.source[edge]] == y[node] else "#b91c1c"
    axis.hlines(place, table.low[edge, 0], table.high[edge, 0], color=color, linewidth=3, alpha=0.5)
    axis.plot(table.mean[edge, 0], place, "o", color=color)
axis.axvline(1 / len(edges), color="grey", linestyle=":", label="uniform attention")
labels = ["itself" if table.added[edge] else f"node {int(table.source[edge])}" for edge in edges.tolist()]
axis.set_yticks(range(len(edges)), labels)
axis.set(xlabel="weight of the edge: mean and 90 % interval of 200 draws")
axis.set_title(f"Neighbors that node {node} listens to")
axis.legend(loc="lower right")

# %%
# Here the network has learned to prefer some neighbors: their intervals lie away from the dotted line. (How wide the
# intervals are follows from the concentration, which we chose.) This is not always so. On the citation graphs Cora and
# Citeseer learned attention is nearly uniform (:doc:`/results/graphs`): there the intervals lie around the dotted line,
# and tell you that the network prefers no neighbor.
#
# Your turn
# ---------
#
# Does the network still prefer some neighbors where edges say less about the groups? Change ``0.03`` in the line that
# makes ``adjacency`` to ``0.12``, and compare the intervals with the dotted line.
