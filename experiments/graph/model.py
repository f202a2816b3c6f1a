"""Graph, network and guide of a run, and how they are trained."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.datasets.graphs.load import GraphData, MetricName, load_graph, read_own_graph
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels
from experiments.graph.config import GraphConfig
from experiments.harness.training import ELBOTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.report.classification import roc_auc
from guides.schemes import build_normalizer
from models.gat import GAT, ResidualGAT
from pyro_attention import EdgeList, GraphAttention, predict

Batch = tuple[Tensor, EdgeList, Tensor, Tensor]

_SIZES = ("hidden", "heads", "layers", "scores", "dropout")
_OUTPUT_HEADS = {"pubmed": 8}  # averaged, as in Velickovic et al. (2018), section 3.3; elsewhere 1


def chosen_graph(config: GraphConfig) -> GraphData:
    """The graph that the options name, as it is."""
    if config.graph is not None:
        return read_own_graph(config.graph, split_seed=config.split_seed)
    return load_graph(config.dataset, data_root=config.data_root, split_seed=config.split_seed)


def perturbed(data: GraphData, config: GraphConfig) -> GraphData:
    """A graph with the labels removed and the noise added that the options ask for."""
    if config.labels_per_class is not None:
        data = limit_labels(data, config.labels_per_class, seed=config.seed)
    if config.feature_noise:
        data = add_feature_noise(data, config.feature_noise, seed=config.seed)
    if config.edge_noise:
        data = add_edge_noise(data, config.edge_noise, seed=config.seed)
    return data


def noise_edges(genuine: GraphData, graph: EdgeList) -> Tensor:
    """True at the edges of a run's graph that are neither those of the genuine one nor self loops."""
    count, sources, targets = genuine.num_nodes, graph.sources.index, graph.targets.index
    edges = genuine.edge_index.to(sources.device)
    known = torch.isin(sources * count + targets, edges[0] * count + edges[1])
    return ~known & (sources != targets)


class GraphTraining(ELBOTraining):
    """Batches are (features, graph, labels, mask of the observed labels); the metric is that of the graph."""

    def __init__(self, *args: Any, metric: MetricName = "accuracy", **options: Any) -> None:
        super().__init__(*args, **options)
        self.metric = metric

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:  # noqa: ARG002
        return batch  # is there already, with its edges prepared

    def observations(self, batch: Batch) -> int:
        return int(batch[3].sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        *inputs, labels, mask = batch
        logits = predict(self.objective.guide, *inputs, labels, num_samples=1, noise="none").mean[mask]
        correct = (logits.argmax(-1) == labels[mask]).float()
        found = {"loss": nn.functional.cross_entropy(logits, labels[mask]), "accuracy": correct.mean()}
        if self.metric == "roc_auc":
            found["roc_auc"] = torch.tensor(roc_auc(logits.double().softmax(-1), labels[mask]))
        return found


@dataclass(frozen=True)
class TrainedGraph(Trained[GraphConfig, GAT | ResidualGAT]):
    """A network with its weights, its guide and what they were trained on, all on one device."""

    data: GraphData
    features: Tensor  # sparse ones by rows, the layout with the fastest products
    graph: EdgeList  # with self loops, unless own features are kept apart
    noise: Tensor | None = None  # True at the edges that were added as noise; None where none were

    @property
    def inputs(self) -> tuple[Tensor, EdgeList, Tensor]:
        """Arguments of the network; labels are given so that none is drawn."""
        return self.features, self.graph, self.data.labels


def build_model(config: GraphConfig, data: GraphData, prior: PriorFactory) -> GAT | ResidualGAT:
    """A network whose initial weights depend on the seed alone; see :func:`seeded_build`."""

    def build(prior: PriorFactory) -> GAT | ResidualGAT:
        sizes = data.features.shape[1], data.num_classes
        options: dict[str, Any] = {name: getattr(config, name) for name in _SIZES}
        options |= {"prior": prior, "normalizer": partial(build_normalizer, config.normalizer)}
        if config.architecture == "gat":
            heads = _OUTPUT_HEADS.get(data.name, 1)
            return GAT(*sizes, output_heads=heads, value_dropout=config.value_dropout, **options)
        return ResidualGAT(*sizes, separate=config.architecture == "gat_sep", **options)

    return seeded_build(build, prior, seed=config.seed)


def kl_factor(config: GraphConfig, model: nn.Module, data: GraphData, graph: EdgeList) -> float:
    """What the KL weight is multiplied by before it meets the KL summed over all attention weights.

    The KL has a term for every edge, head and layer, labelled or not, so that with "total" its part in the loss of a
    label grows with edges / labels: 240 000 edges and 160 labels drown the labels at a weight that suits Cora, with
    13 264 and 140. With "edge" the loss is the mean over labels plus the weight times the mean KL of one attention
    weight, as in the released code of Bayesian Attention Modules, and a weight means the same on any graph.
    """
    if config.kl_scale == "total":
        return 1.0
    heads = sum(layer.heads for layer in model.modules() if isinstance(layer, GraphAttention))
    return int(data.train_mask.sum()) / max(1, heads * graph.sources.index.numel())


def build(config: GraphConfig, genuine: GraphData) -> TrainedGraph:
    """Data, network and guide, untrained; the options say what is done to the graph."""
    data = perturbed(genuine, config).to(resolve_device(config.device))
    loops = config.architecture != "gat_sep"
    graph = EdgeList.from_edge_index(data.edge_index, num_nodes=data.num_nodes, add_self_loops=loops)
    scheme = config.build_scheme(all_nodes=config.prior_nodes == "all")
    model = build_model(config, data, scheme.prior)
    # the weight needs the number of edges and heads
    scheme = config.build_scheme(kl_weight=config.kl_weight * kl_factor(config, model, data, graph))
    module = GraphTraining(
        model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate, weight_decay=config.weight_decay,
        metric=data.metric,
    )  # fmt: skip
    noise = noise_edges(genuine, graph) if config.edge_noise else None
    return TrainedGraph(config, module.to(data.features.device), data, _by_rows(data.features), graph, noise)


def _by_rows(features: Tensor) -> Tensor:
    if not features.is_sparse:
        return features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()
