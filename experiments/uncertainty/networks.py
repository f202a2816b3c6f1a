"""One network of the comparison: its training, and its logits under every uncertainty that it allows."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from experiments.data.text.glue import GLUE, LabeledPairs, load_glue
from experiments.data.text.headlines import load_headlines
from experiments.files import UserError, write_atomic
from experiments.finetune.glue import EncodedPairs, GlueTask, PairBatch, load_texts
from experiments.finetune.model import EncodedTexts, FineTuneTask, Tuned, load_tokenizer
from experiments.finetune.questions import WindowBatch
from experiments.report.statistics import KINDS
from experiments.uncertainty.config import PairConfig
from experiments.uncertainty.last_layer import LastLayerPosterior
from models.transformers import PairModel
from pyro_attention import AttentionGuide, LaplacePosterior, LogNormal
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.posterior.predictive import seeded

PARTS = ("val", "test", "domain")
LAST_LAYER_DRAWS = 100  # of the output layer: they need no pass of the network
IMPOSSIBLE = -1e4  # logit of probability 0
_QUERIES = "attention.self.query.weight"  # what the names of BERT's queries end with
Logits = dict[str, Tensor]  # by part, [S, items, ..., classes]
Batch = PairBatch | WindowBatch
Batches = Mapping[str, Sequence[Batch]]  # by part
Compared = Tuned[Any, Any]


# batches


def inputs_of(batch: Batch) -> tuple[Any, ...]:
    """Return the arguments of the model."""
    return (batch.inputs, batch.allowed) if isinstance(batch, WindowBatch) else (batch.inputs,)


def labels_of(batch: Batch) -> Tensor:
    """Return the classes ``[B]``, or the first and the last token of the answers ``[B, 2]``."""
    return torch.stack([batch.first, batch.last], 1) if isinstance(batch, WindowBatch) else batch.labels


def in_order(values: Sequence[Tensor], batches: Sequence[Batch], *, dim: int = 0) -> Tensor:
    """Join the values of batches in the order of the items, which lie along ``dim``; shorter logits are padded."""
    longest = max(tensor.size(-1) for tensor in values)
    if values[0].dim() > 1:
        values = [nn.functional.pad(tensor, (0, longest - tensor.size(-1)), value=IMPOSSIBLE) for tensor in values]
    order = torch.cat([batch.indices for batch in batches]).cpu().argsort()
    return torch.cat([tensor.cpu() for tensor in values], dim).index_select(dim, order)


class LowerLayersOnce:
    """Passes that compute the layers below the last one once for every batch, while it is entered.

    A batch is recognized by its tensor of tokens. When it comes again, the lower layers get its first text alone, and
    the last layer gets what it was given the first time. So the noise of the passes has to be in the last layer or
    above it.

    Args:
        model: Model of a network with the layers of BERT.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.network.base_model.encoder.layer
        self._inputs: dict[int, tuple[Tensor, Any]] = {}  # of the last layer, beside the tokens, by the tokens' id
        self._tokens: Tensor

    def __enter__(self) -> LowerLayersOnce:
        self._hooks = [
            self.model.register_forward_pre_hook(self._begin),
            *(layer.register_forward_pre_hook(self._first, with_kwargs=True) for layer in self.layers[:-1]),
            self.layers[-1].register_forward_pre_hook(self._kept, with_kwargs=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._inputs.clear()

    def _begin(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        self._tokens = given[0]["input_ids"]

    def _first(self, _: nn.Module, *given: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: tensor[:1], given) if id(self._tokens) in self._inputs else None

    def _kept(self, _: nn.Module, *given: Any) -> Any:
        return self._inputs.setdefault(id(self._tokens), (self._tokens, given))[1]


# the data of GLUE


def load_parts(config: PairConfig) -> dict[str, LabeledPairs]:
    """Load some examples of every part, the same ones for every seed, and those that are out of domain."""
    texts = load_texts(config)
    sizes = {"train": config.train_items, "val": config.val_items, "test": config.test_items}
    return {part: some(texts[part], count) for part, count in sizes.items()} | {
        "domain": some(out_of_domain(config), config.test_items)
    }


def some(text: LabeledPairs, count: int) -> LabeledPairs:
    """Return examples that are drawn once and for all."""
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))
    return text.select(order[:count].sort().values)


def out_of_domain(config: PairConfig) -> LabeledPairs:
    """Load sentences out of domain, pairs of them for a task of pairs, without labels.

    Headlines with a # for a digit or with an unknown word would be told by these signs, so they are left out.
    """
    if config.domain == "headlines":
        texts = load_headlines(data_root=config.data_root)["test"]
        first = [text[0] for text in texts.headlines if not {"#", "unk"} & set(text[0].replace("#", " # ").split())]
        second = None
        if not first:
            raise UserError("all headlines have a # or an unknown word, expected some without")
    else:
        text = load_glue(config.domain, data_root=config.data_root)["test"]
        first, second = text.first, text.second
    pairs = GLUE[config.task].second is not None
    if pairs and second is None:
        raise UserError(f"domain is {config.domain}, which has single sentences, and {config.task} has pairs of them")
    return LabeledPairs(first, second if pairs else None, torch.zeros(len(first), dtype=torch.int64))


# predictions


class NetworkTask(FineTuneTask[Any, Any]):
    """Fine-tuning of one network of the comparison; predictions.npz gets logits ``KIND_PART`` and the labels."""

    script = "experiments.uncertainty"
    batch_items = 64  # of a prediction

    @abstractmethod
    def last_layer(self, trained: Compared, batches: Batches) -> tuple[Logits, float]:
        """Return logits by a Laplace posterior of the output layer, and the standard deviation of its prior."""

    def scores(self, trained: Compared, data: Mapping[str, EncodedTexts[Any]], folder: Path) -> dict[str, float]:
        config = trained.config
        metrics: dict[str, float] = {"train_examples": len(data["train"])}
        batches = {
            part: [*data[part].batches(trained.device, sentences=self.batch_items)] for part in ("train", *PARTS)
        }
        labels = {part: in_order([labels_of(batch) for batch in batches[part]], batches[part]) for part in PARTS[:2]}
        arrays: dict[str, Any] = {f"labels_{part}": values.numpy() for part, values in labels.items()}
        makers: dict[str, Callable[[], tuple[Logits, float | None]]] = {
            kind: partial(of_kind, trained, batches, kind) for kind in KINDS
        }
        makers |= {
            "last_layer": partial(self.last_layer, trained, batches),
            "score_network": partial(score_network, trained, data["train"], batches),
            "width": partial(without_training, trained, batches),
        }
        for kind in sorted(config.kinds, key=[*makers].index):  # the last of them makes the network Bayesian
            start = time.process_time()
            logits, chosen = makers[kind]()
            metrics[f"{kind}_seconds"] = time.process_time() - start
            if chosen is not None:
                metrics[f"{kind}_chosen"] = chosen
            arrays |= {f"{kind}_{part}": values.float().numpy() for part, values in logits.items()}
            metrics[f"test_{kind}_accuracy"] = accuracy(logits["test"], labels["test"])
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        return metrics


class PairNetworkTask(NetworkTask, GlueTask):
    """Fine-tuning of one network of the comparison on a task of GLUE."""

    config = PairConfig

    def wrap(self, config: Any, network: Any) -> PairModel:
        check_layers(config.model, network)
        layer = getattr(network, "classifier", None)
        if config.pooling == "head" and not isinstance(layer, nn.Linear):
            raise UserError(
                f"the output layer of model {config.model} is a {type(layer).__name__}, expected a Linear, as a "
                f"Laplace posterior is put there; take a BERT"
            )
        if config.adapter_rank:
            lora = LoraConfig(
                r=config.adapter_rank, lora_alpha=2 * config.adapter_rank, lora_dropout=0.1,
                target_modules=["query", "value"],
            )  # fmt: skip
            inject_adapter_in_model(lora, network)  # freezes all but the adapters
            for name, parameter in network.named_parameters():
                if name.startswith(("classifier", "bert.pooler")):
                    parameter.requires_grad_(True)
        return super().wrap(config, network)

    def load(self, config: Any) -> dict[str, EncodedPairs]:
        tokenizer = load_tokenizer(config.model)
        texts = load_parts(config)
        return {part: EncodedPairs(text, tokenizer, length=config.length) for part, text in texts.items()}

    def last_layer(self, trained: Compared, batches: Batches) -> tuple[Logits, float]:
        model = trained.module.objective.model
        layer: Any = model.head[-1] if model.head is not None else model.network.classifier
        assert isinstance(layer, nn.Linear), f"the output layer is a {type(layer).__name__}, expected a Linear"
        features = {}
        with inputs_to(layer) as inputs:
            for part in ("train", *PARTS):
                inputs.clear()
                for batch in batches[part]:
                    trained.module.outputs(*inputs_of(batch))
                features[part] = in_order(inputs, batches[part])
        posterior = LastLayerPosterior(layer, features["train"])

        def draw(scale: float, parts: Sequence[str]) -> Logits:
            with seeded(trained.config.seed):
                return {
                    part: posterior.logits(features[part], prior_scale=scale, num_samples=LAST_LAYER_DRAWS)
                    for part in parts
                }

        return best_on_validation(trained.config.prior_scales, draw, batches["val"])


def check_layers(model: str, network: nn.Module) -> None:
    """Raise UserError if a network does not have the layers of BERT."""
    if not any(name.endswith(_QUERIES) for name, _ in network.named_parameters()):
        raise UserError(
            f"model {model} is a {type(network).__name__}, expected one with the layers of BERT ({_QUERIES}), as "
            f"adapters and Laplace posteriors are put there; take a BERT"
        )


@contextmanager
def inputs_to(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Give a list that gets what the layer is given in every pass, in single precision."""
    inputs = list[Tensor]()
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach().float()))
    try:
        yield inputs
    finally:
        hook.remove()


def logits_of(trained: Compared, batches: Sequence[Batch], kind: str) -> Tensor:
    """Return the logits of a kind of prediction ``[S, items, ..., classes]``, in the order of the items."""
    noise = KINDS[kind]
    samples = 1 if noise == "none" else trained.config.num_samples
    with seeded(trained.config.seed):
        outputs = [trained.module.outputs(*inputs_of(batch), num_samples=samples, noise=noise) for batch in batches]
    return in_order(outputs, batches, dim=1)


def of_kind(trained: Compared, batches: Batches, kind: str) -> tuple[Logits, None]:
    """Return logits of one kind of prediction, of all parts; nothing is chosen on validation examples."""
    logits = Logits()
    for part in PARTS:
        if kind == "attention" and trained.config.objective == "evidence":  # the last layer alone is random
            with LowerLayersOnce(trained.module.objective.model):
                logits[part] = logits_of(trained, batches[part], kind)
        else:
            logits[part] = logits_of(trained, batches[part], kind)
    return logits, None


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of items all of whose labels are the most probable ones by mean probabilities."""
    right = logits.softmax(-1).mean(0).argmax(-1) == labels
    return right.flatten(1).all(-1).double().mean().item() if right.dim() > 1 else right.double().mean().item()


def nll(logits: Tensor, labels: Tensor) -> float:
    """Return the mean over the items of the negative log probability of their labels, in nats."""
    mean = logits.softmax(-1).mean(0)
    chosen = mean.gather(-1, labels[..., None])[..., 0].clamp_min(1e-12)
    return -chosen.log().sum().item() / len(labels)


def best_on_validation(
    candidates: Sequence[float], make: Callable[[float, Sequence[str]], Logits], val: Sequence[Batch]
) -> tuple[Logits, float]:
    """Return logits of all parts at the candidate with the best NLL on the validation part, and the candidate."""
    labels = in_order([labels_of(batch) for batch in val], val)
    values = [make(candidate, ["val"])["val"] for candidate in candidates]
    losses = [nll(logits, labels) for logits in values]
    best = losses.index(min(losses))
    return {"val": values[best]} | make(candidates[best], ["test", "domain"]), candidates[best]


def score_network(trained: Compared, train: Any, batches: Batches) -> tuple[Logits, float]:
    """Return logits by a Laplace posterior of the queries of the last layer, and the scale of its prior.

    Every draw is of the whole layer of queries, and holds for all examples.

    Args:
        trained: The network.
        train: Its training examples, :class:`EncodedPairs`, of which some make the curvature.
        batches: Batches of all parts.
    """
    config = trained.config
    model = trained.module.objective.model
    names = [name for name, _ in model.named_parameters() if name.endswith(_QUERIES)]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed))
    items = move_data_to_device(
        [(train.padded([item]), train.labels[[item]]) for item in order[: config.curvature_items].tolist()],
        trained.device,
    )

    def loss(inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs), labels, reduction="sum")

    model.eval()
    posterior = LaplacePosterior(model, names[-1], loss, items, curvature="fisher")

    def draw(scale: float, parts: Sequence[str]) -> Logits:
        posterior.prior_scale = scale
        draws: dict[str, list[Tensor]] = {part: [] for part in parts}
        with seeded(config.seed):
            for _ in range(config.num_samples):
                with posterior:
                    for part in parts:
                        draws[part].append(logits_of(trained, batches[part], "mean"))
        return {part: torch.cat(logits) for part, logits in draws.items()}

    with LowerLayersOnce(model):
        return best_on_validation(config.prior_scales, draw, batches["val"])


def without_training(trained: Compared, batches: Batches) -> tuple[Logits, float]:
    """Return logits under LogNormal weights around those of the trained network, and their width.

    The network is Bayesian afterwards.
    """
    model = trained.module.objective.model
    bayesian(model.network, prior="lognormal_fixed")

    def draw(width: float, parts: Sequence[str]) -> Logits:
        trained.module.objective.guide = AttentionGuide(model, LogNormal(scale=width))
        return {part: logits_of(trained, batches[part], "attention") for part in parts}

    return best_on_validation(trained.config.widths, draw, batches["val"])
