"""One network of the comparison: its training, and its logits under every uncertainty that it allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from experiments.data.text.glue import GLUE, LabeledPairs, load_glue
from experiments.data.text.headlines import load_headlines
from experiments.files import UserError, write_atomic
from experiments.finetune.glue import EncodedPairs, FineTuned, GlueTask, load_texts, outputs_of
from experiments.finetune.model import kinds, load_tokenizer
from experiments.uncertainty.config import NetworkConfig
from experiments.uncertainty.last_layer import LastLayerPosterior
from models.transformers import PairModel
from pyro_attention import AttentionGuide, LaplacePosterior, LogNormal
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.posterior.predictive import seeded

PARTS = ("val", "test", "domain")
LAST_LAYER_DRAWS = 100  # of the output layer: they need no pass of the network
_QUERIES = "attention.self.query.weight"  # what the names of BERT's queries end with
Logits = dict[str, Tensor]  # by part, [S, items, classes]


def load_parts(config: NetworkConfig) -> dict[str, LabeledPairs]:
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


def out_of_domain(config: NetworkConfig) -> LabeledPairs:
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


class NetworkTask(GlueTask):
    """Fine-tuning of one network of the comparison; predictions.npz gets logits ``KIND_PART`` and the labels."""

    config = NetworkConfig
    script = "experiments.uncertainty"

    def wrap(self, config: Any, network: Any) -> PairModel:
        if not any(name.endswith(_QUERIES) for name, _ in network.named_parameters()):
            raise UserError(
                f"model {config.model} is a {type(network).__name__}, expected one with the layers of BERT "
                f"({_QUERIES}), as adapters and Laplace posteriors are put there; take a BERT"
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

    def scores(self, trained: FineTuned, data: Mapping[str, EncodedPairs], folder: Path) -> dict[str, float]:
        config: Any = trained.config
        metrics: dict[str, float] = {"train_examples": len(data["train"])}
        arrays: dict[str, Any] = {f"labels_{part}": data[part].labels.numpy() for part in ("val", "test")}
        makers: dict[str, Callable[[], tuple[Logits, float | None]]] = {
            kind: partial(of_kind, trained, data, kind) for kind in kinds(config.guide)
        }
        if config.after_training:  # the last of them makes the network Bayesian
            makers |= {
                "last_layer": partial(last_layer, trained, data),
                "score_network": partial(score_network, trained, data),
                "width": partial(without_training, trained, data),
            }
        for kind, make in makers.items():
            start = time.process_time()
            logits, chosen = make()
            metrics[f"{kind}_seconds"] = time.process_time() - start
            if chosen is not None:
                metrics[f"{kind}_chosen"] = chosen
            arrays |= {f"{kind}_{part}": values.float().numpy() for part, values in logits.items()}
            metrics[f"test_{kind}_accuracy"] = accuracy(logits["test"], data["test"].labels)
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        return metrics


def of_kind(trained: FineTuned, data: Mapping[str, EncodedPairs], kind: str) -> tuple[Logits, None]:
    """Return logits of one kind of prediction, of all parts; nothing is chosen on validation examples."""
    samples = trained.config.num_samples
    return {part: outputs_of(trained, data[part], kind, num_samples=samples) for part in PARTS}, None


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the accuracy of mean probabilities."""
    return (logits.softmax(-1).mean(0).argmax(-1) == labels).double().mean().item()


def nll(logits: Tensor, labels: Tensor) -> float:
    """Return the mean negative log probability of the labels, in nats."""
    mean = logits.softmax(-1).mean(0).clamp_min(1e-12)
    return nn.functional.nll_loss(mean.log(), labels).item()


def output_layer(model: PairModel) -> nn.Linear:
    """Return the linear layer that makes the logits."""
    layer: Any = model.head[-1] if model.head is not None else model.network.classifier
    assert isinstance(layer, nn.Linear), f"the output layer is a {type(layer).__name__}, expected a Linear"
    return layer


def best_on_validation(
    candidates: Sequence[float], make: Callable[[float, Sequence[str]], Logits], labels: Tensor
) -> tuple[Logits, float]:
    """Return logits of all parts at the candidate with the best NLL on the validation part, and the candidate."""
    values = [make(candidate, ["val"])["val"] for candidate in candidates]
    losses = [nll(logits, labels) for logits in values]
    best = losses.index(min(losses))
    return {"val": values[best]} | make(candidates[best], ["test", "domain"]), candidates[best]


def last_layer(trained: FineTuned, data: Mapping[str, EncodedPairs]) -> tuple[Logits, float]:
    """Return logits by a Laplace posterior of the output layer, and the standard deviation of its prior."""
    config: Any = trained.config
    layer, inputs = output_layer(trained.module.objective.model), list[Tensor]()
    features = dict[str, Tensor]()
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach().float().cpu()))
    try:
        for part in ("train", *PARTS):
            inputs.clear()
            places = [batch_indices(trained, batch) for batch in data[part].batches(trained.device, sentences=64)]
            features[part] = torch.cat(inputs)[torch.cat(places).argsort()]
    finally:
        hook.remove()
    posterior = LastLayerPosterior(layer, features["train"])

    def draw(scale: float, parts: Sequence[str]) -> Logits:
        with seeded(config.seed):
            return {
                part: posterior.logits(features[part], prior_scale=scale, num_samples=LAST_LAYER_DRAWS)
                for part in parts
            }

    return best_on_validation(config.prior_scales, draw, data["val"].labels)


def batch_indices(trained: FineTuned, batch: Any) -> Tensor:
    """Run the network on a batch, for a hook, and return which examples these are."""
    trained.module.outputs(batch.inputs)
    return torch.as_tensor(batch.indices.cpu())


def score_network(trained: FineTuned, data: Mapping[str, EncodedPairs]) -> tuple[Logits, float]:
    """Return logits by a Laplace posterior of the queries of the last layer, and the scale of its prior.

    Every draw is of the whole layer of queries, and holds for all examples.
    """
    config: Any = trained.config
    model = trained.module.objective.model
    names = [name for name, _ in model.named_parameters() if name.endswith(_QUERIES)]
    train = data["train"]
    places = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed))
    items = places[: config.curvature_items].tolist()
    batches = [(train.padded([item]), train.labels[[item]]) for item in items]

    def loss(inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs), labels, reduction="sum")

    model.eval()
    posterior = LaplacePosterior(model, names[-1], loss, batches, curvature="fisher")

    def draw(scale: float, parts: Sequence[str]) -> Logits:
        posterior.prior_scale = scale
        draws: dict[str, list[Tensor]] = {part: [] for part in parts}
        with seeded(config.seed):
            for _ in range(config.num_samples):
                with posterior:
                    for part in parts:
                        draws[part].append(outputs_of(trained, data[part], "mean", num_samples=1))
        return {part: torch.cat(logits) for part, logits in draws.items()}

    return best_on_validation(config.prior_scales, draw, data["val"].labels)


def without_training(trained: FineTuned, data: Mapping[str, EncodedPairs]) -> tuple[Logits, float]:
    """Return logits under LogNormal weights around those of the trained network, and their width.

    The network is Bayesian afterwards.
    """
    config: Any = trained.config
    model = trained.module.objective.model
    bayesian(model.network, prior="lognormal_fixed")

    def draw(width: float, parts: Sequence[str]) -> Logits:
        trained.module.objective.guide = AttentionGuide(model, LogNormal(scale=width))
        return {part: outputs_of(trained, data[part], "attention", num_samples=config.num_samples) for part in parts}

    return best_on_validation(config.widths, draw, data["val"].labels)
