"""Fine-tuning of a pretrained transformer for any task: loading, texts as tokens, guide, training."""

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
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, get_linear_schedule_with_warmup
from transformers.utils import logging

from experiments.callbacks import weights_file
from experiments.data.text.batches import Sentences
from experiments.files import UserError, reading, user_errors
from experiments.finetune.config import FineTuneOptions, GlueConfig, QaConfig, RaceConfig
from experiments.finetune.pretrained import EncoderNetwork, is_pretraining, load_encoder, load_encoder_tokenizer
from experiments.folder import gathered
from experiments.run import BAD_INPUT, Task, run_folder
from experiments.training import ELBOTraining, Fitted, Trained, fit_batches, resolve_device, resolve_precision
from pyro_attention import AttentionELBO, AttentionGuide, EvidenceELBO, predict
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.attention import CHILD
from pyro_attention.integrations.huggingface.model import longest_text
from pyro_attention.integrations.huggingface.pretrained import load_checked
from pyro_attention.objectives.correction import correction_of
from pyro_attention.objectives.evidence import item_weights
from pyro_attention.posterior.passes import Noise
from pyro_attention.schedules import rising

Config = TypeVar("Config", bound=GlueConfig | QaConfig | RaceConfig)
Model = TypeVar("Model", bound=nn.Module)
Batch = TypeVar("Batch")
Texts = TypeVar("Texts", bound="EncodedTexts[Any]")
PRIOR_LEARNING_RATE = 1e-3  # largest learning rate of prior networks, which begin untrained


def kinds(guide: str) -> tuple[str, str]:
    """Return the two kinds of predictions of a model with this guide."""
    return ("mean", "mc_dropout") if guide == "soft" else ("mean", "attention")


# texts


class EncodedTexts(Sentences[Batch]):
    """Texts as tokens: the outputs of the tokenizer for each text, by the names of the network's arguments.

    Attributes:
        token_pairs: Number of pairs of tokens of each example, which is that of the attention weights of a head.
    """

    def __init__(self, inputs: Sequence[Mapping[str, Tensor]], tokenizer: Any) -> None:
        super().__init__([inputs_of_text["input_ids"] for inputs_of_text in inputs])
        self.inputs = inputs
        self.token_pairs = [len(row) ** 2 for row in self.rows]
        self._padding = {name: 0 for name in inputs[0]} | {"input_ids": tokenizer.pad_token_id}

    def padded(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the arguments of the network ``[B, N]`` for the texts with these indices."""
        return {
            name: pad_sequence([self.inputs[index][name].long() for index in indices], True, value)
            for name, value in self._padding.items()
        }


def share_of(items: int, share: float, *, seed: int) -> Tensor:
    """Return the indices of a random share of the items, at least two; larger shares hold the smaller ones."""
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    return order[: max(2, round(share * items))].sort().values


# the pretrained model


_EXPECTED = (
    "a folder of Hugging Face with config.json, model.safetensors and the tokenizer's files, a name on the hub, or the "
    "folder of a training of experiments.pretrain",
    "pickled weights are not read: save them again by save_pretrained",
)


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of a pretrained model, by its folder or name; raise UserError if it cannot pad."""
    if is_pretraining(model):
        return load_encoder_tokenizer(model)
    with reading(f"model {model}", *_EXPECTED):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer of {model} has no padding token; expected one, because a batch has texts of several "
            f"lengths. Set one, such as tokenizer.pad_token = tokenizer.unk_token, and save it by save_pretrained"
        )
    return tokenizer


def load_network(config: FineTuneOptions, head: Any, **options: Any) -> Any:
    """Load a pretrained model with a new output layer, whose weights are drawn from the random state.

    Args:
        config: Options that name the model and the length of its inputs.
        head: Auto class of transformers, such as AutoModelForSequenceClassification.
        options: Options of the configuration of the output layer.
    """
    model = config.pretrained
    network: Any
    if is_pretraining(model):
        outputs = options["num_labels"] if "num_labels" in options else len(options["id2label"])
        prior = config.build_scheme(kl_weight=1.0, plates=1).prior
        network = load_encoder(model, prior, outputs=outputs, spans=head is AutoModelForQuestionAnswering)
        most = network.config.max_position_embeddings
    else:
        logging.set_verbosity_error()  # no warnings about the output layer, which is new on purpose
        logging.disable_progress_bar()
        with reading(f"model {model}", *_EXPECTED):
            network = load_checked(head, model, use_safetensors=True, **options)
        most = longest_text(network)
    if most and config.length > most:
        raise UserError(f"length is {config.length}, and model {model} has {most} positions; pass --length {most}")
    return network


# training


class CopiesEvidence(EvidenceELBO):
    """Evidence of a model that does not broadcast over draws: each draw has a copy of the batch.

    The copies differ from the last of the ``layers`` on, whose noise, dropout included, belongs to a draw. The layers
    ahead of it are computed once.
    """

    def __init__(self, draws: int, layers: Sequence[nn.Module]) -> None:
        super().__init__(draws, correction=correction_of(draws), max_plate_nesting=1)
        self.size = 0  # size of the batch while there are copies, else 0
        for layer in layers:
            changed = self._copy if layer is layers[-1] else self._first
            layer.register_forward_pre_hook(partial(self._inputs, changed), with_kwargs=True)

    def _inputs(self, changed: Callable[[Tensor], Tensor], _: nn.Module, *inputs: Any) -> Any:
        return tree_map_only(Tensor, changed, inputs) if self.size else None

    def _first(self, tensor: Tensor) -> Tensor:
        return tensor[: self.size]

    def _copy(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor] * self.num_particles) if len(tensor) == self.size else tensor

    def _log_importance_weights(self, model: Any, guide: Any, args: Any, kwargs: Any, *_: Any) -> tuple[Tensor, Any]:
        self.size = len(tree_leaves(args)[0])
        try:
            model_trace, guide_trace = self._get_trace(model, guide, *tree_map_only(Tensor, self._copy, (args, kwargs)))
        finally:
            self.size = 0
        self._elbo_particle(model_trace, guide_trace)  # for its checks
        latent = [
            (site, model_trace.nodes[name]["fn"])
            for name, site in guide_trace.nodes.items()
            if site["type"] == "sample"
        ]
        items = item_weights(latent, [model_trace.nodes[name] for name in model_trace.observation_nodes])
        return items.log_importance_weights.unflatten(-1, (self.num_particles, -1)), items.scale


class FineTuning(ELBOTraining):
    """Training of a pretrained network by AdamW, with a learning rate that rises and then falls.

    The guide is an :class:`AttentionGuide`, or :func:`no_guide` for a network of Hugging Face with soft attention.
    """

    def __init__(self, model: nn.Module, guide: Any, elbo: AttentionELBO, config: Any) -> None:
        super().__init__(model, guide, elbo, learning_rate=config.learning_rate, weight_decay=0.01)
        self.mixed = resolve_precision(config.precision, resolve_device(config.device)) == "bf16-mixed"

    def outputs(self, *inputs: Any, num_samples: int = 1, noise: Noise = "none") -> Tensor:
        """Return the outputs of a batch ``[S, ...]`` without gradient, in the precision of the training."""
        model, guide = self.objective.model, self.objective.guide
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            if isinstance(guide, AttentionGuide):
                outputs: Any = predict(guide, *inputs, num_samples=num_samples, noise=noise, keep_samples=True).samples
            else:
                model.train(noise == "dropout")
                outputs = torch.stack([model(*inputs) for _ in range(num_samples)])
                model.eval()  # as in all validation and evaluation
        return torch.as_tensor(outputs)

    def configure_optimizers(self) -> Any:
        named = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        groups = [
            {"params": parameters, "lr": rate, "weight_decay": decay}
            # prior networks are new, and learn as new networks do; biases and layer norms are vectors
            for new, rate in ((False, self.learning_rate), (True, PRIOR_LEARNING_RATE))
            for decay, vectors in ((self.weight_decay, False), (0.0, True))
            if (
                parameters := [
                    parameter
                    for name, parameter in named
                    if _is_prior(name) == new and (parameter.dim() < 2) == vectors
                ]
            )
        ]
        optimizer = torch.optim.AdamW(groups, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ClassTraining(FineTuning):
    """Training whose validation scores need the outputs of all examples; the model's last argument holds the labels."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def observations(self, batch: Any) -> int:
        return len(self.arguments(batch)[-1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        *inputs, labels = self.arguments(batch)
        self._outputs.append((self.outputs(*inputs)[0].cpu(), labels.cpu()))

    def validated(self) -> tuple[Tensor, Tensor]:
        """Return outputs and labels of all validation examples of this epoch, and forget them."""
        outputs, labels = (torch.cat(parts) for parts in zip(*gathered(self._outputs), strict=True))
        self._outputs.clear()
        return outputs, labels


def _is_prior(name: str) -> bool:
    """Return whether a parameter belongs to a prior network."""
    return CHILD in name or ".prior." in name


def no_guide(*_: Any) -> None:
    """Do nothing: the guide of a model without latent variables."""


@dataclass(frozen=True)
class Tuned(Trained[Config, Model]):
    """A pretrained network that is fine-tuned, with its tokenizer."""

    module: FineTuning
    tokenizer: Any


class FineTuneTask(Task[Config, Tuned[Config, Any]], Generic[Config, Texts]):
    """Fine-tuning for any task: a network is built from its pretrained model alone."""

    script = "experiments.finetune"
    named = ("model",)
    head: Any  # one of the Auto classes of transformers
    training: type[FineTuning]

    @abstractmethod
    def folder_name(self, config: Config) -> str:
        """Return the name of the task in the name of a folder."""

    @abstractmethod
    def load(self, config: Config) -> Mapping[str, Texts]:
        """Load all parts of the data by name."""

    @abstractmethod
    def wrap(self, config: Config, network: Any) -> nn.Module:
        """Return the network as a Pyro model."""

    @abstractmethod
    def output(self, config: Config) -> dict[str, Any]:
        """Return the options of the configuration of the output layer."""

    @abstractmethod
    def scores(self, trained: Tuned[Config, Any], data: Mapping[str, Texts], folder: Path) -> dict[str, float]:
        """Return the scores of the test part, and write the predictions into the folder."""

    def folder(self, config: Config) -> str:
        scheme = config.guide if config.guide == "soft" else f"{config.guide}-{config.prior}"
        row = scheme if config.normalizer is None else f"{config.normalizer}-{scheme}"
        return f"finetune/{self.folder_name(config)}-{config.model_name}-{row}-{config.seed}"

    def run(self, config: Config) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                folder = run.begin()
                trained = self.network(config, token_pairs=data["train"].token_pairs)
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data, fitted, folder) | fitted.metrics)

    def restore(self, config: Config, folder: Path) -> Tuned[Config, Any]:  # noqa: ARG002
        return self.network(config)

    def network(self, config: Config, *, token_pairs: Sequence[int] = (1,)) -> Tuned[Config, Any]:
        """Build the network with its pretrained weights, guide and objective.

        The ``token_pairs`` of the training examples (:class:`EncodedTexts`) decide on the scale of the KL weight and on
        the number of steps in which it rises.
        """
        tokenizer = load_tokenizer(config.pretrained)
        pyro.set_rng_seed(config.seed)
        network: Any = load_network(config, self.head, **self.output(config))
        network.train()  # it is loaded in evaluation mode, without dropout
        steps = math.ceil(len(token_pairs) / (config.batch_size * config.processes)) * config.max_epochs
        sizes = network.config
        weights = sizes.num_hidden_layers * sizes.num_attention_heads * fmean(token_pairs)
        weight = config.kl_weight / weights  # multiplies the KL of all attention weights of an example
        rise = config.kl_steps or round(config.kl_warmup * steps)
        annealed = rising(config.kl_schedule, rise, weight) if rise and config.kl_schedule != "constant" else weight
        scheme = config.build_scheme(kl_weight=annealed, plates=1)
        guide, elbo, sites = cast(Any, no_guide), cast(Any, scheme.objective()), "*"
        if config.guide != "soft" and config.objective == "evidence":
            layers = getattr(getattr(network.base_model, "encoder", None), "layer", None)
            if layers is None:
                raise UserError(
                    f"objective is evidence, but {type(network).__name__} does not have the layers of BERT; pass "
                    f"--objective elbo"
                )
            elbo, sites = CopiesEvidence(config.draws, layers), f"*encoder.layer.{len(layers) - 1}.*"
        has_sites = isinstance(network, EncoderNetwork)  # its layers are those of the library
        if config.guide != "soft" and not has_sites:
            with user_errors(ValueError):  # a prior is shared by the heads
                network = bayesian(network, prior=lambda width: scheme.prior(width, 1), sites=sites)
        model = self.wrap(config, network)
        if config.guide != "soft" or has_sites:
            guide = AttentionGuide(model, scheme.family)
        pyro.set_rng_seed(config.seed)  # the noise of the first step does not depend on the prior
        module = self.training(model, guide, elbo, config).to(resolve_device(config.device))
        return Tuned(config, module, tokenizer)

    def fit(self, trained: Tuned[Config, Any], data: Mapping[str, Texts], folder: Path) -> Fitted:
        """Train for all epochs, which the schedule of the learning rate covers, and keep the last one.

        The validation parts of small tasks have a few hundred examples. Their best score is often that of an epoch in
        which the network still gave nearly all examples to the larger class.
        """
        config = trained.config
        # ten batches are sorted by length together
        train = data["train"].loader(sentences=config.batch_size, seed=config.seed, pool=10)
        val = data["val"].loader(sentences=64, shuffle=False)
        return fit_batches(
            config, trained.module, train, val, folder=folder, patience=config.max_epochs,
            monitor={"val_score": "max"}, keep="last",
        )  # fmt: skip

    def evaluate(
        self, trained: Tuned[Config, Any], data: Mapping[str, Texts], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        """Compute the scores, and remove files of weights that nothing needs any more."""
        last = fitted.history[fitted.best_epoch]
        metrics = self.scores(trained, data, folder) | {name: last[name] for name in ("val_score", "val_loss")}
        # it holds three times the size of the weights, and a finished run does not continue from it
        (folder / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
        if not trained.config.keep_weights:
            weights_file(folder).unlink(missing_ok=True)
        return metrics
