"""A pretrained transformer with its tokenizer as a Pyro model of classes or grades, and how it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

from experiments.datasets.text.glue import GLUE
from experiments.files import UserError, user_errors
from experiments.finetune.config import FineTuneOptions, GlueConfig, Pooling
from experiments.finetune.data import PairBatch
from experiments.finetune.metrics import glue_scores, main_metric
from experiments.finetune.pretrained import check_fit, load_network, load_tokenizer
from experiments.harness import ranks
from experiments.harness.training import ELBOTraining, Trained, resolve_device, resolve_precision
from pyro_attention import AttentionELBO, AttentionGuide, predict
from pyro_attention.families.base import FAMILIES, PRIORS, Family, Prior
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.attention import CHILD
from pyro_attention.posterior.sampling import Noise
from pyro_attention.schedules import Constant, Linear

__all__ = [
    "FineTuned", "FineTuning", "PairModel", "PairTraining", "Tuned", "attention_weights", "build", "no_guide",
    "predictions", "prepare",
]  # fmt: skip

Config = TypeVar("Config", bound=FineTuneOptions)
Model = TypeVar("Model", bound=nn.Module)


class PairModel(nn.Module):
    """A transformer as a Pyro model: the site ``labels``, one class or one grade an example.

    Args:
        network: A model for sequence classification of Hugging Face; of one output the labels are grades, with a
            standard deviation of 1.
        pooling: What an example is read from: the network's own head, or the "mean" of its tokens' last states, through
            dropout and a new output layer, as sentence-transformers read the models that they have trained; or "pair",
            the means u and v of the two sentences, read together, as (u, v, |u - v|) (Reimers and Gurevych 2019,
            Sentence-BERT, section 3); a single sentence is read by its mean.
    """

    def __init__(self, network: Any, pooling: Pooling = "head") -> None:
        super().__init__()
        self.network, self.head, self.pooling = network, None, pooling
        if pooling != "head":
            config = network.config
            width = config.hidden_size * (3 if pooling == "pair" else 1)
            self.network = network.base_model
            self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(width, config.num_labels))

    def forward(self, inputs: dict[str, Tensor], labels: Tensor | None = None) -> Tensor:
        """Logits ``[B, classes]``, or grades ``[B, 1]``."""
        with pyro.plate("examples", inputs["input_ids"].size(0), dim=-1):
            logits: Tensor = self._logits(inputs).float()
            if logits.size(-1) > 1:
                pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
            else:
                pyro.sample("labels", dist.Normal(logits[..., 0], 1.0), obs=labels)
        return logits

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        if self.head is None:
            return torch.as_tensor(self.network(**inputs, return_dict=True).logits)
        states = self.network(**inputs, return_dict=True).last_hidden_state
        real = inputs["attention_mask"].to(states.dtype)
        if self.pooling == "mean":
            return torch.as_tensor(self.head(_mean(states, real)))
        second = real * inputs["token_type_ids"]
        u, v = _mean(states, real - second), _mean(states, second)
        return torch.as_tensor(self.head(torch.cat([u, v, (u - v).abs()], -1)))


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over tokens ``[B, width]`` of states ``[B, N, width]``."""
    return (states * weights.unsqueeze(-1)).sum(-2) / weights.sum(-1, keepdim=True).clamp(min=1)


class FineTuning(ELBOTraining):
    """Trains a pretrained network by AdamW, with a learning rate that rises and then falls.

    Args:
        model: The model.
        guide: An :class:`AttentionGuide`, or :func:`no_guide` of a model without latent attention.
        elbo: Objective.
        config: How to train.
    """

    def __init__(self, model: nn.Module, guide: Any, elbo: AttentionELBO, config: FineTuneOptions) -> None:
        super().__init__(model, guide, elbo, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self.prior_learning_rate = float(config.prior_learning_rate)
        self.mixed = resolve_precision(config.precision, resolve_device(config.device)) == "bf16-mixed"

    def outputs(self, *inputs: Any, num_samples: int = 1, noise: Noise = "none") -> Tensor:
        """Outputs of a batch ``[S, ...]``, without gradient, in the precision of the training."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            return self._outputs(*inputs, num_samples=num_samples, noise=noise)

    def _outputs(self, *inputs: Any, num_samples: int, noise: Noise) -> Tensor:
        model, guide = self.objective.model, self.objective.guide
        if isinstance(guide, AttentionGuide):
            samples = predict(guide, *inputs, num_samples=num_samples, noise=noise, keep_samples=True).samples
            assert samples is not None  # for mypy: they are kept
            return samples
        before = model.training
        model.train(noise == "dropout")
        try:
            with torch.no_grad():
                return torch.stack([model(*inputs) for _ in range(num_samples)])
        finally:
            model.train(before)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(list(self._groups()), fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _groups(self) -> Iterator[dict[str, Any]]:
        """Parameters by weight decay and learning rate; prior networks are new, and learn as new networks do."""
        named = [(name, one) for name, one in self.named_parameters() if one.requires_grad]
        for new, rate in ((False, self.learning_rate), (True, self.prior_learning_rate)):
            # biases and layer norms are vectors
            for decay, vectors in ((self.weight_decay, False), (0.0, True)):
                found = [one for name, one in named if (CHILD in name) == new and (one.dim() < 2) == vectors]
                if found:
                    yield {"params": found, "lr": rate, "weight_decay": decay}


class PairTraining(FineTuning):
    """Trains a :class:`PairModel`; arguments as of :class:`FineTuning`."""

    def __init__(self, model: PairModel, guide: Any, elbo: AttentionELBO, config: GlueConfig) -> None:
        super().__init__(model, guide, elbo, config)
        self.task = config.task
        self._found: list[tuple[Tensor, Tensor]] = []

    def observations(self, batch: PairBatch) -> int:
        return len(batch.labels)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:  # noqa: ARG002
        self._found.append((self.outputs(batch.inputs)[0].cpu(), batch.labels.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Log the score and the loss of all validation examples together: most scores are no means over examples."""
        logits, labels = (torch.cat(parts) for parts in zip(*ranks.gathered(self._found), strict=True))
        self._found.clear()
        predicted = predictions(logits)
        loss = nn.functional.cross_entropy if logits.size(-1) > 1 else nn.functional.mse_loss
        self.log("val_loss", loss(logits if logits.size(-1) > 1 else predicted, labels))
        score = glue_scores(self.task, predicted.numpy(), labels.numpy())[main_metric(self.task)]
        self.log("val_score", score)


def predictions(outputs: Tensor) -> Tensor:
    """The class of each example, or its grade, ``[items]``, of outputs ``[items, outputs]``."""
    return outputs.argmax(-1) if outputs.size(-1) > 1 else outputs[..., 0]


@dataclass(frozen=True)
class Tuned(Trained[Config, Model]):
    """A pretrained network as it is fine-tuned, with its tokenizer."""

    module: FineTuning
    tokenizer: Any


FineTuned: TypeAlias = Tuned[GlueConfig, PairModel]


def build(config: GlueConfig, *, lengths: Sequence[int] = (1,)) -> FineTuned:
    """Load the pretrained network and make it ready for training.

    Args:
        config: How.
        lengths: Tokens of every training example, which say what the KL weight is and how many steps it rises for.

    Raises:
        UserError: There is no such model, or it cannot be used for this.
    """
    labels = dict(enumerate(GLUE[config.task].classes)) or {0: "grade"}
    places = {name: place for place, name in labels.items()}
    tokenizer = load_tokenizer(config.model)
    if config.pooling == "pair" and "token_type_ids" not in tokenizer.model_input_names:
        raise UserError(
            f"pooling is pair, but the tokenizer of {config.model} does not mark the second sentence (it has no "
            f"token_type_ids); take mean or head"
        )
    parts = prepare(
        config, tokenizer, AutoModelForSequenceClassification, partial(PairModel, pooling=config.pooling),
        lengths=lengths, id2label=labels, label2id=places,
    )  # fmt: skip
    return FineTuned(config, PairTraining(*parts, config).to(resolve_device(config.device)), tokenizer)


def prepare(
    config: FineTuneOptions,
    tokenizer: Any,
    head: Any,
    wrap: Callable[[nn.Module], Model],
    *,
    lengths: Sequence[int],
    **options: Any,
) -> tuple[Model, Any, AttentionELBO]:
    """Load a pretrained network as a Pyro model, with its guide and objective.

    Args:
        config: How.
        tokenizer: That of the network.
        head: One of the Auto classes of transformers.
        wrap: Makes a Pyro model of the network.
        lengths: Tokens of every training example.
        options: Of the configuration of the output layer.

    Raises:
        UserError: There is no such model, or it cannot be used for this.
    """
    pyro.set_rng_seed(config.seed)
    network = load_network(config.model, head, **options)
    check_fit(config, network, tokenizer)
    network.train()  # it is loaded in evaluation mode, without dropout
    if config.guide != "soft":
        with user_errors(ValueError):
            network = bayesian(network, prior=_prior(config))
    model = wrap(network)
    guide: Any = no_guide if config.guide == "soft" else AttentionGuide(model, _family(config))
    steps = math.ceil(len(lengths) / (config.batch_size * config.processes)) * config.max_epochs
    weight = config.kl_weight / attention_weights(network.config, lengths)
    pyro.set_rng_seed(config.seed)  # the noise of the first step does not depend on the prior
    return model, guide, AttentionELBO(kl_weight=_kl_weight(config, weight, steps))


def no_guide(*_: Any) -> None:
    """The guide of a model without latent variables."""


def _family(config: FineTuneOptions) -> Family:
    parameter = config.concentration if config.guide == "weibull" else config.scale
    made: Any = FAMILIES[config.guide]
    family: Family = made(parameter)
    return family


def _prior(config: FineTuneOptions) -> partial[Prior]:
    family = "gamma" if config.guide == "weibull" else config.guide
    made: partial[Prior] = partial(PRIORS[f"{family}_{config.prior}"])
    return made


def attention_weights(config: Any, lengths: Sequence[int]) -> float:
    """Mean number of attention weights of an example, over examples of some lengths, in all layers and heads.

    Example:
        >>> from transformers import BertConfig
        >>> attention_weights(BertConfig(num_hidden_layers=2, num_attention_heads=3), [1, 3])
        30.0
    """
    return config.num_hidden_layers * config.num_attention_heads * fmean(length**2 for length in lengths)


def _kl_weight(config: FineTuneOptions, weight: float, steps: int) -> Callable[[int], float]:
    warmup = round(config.kl_warmup * steps)
    return Linear(warmup, weight) if warmup else Constant(weight)
