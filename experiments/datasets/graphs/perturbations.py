"""Harder versions of a graph: fewer labels, noise in the features, edges that do not belong."""

from dataclasses import replace

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData

# Rows whose columns are drawn at once: bounds the memory, whatever the number of nodes.
_ROWS = 1024


def limit_labels(data: GraphData, per_class: int, *, seed: int = 0) -> GraphData:
    """Keep some random training nodes of each class; with the same seed, fewer are a part of more.

    A class that has fewer keeps all that it has: Texas has a class of one node.
    """
    labels, nodes = data.labels.cpu(), data.train_mask.cpu().nonzero().flatten()
    nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))]
    largest = int(labels[nodes].bincount().max())
    if largest < per_class:
        raise ValueError(
            f"per_class={per_class}, but no class of {data.name!r} has more than {largest} training nodes; expected at "
            f"most as many"
        )
    kept = torch.cat([nodes[labels[nodes] == label][:per_class] for label in range(data.num_classes)])
    mask = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill_(0, kept, True)
    return replace(data, train_mask=mask.to(data.train_mask.device))


def add_feature_noise(data: GraphData, fraction: float, *, seed: int = 0) -> GraphData:
    """Move some of the features that are not zero to other columns of their rows.

    In a row, the columns after the move are uniformly random among those that no feature stays in, none twice and
    none the feature's own. Values move along, so the rows keep their sums.
    """
    features, generator = data.features.cpu().to_sparse_coo().coalesce(), torch.Generator().manual_seed(seed)
    present = features.values() != 0
    places, values = features.indices()[:, present], features.values()[present]
    moving = torch.zeros(len(values), dtype=torch.bool)
    moving[torch.randperm(len(values), generator=generator)[: round(fraction * len(values))]] = True
    full = places[0].bincount(minlength=data.num_nodes) == data.features.shape[1]
    stuck = full & (places[0, moving].bincount(minlength=data.num_nodes) == 1)
    if stuck.any():
        raise ValueError(
            f"fraction={fraction}: row {int(stuck.nonzero()[0])} of the features of {data.name!r} has no zero that its "
            f"one feature to move could take the place of; choose another fraction or seed"
        )
    places = torch.stack([places[0], _new_columns(places, moving, data.features.shape[1], generator)])
    noisy = torch.sparse_coo_tensor(places, values, features.shape, check_invariants=True).coalesce()
    noisy = noisy if data.features.is_sparse else noisy.to_dense()
    return replace(data, features=noisy.to(data.features.device))


def _new_columns(places: Tensor, moving: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Draw the columns of the moving entries, row by row, until none of a row is in its old place."""
    rows, columns = places
    order = torch.arange(len(rows))
    new, pending = columns.clone(), rows[moving].unique()
    while pending.numel():
        for block in pending.split(_ROWS):
            local = torch.full((int(rows.max()) + 1,), -1)
            local[block] = torch.arange(len(block))
            staying, movers = order[(local[rows] >= 0) & ~moving], order[(local[rows] >= 0) & moving]
            keys = torch.rand(len(block), width, generator=generator)
            keys[local[rows[staying]], columns[staying]] = torch.inf  # sorted last: taken
            # rows ascend, so the first mover of a row is found by a search, and its place in the row by a difference
            rank = torch.arange(len(movers)) - torch.searchsorted(rows[movers], rows[movers])
            new[movers] = keys.argsort(dim=1)[local[rows[movers]], rank]
        pending = rows[moving & (new == columns)].unique()
    return new


def add_edge_noise(data: GraphData, fraction: float, *, seed: int = 0) -> GraphData:
    """Add random edges, each in both directions: no self loops, none twice; a fraction of 1 doubles the edges."""
    low, high = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].cpu()
    number = round(fraction * len(low))
    # Pairs are counted 01, 02, 12, 03, 13, 23...: those with the larger node j start at j (j - 1) / 2.
    nodes = torch.arange(data.num_nodes)
    starts = nodes * (nodes - 1) // 2
    taken = (starts[high] + low).sort().values
    room = data.num_nodes * (data.num_nodes - 1) // 2 - len(taken)
    if number > room:
        raise ValueError(
            f"fraction={fraction} of the {len(low)} edges of {data.name!r} is {number} new ones, but only {room} pairs "
            f"of nodes have none; expected a fraction of at most {room / max(len(low), 1):.4g}"
        )
    free = _sample(room, number, torch.Generator().manual_seed(seed))
    # The free pair of rank r comes after as many taken ones as have at most r free pairs before them.
    pairs = free + torch.searchsorted(taken - torch.arange(len(taken)), free, right=True)
    high = torch.searchsorted(starts, pairs, right=True) - 1
    new = torch.stack([pairs - starts[high], high]).to(data.edge_index.device)
    return replace(data, edge_index=torch.cat([data.edge_index, new, new.flip(0)], 1))


def _sample(total: int, number: int, generator: torch.Generator) -> Tensor:
    """Draw different whole numbers below total, in random order; the memory grows with their number, not with total."""
    if 4 * number > total:
        return torch.randperm(total, generator=generator)[:number]
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < number:
        drawn = torch.randint(total, (2 * number,), generator=generator).unique()
    return drawn[torch.randperm(len(drawn), generator=generator)[:number]]
