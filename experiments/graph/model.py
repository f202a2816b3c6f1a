"""Network and guide of a run on a graph, and how they are trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.datasets.graphs.load import GraphData
from experiments.files import user_errors
from experiments.graph.config import GraphConfig
from experiments.graph.data import load_data
from experiments.harness.training import ELBOTraining, PriorFactory, Trained, load_best, resolve_device, seeded_build
from models.gat import GAT
from pyro_attention import NORMALIZERS, EdgeList, Hybrid, Normalizer, predict
from pyro_attention.schedules import Constant, Cyclical, Linear, Sigmoid

__all__ = ["GraphTraining", "TrainedGraph", "build", "build_model", "kl_schedule", "load_trained", "run_folder"]

Batch = tuple[Tensor, EdgeList, Tensor, Tensor]

_OUTPUT_HEADS = {"pubmed": 8}  # averaged, as in Velickovic et al. (2018), section 3.3; elsewhere 1


class GraphTraining(ELBOTraining):
    """Batches are (features, graph, labels, mask of the observed labels)."""

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:  # noqa: ARG002
        return batch  # is there already, with its edges prepared

    def observations(self, batch: Batch) -> int:
        return int(batch[3].sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        *inputs, labels, mask = batch
        logits = predict(self.objective.guide, *inputs, labels, num_samples=1, noise="none").mean[mask]
        correct = (logits.argmax(-1) == labels[mask]).float()
        return {"loss": nn.functional.cross_entropy(logits, labels[mask]), "accuracy": correct.mean()}


@dataclass(frozen=True)
class TrainedGraph(Trained[GraphConfig, GAT]):
    """A network with its weights, its guide and what they were trained on, all on one device."""

    data: GraphData
    features: Tensor  # sparse ones by rows, the layout with the fastest products
    graph: EdgeList  # with self loops

    @property
    def inputs(self) -> tuple[Tensor, EdgeList, Tensor]:
        """Arguments of the network; labels are given so that none is drawn."""
        return self.features, self.graph, self.data.labels


def build_model(config: GraphConfig, data: GraphData, prior: PriorFactory) -> GAT:
    """A network whose initial weights depend on the seed alone; see :func:`seeded_build`."""

    def normalizer(heads: int) -> Normalizer:
        return Hybrid(heads) if config.normalizer == "hybrid" else NORMALIZERS[config.normalizer]()

    def build(prior: PriorFactory) -> GAT:
        return GAT(
            data.features.shape[1], data.num_classes, prior=prior, normalizer=normalizer, hidden=config.hidden,
            heads=config.heads, output_heads=_OUTPUT_HEADS.get(config.dataset, 1), dropout=config.dropout,
        )  # fmt: skip

    return seeded_build(build, prior, seed=config.seed)


def kl_schedule(config: GraphConfig) -> Callable[[int], float]:
    """The KL weight as a function of the training step."""
    if config.kl_schedule == "constant":
        return Constant(config.kl_weight)
    if config.kl_schedule == "sigmoid":
        return Sigmoid(config.kl_rate, weight=config.kl_weight)
    return (Linear if config.kl_schedule == "linear" else Cyclical)(config.kl_steps, weight=config.kl_weight)


def run_folder(config: GraphConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "graph", f"{config.dataset}-{config.guide}-{config.prior}-{config.seed}")


def build(config: GraphConfig) -> TrainedGraph:
    """Data, network and guide, untrained."""
    data = load_data(config).to(resolve_device(config.device))
    scheme = config.build_scheme(kl_weight=kl_schedule(config))
    model = build_model(config, data, scheme.prior)
    module = GraphTraining(
        model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate, weight_decay=config.weight_decay
    )
    graph = EdgeList.from_edge_index(data.edge_index, num_nodes=data.num_nodes, add_self_loops=True)
    return TrainedGraph(config, module.to(data.features.device), data, _by_rows(data.features), graph)


def load_trained(config: GraphConfig) -> TrainedGraph:
    """The network of a finished run, at its best epoch; UserError where the folder holds no checkpoint of it."""
    with user_errors(ValueError, OSError):
        trained = build(config)
        load_best(trained.module, run_folder(config))
    return trained


def _by_rows(features: Tensor) -> Tensor:
    if not features.is_sparse:
        return features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()
