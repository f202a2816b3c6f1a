"""What translation, captions, headlines and pretraining share: encoder, module, vocabulary, perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from torch import Tensor, nn

from experiments.callbacks import SamplerEpoch, read_weights, weights_file
from experiments.data.text.batches import Batch, BucketSampler, Vocabulary, batch_loader
from experiments.files import UserError, user_errors
from experiments.options import TrainingOptions
from experiments.report.statistics import Column
from experiments.sequence.config import SequenceConfig, TextEncoderOptions
from experiments.study import Block
from experiments.training import (
    ELBOTraining,
    Fitted,
    OneCycleTraining,
    PriorFactory,
    Trained,
    fit,
    load_best,
    resolve_device,
)
from guides.inference_network import AlignmentNetwork, RegionNetwork
from guides.names import AlignmentSchemeName
from guides.schemes import Scheme, build_normalizer
from models.decoder import AttentionDecoder
from models.decoding import Inference, target_log_probs
from models.text import TextEncoder
from pyro_attention import Amortized, AttentionGuide, Soft
from pyro_attention.alignments.categorical import CategoricalAlignment
from pyro_attention.families.base import Family
from pyro_attention.normalizers import Normalizer
from pyro_attention.posterior.predictive import seeded

Config = TypeVar("Config", bound=SequenceConfig)
Options = TypeVar("Options", bound=TrainingOptions)
Network = TypeVar("Network", bound=AttentionDecoder)
Model = TypeVar("Model", bound=nn.Module)


def model_arguments(batch: Batch) -> tuple[Tensor, ...]:
    """Arguments of the model's call in a batch."""
    return batch.source, batch.source_mask, batch.target_in, batch.target_out, batch.target_mask


class SequenceTraining(ELBOTraining):
    """Trains on batches of sequences."""

    def __init__(self, *parts: Any, warm_start: int = 0, plateau: int | None = 0, **options: Any) -> None:
        super().__init__(*parts, plateau=plateau, **options)
        self.warm_start = warm_start

    def on_train_epoch_start(self) -> None:
        """Leave the inference network aside in the first epochs of a warm start."""
        family = self.objective.guide.family("alignment")
        if isinstance(family, Amortized):
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


class PlannedSequenceTraining(OneCycleTraining, SequenceTraining):
    """Trains with a learning rate that is planned over all epochs."""


def assembled(
    config: Config,
    scheme: Scheme,
    model: Network,
    network: AlignmentNetwork | RegionNetwork | None,
    vocabulary: Vocabulary,
    *,
    plateau: int,
) -> TrainedSequences[Config, Network]:
    """Put model, guide and objective on their device, with the weights of ``init_from`` where it is given.

    Raises:
        ValueError: Alignments that are summed out, with a sampled input feed, where each depends on those before.
    """
    if config.input_feed == "sampled" and config.guide in set(get_args(AlignmentSchemeName)) - {"hard_sample"}:
        raise ValueError(
            f"guide {config.guide} does not go with input_feed sampled, where each alignment depends on those "
            f"before; expected soft, weibull, lognormal, gamma or hard_sample, or input_feed expected"
        )
    if config.init_from is not None:
        start_from(model, config.init_from)
    from_prior = config.posterior_from_prior
    if network is not None and from_prior:
        nn.init.zeros_(network.score.projection.weight)
    training = PlannedSequenceTraining if config.planned else SequenceTraining
    module = training(
        model, scheme.guide(model, network, from_prior=from_prior), scheme.objective(),
        warm_start=config.warm_start, plateau=None if config.planned else plateau,
        learning_rate=config.learning_rate,
    )  # fmt: skip
    return TrainedSequences(config, module.to(resolve_device(config.device)), vocabulary)


@dataclass(frozen=True)
class Encoded:
    """Training and validation data as numbers of word pieces."""

    train: Any  # what a batch of training data is taken from
    val: Any
    sampler: BucketSampler  # chooses the batches of training data
    targets: Sequence[Tensor]  # the sentences of the training data that are learned to be written, each once


def fit_sequences(trained: Trained[Any, Any], encoded: Encoded, folder: Path) -> Fitted:
    """Train a network that writes sentences, until the validation loss has stopped falling."""
    config = trained.config
    in_order = BucketSampler(encoded.val.lengths, sentences=config.batch_size, shuffle=False)
    loaders = batch_loader(encoded.train, encoded.sampler), batch_loader(encoded.val, in_order)
    return fit(
        config, trained.module, *loaders, folder=folder, patience=config.patience, monitor={"val_loss": "min"},
        gradient_clip=config.gradient_clip, callbacks=[SamplerEpoch(encoded.sampler, in_order)],
    )  # fmt: skip


def prediction_family(guide: AttentionGuide) -> Family:
    """The family that serves without the words to come: that of an inference network, by itself."""
    family = guide.family("alignment")
    return family.family if isinstance(family, Amortized) else family


@dataclass(frozen=True)
class TrainedText(Trained[Options, Model]):
    """A network that reads or writes texts, with its guide and its word pieces."""

    vocabulary: Vocabulary


class TrainedSequences(TrainedText[Config, Network]):
    """A network that writes sentences."""

    @property
    def family(self) -> Family:
        """The family that serves without the words to come."""
        return prediction_family(self.guide)

    @property
    def is_random(self) -> bool:
        """Whether predictions average over posterior samples: not under soft attention, nor where sums are exact."""
        return not isinstance(self.family, Soft) and self.family.kind != CategoricalAlignment.kind

    def inference(self, *, samples: int | None = 0, k_max: int | None = None, terms: int | None = None) -> Inference:
        """How the attention is integrated out of the words; None takes as many samples as configured."""
        if samples is None:
            samples = self.config.num_samples if self.is_random else 0
        return Inference(k_max=k_max, terms=terms, family=self.family, samples=samples)


AnyTrained = TrainedSequences[Any, Any]  # translation or captioning
Trainable = TypeVar("Trainable", bound=Trained[Any, Any])


def perplexity(trained: AnyTrained, batches: Iterable[Batch], *, k_max: int | None = None) -> float:
    """Perplexity per word piece of batches, under the scheme's own predictive distribution."""
    trained.module.eval()
    inference = trained.inference(samples=None, k_max=k_max)
    total, count = 0.0, 0
    with seeded(trained.config.seed):
        for batch in batches:
            found = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
            total, count = total - found.double().sum().item(), count + int(batch.target_mask.sum())
    return math.exp(total / count)


def load_run(config: Options, folder: Path, build: Callable[[Options, Vocabulary], Trainable]) -> Trainable:
    """What is built for the run in a folder, at its best epoch; UserError where the folder holds another network."""
    with user_errors(ValueError, OSError):
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"))
        load_best(trained.module, folder)
    return trained


def run_vocabulary(folder: Path, start: Path | None, train: Callable[[], Vocabulary]) -> Vocabulary:
    """The vocabulary in a run's folder; else that of the run it starts from or a new one, which is then put there."""
    path = folder / "vocabulary.json"
    if path.is_file():
        return Vocabulary.load(path)
    vocabulary = train() if start is None else Vocabulary.load(start / "vocabulary.json")
    vocabulary.save(path)
    return vocabulary


def start_from(model: nn.Module, folder: Path) -> None:
    """Give a model the weights of another run's network; only a prior network may be missing there."""
    path, prefix = weights_file(folder), "objective.model."
    if not path.is_file():
        raise UserError(f"{path} is missing; init_from takes the folder of a finished run")
    state = read_weights(path)
    ours = model.state_dict()
    weights = {name: state[prefix + name] for name in ours if prefix + name in state}
    misfits = [name for name, value in weights.items() if value.shape != ours[name].shape]
    misfits += [name for name in ours if name not in weights and not name.startswith("attention.prior.")]
    if misfits:
        raise UserError(f"{path} has another {misfits[0]} than this network; give both runs the same sizes")
    model.load_state_dict(weights, strict=False)


HYBRID = Block(
    "Hybrid attention",
    "Share of doubly normalised attention that the heads of the encoder end with.",
    [Column(f"layer {layer}, head {head}", f"hybrid_layers.{layer}_{head}") for layer in range(2) for head in range(4)],
    terminal=True,
)


def text_encoder(config: TextEncoderOptions, vocabulary: Vocabulary, prior: PriorFactory) -> TextEncoder:
    """An untrained encoder; ``prior`` makes a prior network from (key width, heads)."""

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads, initial=config.hybrid_share, sweeps=config.sweeps)

    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "dropout")}
    return TextEncoder(len(vocabulary), **sizes, positions=config.length, prior=prior, normalizer=normalizer)
