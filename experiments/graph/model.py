"""Network and guide of a run on a graph, and how they are trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.datasets.graphs.load import GraphData, MetricName
from experiments.graph.config import GraphConfig
from experiments.graph.data import noise_edges, perturbed
from experiments.harness.training import ELBOTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.report.classification import roc_auc
from guides.schemes import build_normalizer
from models.gat import GAT
from models.residual_gat import ResidualGAT
from pyro_attention import EdgeList, GraphAttention, predict
from pyro_attention.normalizers import Normalizer
from pyro_attention.schedules import Constant, Cyclical, Linear, Sigmoid

__all__ = ["GraphTraining", "TrainedGraph", "build", "build_model", "kl_schedule"]

Batch = tuple[Tensor, EdgeList, Tensor, Tensor]

_OUTPUT_HEADS = {"pubmed": 8}  # averaged, as in Velickovic et al. (2018), section 3.3; elsewhere 1


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

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads)

    def build(prior: PriorFactory) -> GAT | ResidualGAT:
        sizes = data.features.shape[1], data.num_classes
        options: dict[str, Any] = {
            "prior": prior, "normalizer": normalizer, "hidden": config.hidden, "heads": config.heads,
            "layers": config.layers, "scores": config.scores, "dropout": config.dropout,
        }  # fmt: skip
        if config.architecture == "gat":
            heads = _OUTPUT_HEADS.get(data.name, 1)
            return GAT(*sizes, output_heads=heads, value_dropout=config.value_dropout, **options)
        return ResidualGAT(*sizes, separate=config.architecture == "gat_sep", **options)

    return seeded_build(build, prior, seed=config.seed)


def kl_schedule(config: GraphConfig, factor: float = 1.0) -> Callable[[int], float]:
    """The weight of the summed KL as a function of the training step: that of the options, times a factor."""
    weight = config.kl_weight * factor
    if config.kl_schedule == "constant":
        return Constant(weight)
    if config.kl_schedule == "sigmoid":
        return Sigmoid(config.kl_rate, weight=weight)
    return (Linear if config.kl_schedule == "linear" else Cyclical)(config.kl_steps, weight=weight)


def kl_factor(config: GraphConfig, model: nn.Module, data: GraphData, graph: EdgeList) -> float:
    """What the KL weight is multiplied by before it meets the KL summed over all attention weights.

    Training minimises the loss of a label: the negative log-likelihood summed over labelled nodes, plus weight times
    KL, divided by the number of labels. The KL has a term for every edge, head and layer, labelled or not, so that with
    "total" its part in the loss of a label grows with edges / labels: 240 000 edges and 160 labels drown the labels at
    a weight that suits Cora, with 13 264 and 140. With "edge", the default, the loss is the mean over labels plus the
    weight times the mean KL of one attention weight. Both are means, so a weight means the same on any graph; it is
    what the released code of Bayesian Attention Modules does. On Cora 1 with "edge" is about .001 with "total".
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
    scheme = config.build_scheme(kl_weight=kl_schedule(config, kl_factor(config, model, data, graph)))
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
