"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments.datasets.graphs.load import GraphData, load_graph
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels
from experiments.files import user_errors, write_atomic
from experiments.graph.config import GraphConfig, ScheduleName
from experiments.graph.evaluation import DEFINITIONS, evaluate, prediction_table
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.harness.extension import open_training
from experiments.harness.folder import exclusive
from experiments.harness.results import write_environment, write_metrics
from experiments.harness.training import ELBOTraining, fit, load_best, resolve_device, seeded_build
from experiments.reporting.figures import reliability_diagram, save
from guides.schemes import build_scheme
from models.gat import GAT
from pyro_attention import NORMALIZERS, AttentionGuide, EdgeList, Hybrid, Normalizer, Prior, predict
from pyro_attention.schedules import Constant, Cyclical, Linear, Sigmoid

__all__ = ["GraphConfig", "Trained", "build_model", "kl_schedule", "load_data", "load_trained", "run", "run_folder"]

Batch = tuple[Tensor, EdgeList, Tensor, Tensor]

_OUTPUT_HEADS = {"pubmed": 8}  # averaged, as in Velickovic et al. (2018), section 3.3; elsewhere 1


class _Training(ELBOTraining):
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


class _FullBatch:
    """A data loader of one batch."""

    def __init__(self, *batch: object) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        yield self.batch

    def __len__(self) -> int:
        return 1


def build_model(config: GraphConfig, data: GraphData, prior: Callable[[int, int], Prior]) -> GAT:
    """A network whose initial weights depend on the seed alone; see :func:`seeded_build`."""
    sizes = {"hidden": config.hidden, "heads": config.heads, "dropout": config.dropout}
    sizes["output_heads"] = _OUTPUT_HEADS.get(config.dataset, 1)

    def normalizer(heads: int) -> Normalizer:
        return Hybrid(heads) if config.normalizer == "hybrid" else NORMALIZERS[config.normalizer]()

    def build(prior: Callable[[int, int], Prior]) -> GAT:
        return GAT(data.features.shape[1], data.num_classes, prior=prior, normalizer=normalizer, **sizes)

    return seeded_build(build, prior, plain=build_scheme("soft").prior, seed=config.seed)


def kl_schedule(config: GraphConfig) -> Callable[[int], float]:
    """The KL weight as a function of the training step."""
    weight = config.kl_weight
    schedules: dict[ScheduleName, Callable[[], Callable[[int], float]]] = {
        "constant": lambda: Constant(weight),
        "linear": lambda: Linear(config.kl_steps, weight=weight),
        "sigmoid": lambda: Sigmoid(config.kl_rate, weight=weight),
        "cyclical": lambda: Cyclical(config.kl_steps, weight=weight),
    }
    return schedules[config.kl_schedule]()


@dataclass(frozen=True)
class Trained:
    """A network with its weights, its guide and what they were trained on.

    Attributes:
        module: Network, guide and objective.
        data: The graph, on the module's device.
        features: Its features; sparse ones by rows, the layout with the fastest products.
        graph: Its edges with self loops.
    """

    module: ELBOTraining
    data: GraphData
    features: Tensor
    graph: EdgeList

    @property
    def guide(self) -> AttentionGuide:
        """The guide over the network."""
        guide: AttentionGuide = self.module.objective.guide
        return guide

    @property
    def inputs(self) -> tuple[Tensor, EdgeList, Tensor]:
        """Arguments of the network; labels are given so that none is drawn."""
        return self.features, self.graph, self.data.labels


def run_folder(config: GraphConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "graph", f"{config.dataset}-{config.guide}-{config.prior}-{config.seed}")


def load_data(config: GraphConfig) -> GraphData:
    """The graph with the labels removed and the noise added that the options ask for."""
    data = load_graph(config.dataset, data_root=config.data_root, split_seed=config.split_seed)
    if config.labels_per_class is not None:
        data = limit_labels(data, config.labels_per_class, seed=config.seed)
    if config.feature_noise:
        data = add_feature_noise(data, config.feature_noise, seed=config.seed)
    if config.edge_noise:
        data = add_edge_noise(data, config.edge_noise, seed=config.seed)
    return data


def _build(config: GraphConfig) -> Trained:
    """Data, network and guide, untrained."""
    data = load_data(config).to(resolve_device(config.device))
    scheme = build_scheme(
        config.guide, prior=config.prior, kl_weight=kl_schedule(config), concentration=config.concentration,
        scale=config.scale, prior_rate=config.prior_rate, prior_scale=config.prior_scale, learnable=config.learnable,
    )  # fmt: skip
    model = build_model(config, data, scheme.prior)
    module = _Training(
        model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate, weight_decay=config.weight_decay
    )
    graph = EdgeList.from_edge_index(data.edge_index, num_nodes=data.num_nodes, add_self_loops=True)
    return Trained(module, data, _by_rows(data.features), graph)


def _added_edges(config: GraphConfig, trained: Trained) -> Tensor | None:
    """True at the edges that are noise."""
    if not config.edge_noise:
        return None
    genuine = load_data(replace(config, edge_noise=0.0)).edge_index.to(trained.features.device)
    count, (sources, targets) = trained.data.num_nodes, (trained.graph.sources.index, trained.graph.targets.index)
    known = torch.isin(sources * count + targets, genuine[0] * count + genuine[1])
    return ~known & (sources != targets)


def _by_rows(features: Tensor) -> Tensor:
    if not features.is_sparse:
        return features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()


def load_trained(config: GraphConfig) -> Trained:
    """The network of a finished run, at its best epoch.

    Raises:
        UserError: The folder holds no checkpoint, or one of another network.
    """
    with user_errors(ValueError, OSError):
        trained = _build(config)
        load_best(trained.module, run_folder(config))
    return trained


@exclusive
def run(config: GraphConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json; ``experiments.graph.evaluation.DEFINITIONS`` says what they are.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        trained = _build(config)
        metrics = open_training(folder, config)
    if metrics is not None:
        return metrics
    write_environment(folder, trained.features.device)
    with user_errors(ValueError, OSError):
        fitted = fit(
            trained.module,
            _FullBatch(*trained.inputs, trained.data.train_mask),
            _FullBatch(*trained.inputs, trained.data.val_mask),
            folder=folder,
            max_epochs=config.max_epochs,
            monitor={"val_accuracy": "max", "val_loss": "min"},
            patience=config.patience,
            device=config.device,
            precision=config.precision,
            checkpoint_every=config.checkpoint_every,
            resume=config.resume,
            progress=config.progress,
        )
    evaluation = evaluate(
        trained.module, trained.inputs, trained.data, fitted,
        num_samples=config.num_samples, seed=config.seed, added_edges=_added_edges(config, trained),
    )  # fmt: skip
    logits = evaluation.logits.cpu().numpy()
    write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, logits=logits))
    write_metrics(folder, evaluation.metrics, {name: DEFINITIONS[name] for name in evaluation.metrics})
    return evaluation.metrics


def _run_and_show(config: GraphConfig) -> None:
    """The script: table on the terminal, pictures in the folder."""
    print(prediction_table(run(config)), end="\n\n")
    trained, folder = load_trained(config), run_folder(config)
    parts = trained.guide, trained.inputs, trained.data
    panels = calibration_panels(config.guide, *parts, num_samples=config.num_samples, seed=config.seed)
    attention, _ = attention_figure(*parts, seed=config.seed)
    print(save(reliability_diagram(panels), folder / "figures" / "reliability.png"))
    print(f"{save(attention, folder / 'figures' / 'neighbourhood.png')}\n\nsaved in {folder}")
