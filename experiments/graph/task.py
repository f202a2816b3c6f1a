"""Node classification by a graph attention network with latent attention: network, training, metrics, pictures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.utils.data import DataLoader

from experiments.data.graphs.load import (
    GraphData,
    MetricName,
    add_edge_noise,
    add_feature_noise,
    limit_labels,
    load_graph,
    read_own_graph,
)
from experiments.files import UserError, user_errors, write_atomic, write_text
from experiments.graph.config import GraphConfig
from experiments.report.figures import panels, save
from experiments.report.statistics import KINDS, roc_auc, score, score_samples, score_scaled
from experiments.run import BAD_INPUT, Task, load_trained, run_folder, show_run
from experiments.training import (
    ELBOTraining,
    Fitted,
    PriorFactory,
    Trained,
    fit,
    is_soft,
    mean_prediction,
    resolve_device,
    seeded_build,
)
from guides.schemes import build_normalizer
from models.gat import GAT, ResidualGAT
from pyro_attention import AttentionELBO, AttentionGuide, EdgeList, GraphAttention, predict, sample_posterior
from pyro_attention.analysis import fit_temperature, hybrid_weights, selective_accuracy, split_variance
from pyro_attention.normalizers import Softmax
from pyro_attention.plots import reliability
from pyro_attention.posterior.predictive import Prediction, seeded

Batch = tuple[Tensor, EdgeList, Tensor, Tensor]

_SIZES = ("hidden", "heads", "layers", "scores", "dropout")
_OUTPUT_HEADS = {"pubmed": 8}  # averaged, as in Velickovic et al. (2018), section 3.3; elsewhere 1


def chosen_graph(config: GraphConfig) -> GraphData:
    """Return the graph that the options name, without noise and with all its labels."""
    if config.graph is not None:
        return read_own_graph(config.graph, split_seed=config.split_seed)
    return load_graph(config.dataset, data_root=config.data_root, split_seed=config.split_seed)


def perturbed(data: GraphData, config: GraphConfig) -> GraphData:
    """Return the graph with fewer labels, moved features and random edges, as far as the options ask for them."""
    if config.labels_per_class is not None:
        data = limit_labels(data, config.labels_per_class, seed=config.seed)
    if config.feature_noise:
        data = add_feature_noise(data, config.feature_noise, seed=config.seed)
    if config.edge_noise:
        data = add_edge_noise(data, config.edge_noise, seed=config.seed)
    return data


def check_same_graph(data: GraphData, folder: Path) -> None:
    """Write a checksum of the graph into the folder of a run, or compare it with the checksum that is there.

    Raises:
        UserError: The folder holds a run on another graph.
    """
    path, checksum = folder / "graph.json", sha256(data.metric.encode())
    for name in ("features", "labels", "edge_index", "train_mask", "val_mask", "test_mask"):
        values = getattr(data, name)
        for part in (values.indices(), values.values()) if values.is_sparse else (values,):
            checksum.update(str(list(values.shape)).encode() + part.cpu().contiguous().numpy().tobytes())
    if not path.is_file():
        write_text(path, f'"{checksum.hexdigest()}"\n')
    elif checksum.hexdigest() not in path.read_text():
        raise UserError(
            f"{folder} holds a run on another graph; expected the graph that the run began with. Choose another --out, "
            f"or pass --overwrite to remove that run"
        )


def noise_edges(genuine: GraphData, graph: EdgeList) -> Tensor:
    """Return a mask of the edges of a run's graph that are neither edges of the genuine graph nor self loops."""
    count, sources, targets = genuine.num_nodes, graph.sources.index, graph.targets.index
    edges = genuine.edge_index.to(sources.device)
    known = torch.isin(sources * count + targets, edges[0] * count + edges[1])
    return ~known & (sources != targets)


class GraphTraining(ELBOTraining):
    """Training on batches (features, graph, labels, mask of the observed labels), judged by the metric of the graph."""

    def __init__(self, *args: Any, metric: MetricName = "accuracy", **options: Any) -> None:
        super().__init__(*args, **options)
        self.metric = metric

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:  # noqa: ARG002
        return batch  # it is on the device already, with its edges prepared

    def observations(self, batch: Batch) -> int:
        return int(batch[3].sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        *inputs, labels, mask = batch
        logits = predict(self.objective.guide, *inputs, labels, num_samples=1, noise="none").mean[mask]
        correct = (logits.argmax(-1) == labels[mask]).float()
        metrics = {"loss": nn.functional.cross_entropy(logits, labels[mask]), "accuracy": correct.mean()}
        if self.metric == "roc_auc":
            metrics["roc_auc"] = torch.tensor(roc_auc(logits.double().softmax(-1), labels[mask]))
        return metrics


@dataclass(frozen=True)
class TrainedGraph(Trained[GraphConfig, GAT | ResidualGAT]):
    """A network with its guide, its options and its graph, all on one device."""

    data: GraphData
    features: Tensor  # sparse ones by rows, the layout with the fastest products
    graph: EdgeList  # with self loops, unless the architecture separates a node's own features
    noise: Tensor | None = None  # True at the edges that were added as noise; None where none were

    @property
    def inputs(self) -> tuple[Tensor, EdgeList, Tensor]:
        """Arguments of the network; the labels are among them so that none is drawn."""
        return self.features, self.graph, self.data.labels


def build_model(config: GraphConfig, data: GraphData, prior: PriorFactory) -> GAT | ResidualGAT:
    """Build a network whose initial weights depend on the seed alone; see :func:`seeded_build`."""

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
    """Return the factor of the KL weight that goes with the KL summed over all attention weights.

    The KL has a term for every edge, head and layer, labeled or not. With "total" its part in the loss of a label
    therefore grows with edges / labels: a weight that suits Cora, with 13 264 edges and 140 labels, drowns the labels
    of a graph with 240 000 edges and 160 labels. With "edge" the loss is the mean over labels plus the weight times the
    mean KL of one attention weight, as in the released code of Bayesian Attention Modules, and a weight means the same
    on any graph.
    """
    if config.kl_scale == "total":
        return 1.0
    heads = sum(layer.heads for layer in model.modules() if isinstance(layer, GraphAttention))
    return int(data.train_mask.sum()) / max(1, heads * graph.sources.index.numel())


def build(config: GraphConfig, genuine: GraphData) -> TrainedGraph:
    """Build the untrained network with its guide, on the graph as the options change it."""
    data = perturbed(genuine, config).to(resolve_device(config.device))
    loops = config.architecture != "gat_sep"
    graph = EdgeList.from_edge_index(data.edge_index, num_nodes=data.num_nodes, add_self_loops=loops)
    scheme = config.build_scheme()
    model = build_model(config, data, scheme.prior)
    # the weight needs the number of edges and heads
    weight = config.kl_weight * kl_factor(config, model, data, graph)
    scheme = config.build_scheme(kl_weight=config.kl_weight_schedule(weight))
    module = GraphTraining(
        model, scheme.guide(model), scheme.objective(), learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, metric=data.metric,
    )  # fmt: skip
    noise = noise_edges(genuine, graph) if config.edge_noise else None
    return TrainedGraph(config, module.to(data.features.device), data, _by_rows(data.features), graph, noise)


def _by_rows(features: Tensor) -> Tensor:
    if not features.is_sparse:
        return features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return features.to_sparse_csr()


# training and pictures


class GraphTask(Task[GraphConfig, TrainedGraph]):
    """Classification of nodes, on the graph that the options choose or on one of your own.

    Example:
        >>> from experiments.data.graphs.load import load_graph
        >>> config = GraphConfig(max_epochs=200, out=Path("runs", "mine"))
        >>> GraphTask(load_graph("digits")).run(config)["test_attention_accuracy"]  # doctest: +SKIP
        0.96...
    """

    config = GraphConfig
    script = "experiments.graph"

    def __init__(self, graph: GraphData | None = None) -> None:
        self.graph = graph

    def folder(self, config: GraphConfig) -> str:
        named = config.dataset if config.graph is None else config.graph.stem
        name = named if self.graph is None else self.graph.name
        return f"graph/{name}-{config.guide}-{config.prior}-{config.seed}"

    def load(self, config: GraphConfig) -> GraphData:
        return chosen_graph(config) if self.graph is None else self.graph

    def restore(self, config: GraphConfig, folder: Path) -> TrainedGraph:
        data = self.load(config)
        check_same_graph(data, folder)
        return build(config, data)

    def run(self, config: GraphConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                folder = run.begin()
                check_same_graph(data, folder)
                trained = build(config, data)
            fitted = self.fit(trained, folder)
            metrics, logits = evaluate(trained, fitted)
            arrays = {"logits": logits.cpu().numpy()}
            write_atomic(
                folder / "predictions.npz", lambda file: np.savez_compressed(file, allow_pickle=False, **arrays)
            )
            return run.finish(metrics | fitted.metrics)

    def fit(self, trained: TrainedGraph, folder: Path) -> Fitted:
        """Train the network on batches that hold the whole graph."""
        config = trained.config
        # an epoch is one batch; a loader draws a seed, here from a generator that no noise depends on
        loaders = [
            DataLoader[Any]([(*trained.inputs, mask)], batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]
            for mask in (trained.data.train_mask, trained.data.val_mask)
        ]
        monitor: dict[str, Literal["min", "max"]] = {f"val_{trained.data.metric}": "max"}
        if config.monitor == "both":
            monitor["val_loss"] = "min"
        return fit(config, trained.module, *loaders, folder=folder, patience=config.patience, monitor=monitor)

    def main_metrics(self, config: GraphConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        first = ["test_mean_roc_auc"] if "val_roc_auc" in metrics else []  # of graphs that are judged by it
        return (*first, "test_mean_accuracy", "test_mean_nll", "test_mean_ece", "val_accuracy", "val_roc_auc")

    def show(self, config: GraphConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        figure, ((axes,),) = panels(1, 1, size=(5, 4))
        draw_reliability(load_trained(self, config), axes)
        print(save(figure, folder / "figures" / "reliability.png"))


def train(config: GraphConfig) -> None:
    """Run the command."""
    task = GraphTask()
    show_run(task, config, task.run(config))


def draw_reliability(trained: TrainedGraph, axes: Axes) -> None:
    """Draw the share of right classes against their probability, for the test nodes."""
    data, probabilities = trained.data, mean_prediction(trained, trained.inputs, lambda logits: logits.softmax(-1))
    confidence, classes = probabilities[data.test_mask].max(-1)
    reliability(confidence, classes == data.labels[data.test_mask], axes=axes)
    axes.set(title=f"How often are the classes right?\n{len(confidence)} test nodes of {data.name}")
    axes.set(xlabel="probability of the class", ylabel="share of nodes whose class is right")


# metrics

# sources of the variance of a probability
_SOURCES: tuple[Literal["attention", "dropout", "interaction"], ...] = ("attention", "dropout", "interaction")


def evaluate(trained: TrainedGraph, fitted: Fitted) -> tuple[dict[str, float], Tensor]:
    """Return all metrics of a trained network, and its logits at the posterior mean for all nodes, ``[N, classes]``.

    The same weights and seed give the same numbers.
    """
    guide, inputs, data, num_samples = trained.guide, trained.inputs, trained.data, trained.config.num_samples
    soft = is_soft(guide)
    samples: dict[str, Any] = {}
    for kind, noise in KINDS.items():
        if soft and kind in ("attention", "both"):
            continue
        count, seed = 1 if noise == "none" else num_samples, trained.config.seed
        samples[kind] = predict(guide, *inputs, num_samples=count, noise=noise, keep_samples=True, seed=seed).samples
    metrics: dict[str, float] = {}
    for kind, logits in samples.items():
        metrics |= prediction_scores(kind, logits, data)
        if kind != "mean" and num_samples > 1:
            accurate = samples["mean"][0, data.test_mask].argmax(-1) == data.labels[data.test_mask]
            scores = score_samples(logits[:, data.test_mask], accurate)
            metrics |= {f"test_{kind}_{name}": value for name, value in scores.items()}
    if not soft and num_samples > 1:
        metrics |= _variance_shares(samples, data)
    metrics |= _attention_metrics(trained)
    best = fitted.history[fitted.best_epoch]
    metrics |= {name: best[name] for name in ("val_accuracy", "val_roc_auc", "val_loss") if name in best}
    metrics["kl"] = _kl(trained)
    return metrics, samples["mean"][0]


# predictions


def prediction_scores(kind: str, logits: Tensor, data: GraphData) -> dict[str, float]:
    """Score mean probabilities of the test nodes, before and after temperature scaling; logits ``[S, N, classes]``."""
    scaling = fit_temperature(logits[:, data.val_mask], data.labels[data.val_mask])
    tested, labels = logits[:, data.test_mask], data.labels[data.test_mask]
    probabilities = tested.softmax(-1).mean(0)
    scores = score(probabilities, labels) | score_scaled(scaling, tested, labels)
    if _has_roc_auc(data):
        scores["roc_auc"] = roc_auc(tested.double().softmax(-1).mean(0), labels)
    scores["aurc"] = selective_accuracy(probabilities.amax(-1), probabilities.argmax(-1) == labels).area
    return {f"test_{kind}_{name}": value for name, value in scores.items()} | {
        f"{kind}_temperature": scaling.temperature
    }


def _has_roc_auc(data: GraphData) -> bool:
    return data.num_classes == 2 and len(data.labels[data.test_mask].unique()) == 2


def _variance_shares(samples: Mapping[str, Tensor], data: GraphData) -> dict[str, float]:
    def moments(logits: Tensor) -> Prediction:
        probabilities = logits[:, data.test_mask].softmax(-1)
        return Prediction(mean=probabilities.mean(0), variance=probabilities.var(0), num_samples=len(logits))

    attention, dropout, both = (moments(samples[kind]) for kind in ("attention", "mc_dropout", "both"))
    shares = split_variance(attention=attention, dropout=dropout, both=both)
    return {f"variance_share_{source}": shares[source] for source in _SOURCES}


# attention


def _attention_metrics(trained: TrainedGraph) -> dict[str, float]:
    """Return where the attention looks, at its posterior mean, and the scores under uniform attention in its place."""
    guide, inputs, data, graph = trained.guide, trained.inputs, trained.data, trained.graph
    metrics: dict[str, float] = {}
    weights = sample_posterior(guide, *inputs, num_samples=1, noise="none")
    if trained.noise is not None:
        metrics["noise_edge_attention"] = relative_attention(weights, graph, trained.noise)
    between_classes = edges_to_other_classes(graph, data)
    if between_classes.any():
        metrics["other_class_attention"] = relative_attention(weights, graph, between_classes)
    uniform = predict(uniform_guide(trained), *inputs, num_samples=1, noise="none").mean[data.test_mask]
    labels = data.labels[data.test_mask]
    metrics["uniform_accuracy"] = (uniform.argmax(-1) == labels).float().mean().item()
    if _has_roc_auc(data):
        metrics["uniform_roc_auc"] = roc_auc(uniform.double().softmax(-1), labels)
    metrics |= {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}
    metrics["attention_entropy"] = fmean(layer.mean().item() for layer in relative_entropies(weights, graph))
    return metrics


def relative_entropies(weights: Mapping[str, Tensor], graph: EdgeList) -> list[Tensor]:
    """Return the entropy of attention over that of uniform attention, per layer ``[S, nodes with neighbors, H]``."""
    neighbors = graph.targets.index.bincount(minlength=graph.targets.count)
    several = neighbors > 1
    return [
        (graph.targets.sum(torch.special.entr(layer)) / neighbors.log().unsqueeze(-1))[:, several]
        for layer in weights.values()
    ]


def relative_attention(weights: Mapping[str, Tensor], graph: EdgeList, edges: Tensor) -> float:
    """Return the mean attention on some edges, divided by what uniform attention would give them."""
    uniform = 1 / graph.targets.index.bincount(minlength=graph.targets.count)[graph.targets.index]
    share = uniform[edges].sum()
    return fmean((layer[:, edges].sum(1) / share).mean().item() for layer in weights.values())


def edges_to_other_classes(graph: EdgeList, data: GraphData) -> Tensor:
    """Return a mask of the edges between nodes of different classes.

    Both nodes are in one of the masks of the graph: the class of other nodes may be unknown.
    """
    known = data.train_mask | data.val_mask | data.test_mask
    sources, targets = graph.sources.index, graph.targets.index
    return known[sources] & known[targets] & (data.labels[sources] != data.labels[targets])


def uniform_guide(trained: TrainedGraph) -> AttentionGuide:
    """Return a guide over a copy of the network whose equal scores make the attention over the neighbors uniform.

    A softmax takes the place of normalizers over queries too, under which equal scores are not uniform attention.
    """
    model, guide = deepcopy((trained.model, trained.guide))
    for layer in model.modules():
        if isinstance(layer, GraphAttention):
            layer.attention.normalizer = Softmax()
            for parameter in layer.score.parameters():
                parameter.data.zero_()
    return guide


def _kl(trained: TrainedGraph) -> float:
    """Return the KL of the graph at one sample of the attention and without dropout."""
    none_labeled = torch.zeros_like(trained.data.labels, dtype=torch.bool)  # leaves only the KL of the objective
    with seeded(trained.config.seed):
        return AttentionELBO().loss(trained.model, trained.guide, *trained.inputs, none_labeled)
