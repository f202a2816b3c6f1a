"""What training and evaluation of translation and of captioning share: the module, its vocabulary, its perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

from experiments.datasets.text.batches import Batch
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import UserError, user_errors
from experiments.harness.checkpoints import read_weights
from experiments.harness.folder import saved_options
from experiments.harness.options import OptionError, configuration
from experiments.harness.training import ELBOTraining
from guides.names import AlignmentSchemeName
from guides.schemes import Scheme, build_scheme
from models.decoder import AttentionDecoder
from models.decoding import Inference, target_log_probs
from pyro_attention import Amortised, AttentionGuide, CategoricalAlignment, Family, Soft
from pyro_attention.posterior.predictive import seeded

__all__ = [
    "SequenceTraining",
    "TrainedSequences",
    "is_random",
    "model_arguments",
    "perplexity",
    "prediction_family",
    "run_config",
    "run_vocabulary",
    "scheme_of",
    "start_from",
]

Config = TypeVar("Config")


def model_arguments(batch: Batch) -> tuple[Tensor, ...]:
    """Arguments of the model's call in a batch."""
    return batch.source, batch.source_mask, batch.target_in, batch.target_out, batch.target_mask


class SequenceTraining(ELBOTraining):
    """Trains on batches of sequences; its checkpoints know the vocabulary they belong to.

    Attributes:
        plateau: Epochs without a better validation loss that are let pass before the learning rate is halved.
    """

    plateau = 0

    def __init__(self, *parts: Any, vocabulary: Vocabulary, warm_start: int = 0, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.vocabulary, self.warm_start = vocabulary, warm_start

    def on_train_epoch_start(self) -> None:
        """Leave the inference network aside in the first epochs of a warm start."""
        family = self.objective.guide.family("alignment")
        if isinstance(family, Amortised):
            family.warm_start = self.current_epoch < self.warm_start

    def on_validation_epoch_end(self) -> None:
        """Log the share of attention that is normalised over the words before, too, where there is one."""
        super().on_validation_epoch_end()
        normalizer = self.objective.model.normalizer
        if normalizer is not None:
            self.log("temporal_share", normalizer.mixing_weight)

    def arguments(self, batch: Batch) -> Sequence[Tensor]:
        return model_arguments(batch)

    def observations(self, batch: Batch) -> int:
        return int(batch.target_mask.sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        inference = Inference(family=prediction_family(self.objective.guide))
        log_probs = target_log_probs(self.objective.model, *model_arguments(batch), inference=inference)
        return {"loss": -log_probs.sum() / self.observations(batch)}

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.plateau)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    def get_extra_state(self) -> Tensor:
        """Fingerprint of the vocabulary."""
        return torch.tensor(list(bytes.fromhex(self.vocabulary.fingerprint)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Check the fingerprint of a checkpoint."""
        self.vocabulary.require(bytes(state.tolist()).hex(), "the checkpoint")


def prediction_family(guide: AttentionGuide) -> Family:
    """The family that serves without the words to come: that of an inference network, by itself."""
    family = guide.family("alignment")
    return family.family if isinstance(family, Amortised) else family


def scheme_of(config: Any) -> Scheme:
    """The inference scheme of a configuration, that of translation or of captioning.

    Raises:
        ValueError: A scheme that does not go with a sampled input feed.
    """
    of_all_words = config.guide in get_args(AlignmentSchemeName) and config.guide != "hard_sample"
    if config.input_feed == "sampled" and of_all_words:
        raise ValueError(
            f"guide {config.guide} does not go with input_feed sampled, where each alignment depends on those before; "
            f"expected soft, weibull, lognormal, gamma or hard_sample, or input_feed expected"
        )
    return build_scheme(
        config.guide, prior=config.prior, kl_weight=config.kl_weight, concentration=config.concentration,
        scale=config.scale, prior_rate=config.prior_rate, prior_scale=config.prior_scale,
        temperature=config.temperature, particles=config.particles,
    )  # fmt: skip


class SequenceOptions(Protocol):
    """What evaluation reads of a configuration."""

    @property
    def num_samples(self) -> int:
        """Posterior samples of the attention."""

    @property
    def seed(self) -> int:
        """Seed of all noise."""


@dataclass(frozen=True)
class TrainedSequences:
    """A network with its guide.

    Attributes:
        config: How it was made.
        module: Network, guide and objective.
        vocabulary: Word pieces.
    """

    config: SequenceOptions
    module: SequenceTraining
    vocabulary: Vocabulary

    @property
    def model(self) -> AttentionDecoder:
        """The network."""
        model: AttentionDecoder = self.module.objective.model
        return model

    @property
    def guide(self) -> AttentionGuide:
        """The guide over the network."""
        guide: AttentionGuide = self.module.objective.guide
        return guide

    @property
    def family(self) -> Family:
        """The family that serves without the words to come."""
        return prediction_family(self.guide)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.output.weight.device


def is_random(trained: TrainedSequences) -> bool:
    """Whether predictions average over posterior samples: not under soft attention, nor where sums are exact."""
    return not isinstance(trained.family, Soft) and trained.family.kind != CategoricalAlignment.kind


def perplexity(trained: TrainedSequences, batches: Iterable[Batch], *, k_max: int | None = None) -> float:
    """Perplexity per word piece of batches, under the scheme's own predictive distribution."""
    trained.module.eval()
    samples = trained.config.num_samples if is_random(trained) else 0
    inference = Inference(k_max=k_max, family=trained.family, samples=samples)
    total, count = 0.0, 0
    with seeded(trained.config.seed):
        for batch in batches:
            found = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
            total, count = total - found.double().sum().item(), count + int(batch.target_mask.sum())
    return math.exp(total / count)


def run_vocabulary(folder: Path, start: Path | None, train: Callable[[], Vocabulary]) -> Vocabulary:
    """The vocabulary in a run's folder; else that of the run it starts from or a new one, which is then put there."""
    path = folder / "vocabulary.json"
    if path.is_file():
        return Vocabulary.load(path)
    vocabulary = train() if start is None else Vocabulary.load(start / "vocabulary.json")
    vocabulary.save(path)
    return vocabulary


def start_from(model: nn.Module, folder: Path, vocabulary: Vocabulary) -> None:
    """Give a model the weights of another run's network; only a prior network may be missing there."""
    path, prefix = folder / "checkpoints" / "best.ckpt", "objective.model."
    if not path.is_file():
        raise UserError(f"{path} is missing; init_from takes the folder of a finished run")
    state = read_weights(path)
    if "_extra_state" not in state:
        raise UserError(f"{path} knows no vocabulary; init_from takes the folder of a run of the same script")
    with user_errors(ValueError):
        vocabulary.require(bytes(state["_extra_state"].tolist()).hex(), path)
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    ours = model.state_dict()
    misfits = [name for name, value in ours.items() if name in weights and weights[name].shape != value.shape]
    misfits += [name for name in ours if name not in weights and not name.startswith("attention.prior.")]
    if misfits:
        raise UserError(f"{path} has another {misfits[0]} than this network; give both runs the same sizes")
    model.load_state_dict({name: value for name, value in weights.items() if name in ours}, strict=False)


def run_config(
    folder: Path, config_type: type[Config], *, script: str, older: Mapping[str, Any] | None = None, **changes: Any
) -> Config:
    """The configuration of the run in a folder, checked as on the command line.

    Args:
        folder: The folder.
        config_type: Dataclass of the configuration.
        script: The script that makes such runs.
        older: What fields meant in runs of before they were there, where that is not their default.
        changes: Fields to set to something else.

    Raises:
        UserError: The folder holds no run, or its config.yaml is damaged or has a value that is not allowed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} holds no run (config.yaml is missing); train one: python -m {script} train")
    known = {field.name for field in fields(config_type)}  # type: ignore[arg-type]
    # the weights are loaded: where they started does not matter any more
    values = dict(older or {}) | saved_options(folder) | {"out": folder, "init_from": None} | changes
    try:
        return configuration(config_type, {name: value for name, value in values.items() if name in known})
    except OptionError as error:
        raise UserError(f"{path}: {error}; put the value of the training back, or train again") from error
