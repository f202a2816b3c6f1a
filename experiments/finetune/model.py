"""Fine-tuning of a pretrained transformer, whatever its task: loading, texts as tokens, guide, training."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar, cast

import pyro
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import AutoTokenizer, get_linear_schedule_with_warmup
from transformers.utils import logging

from experiments.callbacks import weights_file
from experiments.data.text.batches import Sentences
from experiments.files import UserError, reading, user_errors
from experiments.finetune.config import FineTuneOptions, GlueConfig, QaConfig
from experiments.run import BAD_INPUT, Task, run_folder
from experiments.training import ELBOTraining, Fitted, Trained, fit_batches, resolve_device, resolve_precision
from pyro_attention import AttentionELBO, AttentionGuide, EvidenceELBO, predict
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.attention import CHILD
from pyro_attention.integrations.huggingface.pretrained import load_checked
from pyro_attention.objectives.correction import correction_of
from pyro_attention.objectives.evidence import item_weights
from pyro_attention.posterior.passes import Noise
from pyro_attention.schedules import rising

Config = TypeVar("Config", bound=GlueConfig | QaConfig)
Model = TypeVar("Model", bound=nn.Module)
Batch = TypeVar("Batch")
Texts = TypeVar("Texts", bound="EncodedTexts[Any]")


def kinds(guide: str) -> tuple[str, str]:
    """Kinds of predictions of a model with this guide."""
    return ("mean", "mc_dropout") if guide == "soft" else ("mean", "attention")


# texts


class EncodedTexts(Sentences[Batch]):
    """Texts as tokens: what the tokenizer made of each text, by the names of the network's arguments."""

    def __init__(self, inputs: Sequence[Mapping[str, Tensor]], tokenizer: Any) -> None:
        super().__init__([one["input_ids"] for one in inputs])
        self.inputs = inputs
        self._padding = {name: 0 for name in inputs[0]} | {"input_ids": tokenizer.pad_token_id}

    def padded(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Arguments of the network ``[B, N]`` for the texts at these places."""
        return {
            name: pad_sequence([self.inputs[place][name].long() for place in places], True, value)
            for name, value in self._padding.items()
        }


def share_of(items: int, share: float, *, seed: int) -> Tensor:
    """Places of a share of the items, two at least, drawn by a seed; a larger share holds a smaller one."""
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    return order[: max(2, round(share * items))].sort().values


# the pretrained model


_EXPECTED = (
    "a folder of Hugging Face with config.json, model.safetensors and the tokenizer's files, or a name on the hub",
    "pickled weights are not read: save them again by save_pretrained",
)


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a pretrained model, of its folder or its name on the hub; UserError where it cannot pad."""
    with reading(f"model {model}", *_EXPECTED):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer of {model} has no padding token, expected one, as texts of several lengths make a batch; "
            f"give it one, such as tokenizer.pad_token = tokenizer.unk_token, and save it by save_pretrained"
        )
    return tokenizer


def load_network(config: FineTuneOptions, head: Any, **options: Any) -> Any:
    """A pretrained model with a new output layer, whose weights the random state decides.

    Args:
        config: Which model, and what length it is for.
        head: One of the Auto classes of transformers.
        options: Of the configuration of the output layer.
    """
    logging.set_verbosity_error()  # no notes on the output layer, which is meant to be new
    logging.disable_progress_bar()
    with reading(f"model {config.model}", *_EXPECTED):
        network = load_checked(head, config.model, use_safetensors=True, **options)
    most = getattr(network.config, "max_position_embeddings", None)
    if most and config.length > most:
        raise UserError(
            f"length is {config.length}, and model {config.model} has {most} positions; pass --length {most}"
        )
    return network


# training


class CopiesEvidence(EvidenceELBO):
    """:class:`EvidenceELBO` of a model that does not broadcast over draws: each draw has a copy of the batch.

    The copies part at the last of the ``layers``, whose noise, dropout included, is that of a draw; what is ahead of it
    is computed once.
    """

    def __init__(self, draws: int, layers: Sequence[nn.Module]) -> None:
        super().__init__(draws, correction=correction_of(draws), max_plate_nesting=1)
        self.size = 0  # of the batch, while there are copies
        for layer in layers:
            changed = self._copy if layer is layers[-1] else self._first
            layer.register_forward_pre_hook(partial(self._inputs, changed), with_kwargs=True)

    def _inputs(self, changed: Callable[[Tensor], Tensor], _: nn.Module, *inputs: Any) -> Any:
        return tree_map_only(Tensor, changed, inputs) if self.size else None

    def _first(self, one: Tensor) -> Tensor:
        return one[: self.size]

    def _copy(self, one: Tensor) -> Tensor:
        return torch.cat([one] * self.num_particles) if len(one) == self.size else one

    def _log_weights(self, model: Any, guide: Any, args: Any, kwargs: Any, *_: Any) -> tuple[Tensor, Any]:
        self.size = len(tree_leaves(args)[0])
        try:
            seen, drawn = self._get_trace(model, guide, *tree_map_only(Tensor, self._copy, (args, kwargs)))
        finally:
            self.size = 0
        self._elbo_particle(seen, drawn)  # for its checks
        latent = [(site, seen.nodes[name]["fn"]) for name, site in drawn.nodes.items() if site["type"] == "sample"]
        items = item_weights(latent, [seen.nodes[name] for name in seen.observation_nodes])
        return items.log_weights.unflatten(-1, (self.num_particles, -1)), items.scale


class FineTuning(ELBOTraining):
    """Trains a pretrained network by AdamW, with a learning rate that rises and then falls.

    The guide is an :class:`AttentionGuide`, or :func:`no_guide` of a model without latent attention.
    """

    def __init__(self, model: nn.Module, guide: Any, elbo: AttentionELBO, config: Any) -> None:
        super().__init__(model, guide, elbo, learning_rate=config.learning_rate, weight_decay=0.01)
        self.prior_learning_rate = float(config.prior_learning_rate)
        self.mixed = resolve_precision(config.precision, resolve_device(config.device)) == "bf16-mixed"

    def outputs(self, *inputs: Any, num_samples: int = 1, noise: Noise = "none") -> Tensor:
        """Outputs of a batch ``[S, ...]``, without gradient, in the precision of the training."""
        model, guide = self.objective.model, self.objective.guide
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            if isinstance(guide, AttentionGuide):
                found: Any = predict(guide, *inputs, num_samples=num_samples, noise=noise, keep_samples=True).samples
            else:
                model.train(noise == "dropout")
                found = torch.stack([model(*inputs) for _ in range(num_samples)])
                model.eval()  # as in all validation and evaluation
        return torch.as_tensor(found)

    def configure_optimizers(self) -> Any:
        named = [(name, one) for name, one in self.named_parameters() if one.requires_grad]
        groups = [
            {"params": found, "lr": rate, "weight_decay": decay}
            # prior networks are new, and learn as new networks do; biases and layer norms are vectors
            for new, rate in ((False, self.learning_rate), (True, self.prior_learning_rate))
            for decay, vectors in ((self.weight_decay, False), (0.0, True))
            if (found := [one for name, one in named if (CHILD in name) == new and (one.dim() < 2) == vectors])
        ]
        optimizer = torch.optim.AdamW(groups, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def no_guide(*_: Any) -> None:
    """The guide of a model without latent variables."""


@dataclass(frozen=True)
class Tuned(Trained[Config, Model]):
    """A pretrained network as it is fine-tuned, with its tokenizer."""

    module: FineTuning
    tokenizer: Any


class FineTuneTask(Task[Config, Tuned[Config, Any]], Generic[Config, Texts]):
    """Fine-tuning, whatever the task: a network is built of its pretrained model alone."""

    script = "experiments.finetune"
    named = ("model",)
    head: Any  # one of the Auto classes of transformers
    training: type[FineTuning]

    @abstractmethod
    def called(self, config: Config) -> str:
        """What the task is called in the name of a folder."""

    @abstractmethod
    def load(self, config: Config) -> Mapping[str, Texts]:
        """All parts of the data."""

    @abstractmethod
    def wrap(self, config: Config, network: Any) -> nn.Module:
        """The network as a Pyro model."""

    @abstractmethod
    def output(self, config: Config) -> dict[str, Any]:
        """Options of the configuration of the output layer."""

    @abstractmethod
    def scores(self, trained: Tuned[Config, Any], data: Mapping[str, Texts], folder: Path) -> dict[str, float]:
        """Scores of the test part; predictions are put into the folder."""

    def folder(self, config: Config) -> str:
        row = config.guide if config.guide == "soft" else f"{config.guide}-{config.prior}"
        return f"finetune/{self.called(config)}-{config.model_name}-{row}-{config.seed}"

    def run(self, config: Config) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                folder = run.begin()
                trained = self.network(config, lengths=[len(row) for row in data["train"].rows])
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data, fitted, folder) | fitted.metrics)

    def restore(self, config: Config, folder: Path) -> Tuned[Config, Any]:  # noqa: ARG002
        return self.network(config)

    def network(self, config: Config, *, lengths: Sequence[int] = (1,)) -> Tuned[Config, Any]:
        """The network with its pretrained weights, guide and objective.

        The tokens of every training text say what the KL weight is and how many steps it rises for.
        """
        tokenizer = load_tokenizer(config.model)
        pyro.set_rng_seed(config.seed)
        network: Any = load_network(config, self.head, **self.output(config))
        network.train()  # it is loaded in evaluation mode, without dropout
        steps = math.ceil(len(lengths) / (config.batch_size * config.processes)) * config.max_epochs
        sizes = network.config
        weights = sizes.num_hidden_layers * sizes.num_attention_heads * fmean(length**2 for length in lengths)
        weight = config.kl_weight / weights  # of the attention of an example
        rise = config.kl_steps or round(config.kl_warmup * steps)
        annealed = rising(config.kl_schedule, rise, weight) if rise and config.kl_schedule != "constant" else weight
        scheme = config.build_scheme(kl_weight=annealed, plates=1)
        guide, elbo, sites = cast(Any, no_guide), cast(Any, scheme.objective()), "*"
        if config.guide != "soft" and config.objective == "evidence":
            layers = getattr(getattr(network.base_model, "encoder", None), "layer", None)
            if layers is None:
                raise UserError(f"objective is evidence, but {type(network).__name__} has not the layers of BERT")
            elbo, sites = CopiesEvidence(config.draws, layers), f"*encoder.layer.{len(layers) - 1}.*"
        if config.guide != "soft":
            with user_errors(ValueError):  # a prior is shared by the heads
                network = bayesian(network, prior=lambda width: scheme.prior(width, 1), sites=sites)
        model = self.wrap(config, network)
        if config.guide != "soft":
            guide = AttentionGuide(model, scheme.family)
        pyro.set_rng_seed(config.seed)  # the noise of the first step does not depend on the prior
        module = self.training(model, guide, elbo, config).to(resolve_device(config.device))
        return Tuned(config, module, tokenizer)

    def fit(self, trained: Tuned[Config, Any], data: Mapping[str, Texts], folder: Path) -> Fitted:
        """Train for all epochs, as the learning rate is planned over them, and keep the last one.

        The validation parts of small tasks have a few hundred examples: the best of their scores is often that of an
        epoch in which the network still gave nearly all examples to the larger class.
        """
        config = trained.config
        # ten batches are sorted together
        train = data["train"].loader(sentences=config.batch_size, seed=config.seed, pool=10)
        val = data["val"].loader(sentences=64, shuffle=False)
        return fit_batches(
            config, trained.module, train, val, folder=folder, patience=config.max_epochs,
            monitor={"val_score": "max"}, keep="last",
        )  # fmt: skip

    def evaluate(
        self, trained: Tuned[Config, Any], data: Mapping[str, Texts], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        """Compute the scores, and remove weights that nothing needs."""
        last = fitted.history[fitted.best_epoch]
        metrics = self.scores(trained, data, folder) | {name: last[name] for name in ("val_score", "val_loss")}
        # three times the weights, and nothing goes on from it
        (folder / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
        if not trained.config.keep_weights:
            weights_file(folder).unlink(missing_ok=True)
        return metrics
