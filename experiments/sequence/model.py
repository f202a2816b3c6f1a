"""Networks on sequences: their Lightning modules, building, training, loading, vocabulary and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from torch import Tensor, nn

from experiments.callbacks import read_weights, require_weights, weights_file
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
    fit_batches,
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
from pyro_attention.alignments.priors import AlignmentPrior
from pyro_attention.families.base import Family
from pyro_attention.normalizers import Normalizer
from pyro_attention.posterior.predictive import seeded

Config = TypeVar("Config", bound=SequenceConfig)
Options = TypeVar("Options", bound=TrainingOptions)
Network = TypeVar("Network", bound=AttentionDecoder)
Model = TypeVar("Model", bound=nn.Module)


def model_arguments(batch: Batch) -> tuple[Tensor, ...]:
    """Return the arguments that the model is called with for a batch."""
    return batch.source, batch.source_mask, batch.target_in, batch.target_out, batch.target_mask


class SequenceTraining(ELBOTraining):
    """Lightning module that trains a decoder on batches of sentences.

    Args:
        warm_start: Number of first epochs without the inference network.
        plateau: Epochs without a better validation loss before the learning rate is halved; None for a planned one.
    """

    def __init__(self, *parts: Any, warm_start: int = 0, plateau: int | None = 0, **options: Any) -> None:
        super().__init__(*parts, plateau=plateau, **options)
        self.warm_start = warm_start

    def on_train_epoch_start(self) -> None:
        """Switch the inference network off in the first epochs of a warm start."""
        family = self.objective.guide.family("alignment")
        if isinstance(family, Amortized):
            family.warm_start = self.current_epoch < self.warm_start

    def on_validation_epoch_end(self) -> None:
        """Also log the share of attention that is normalized over the previous words, if the model has one."""
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
    """Lightning module whose learning rate follows a one-cycle schedule over all epochs."""


def assemble(
    config: Config,
    scheme: Scheme,
    model: Network,
    network: AlignmentNetwork | RegionNetwork | None,
    vocabulary: Vocabulary,
    *,
    plateau: int,
) -> TrainedSequences[Config, Network]:
    """Build guide and objective of a model and move all to the device, with the weights of ``init_from`` if given.

    Args:
        config: Options of the run.
        scheme: Prior, posterior family and objective.
        model: The network.
        network: Inference network of an amortized scheme, else None.
        vocabulary: Word pieces.
        plateau: Epochs without a better validation loss before the learning rate is halved.

    Raises:
        ValueError: The scheme sums alignments out, but under a sampled input feed each alignment depends on the
            previous ones.
    """
    if config.input_feed == "sampled" and config.guide in set(get_args(AlignmentSchemeName)) - {"hard_sample"}:
        raise ValueError(
            f"guide {config.guide} does not work with input_feed sampled, where each alignment depends on the previous "
            f"ones; expected guide soft, weibull, lognormal, gamma or hard_sample, or input_feed expected"
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
    """Training and validation data as ids of word pieces.

    Attributes:
        train: Data set of training batches.
        val: Data set of validation batches.
        sampler: Sampler of the training batches.
        targets: Target sentences of the training data, once each.
    """

    train: Any
    val: Any
    sampler: BucketSampler
    targets: Sequence[Tensor]


def fit_sequences(trained: Trained[Any, Any], encoded: Encoded, folder: Path, *, patience: int) -> Fitted:
    """Train a network that writes sentences until its validation loss has not improved for ``patience`` epochs."""
    config = trained.config
    val_sampler = BucketSampler(encoded.val.lengths, sentences=config.batch_size, shuffle=False)
    loaders = batch_loader(encoded.train, encoded.sampler), batch_loader(encoded.val, val_sampler)
    return fit_batches(config, trained.module, *loaders, folder=folder, patience=patience)


def prediction_family(guide: AttentionGuide) -> Family:
    """Return the posterior family for prediction, when the next words are unknown.

    For an amortized family this is the family without its inference network, which would need these words.
    """
    family = guide.family("alignment")
    return family.family if isinstance(family, Amortized) else family


@dataclass(frozen=True)
class TrainedText(Trained[Options, Model]):
    """Trained network that reads or writes texts, with its guide and its vocabulary."""

    vocabulary: Vocabulary


class TrainedSequences(TrainedText[Config, Network]):
    """Trained network that writes sentences."""

    @property
    def family(self) -> Family:
        """Posterior family for prediction; see :func:`prediction_family`."""
        return prediction_family(self.guide)

    @property
    def is_random(self) -> bool:
        """Whether predictions average over posterior samples; false for soft attention and for exact sums."""
        return not isinstance(self.family, Soft) and self.family.kind != AlignmentPrior.kind

    def inference(self, *, samples: int | None = 0, k_max: int | None = None, terms: int | None = None) -> Inference:
        """Return how the attention is integrated out of the words.

        Args:
            samples: Number of posterior samples; None takes the number of the configuration if predictions are random.
            k_max: Number of largest weights that are used; all when omitted.
            terms: Number of most probable alignments that are summed over; all when omitted.
        """
        if samples is None:
            samples = self.config.num_samples if self.is_random else 0
        return Inference(k_max=k_max, terms=terms, family=self.family, samples=samples)


AnyTrained = TrainedSequences[Any, Any]  # translation or captioning
Trainable = TypeVar("Trainable", bound=Trained[Any, Any])


def predictive_perplexity(trained: AnyTrained, batches: Iterable[Batch], *, k_max: int | None = None) -> float:
    """Return the perplexity per word piece under the predictive distribution of the network's own scheme.

    Random weights are averaged over the configured number of draws, inside the logarithm.
    """
    trained.module.eval()
    inference = trained.inference(samples=None, k_max=k_max)
    with seeded(trained.config.seed):
        return mean_perplexity(
            batches, lambda batch: target_log_probs(trained.model, *model_arguments(batch), inference=inference)
        )


def mean_perplexity(batches: Iterable[Batch], log_probs: Callable[[Batch], Tensor]) -> float:
    """Return the perplexity, the exponential of the mean negative log probability of a word piece.

    The mean is over all word pieces of all sentences, ``</s>`` included, each of which counts the same.

    Args:
        batches: The sentences.
        log_probs: Log probabilities of the word pieces of a batch, of any shape; zero or missing at the padding.
    """
    total, count = 0.0, 0
    for batch in batches:
        total -= log_probs(batch).double().sum().item()
        count += int(batch.target_mask.sum())
    return math.exp(total / count)


def load_run(config: Options, folder: Path, build: Callable[[Options, Vocabulary], Trainable]) -> Trainable:
    """Build the network of the run in a folder, and load its weights of the best epoch.

    Raises:
        UserError: The folder holds another network, or none that is trained.
    """
    require_weights(folder)
    with user_errors(ValueError, OSError):
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"))
        load_best(trained.module, folder)
    return trained


def run_vocabulary(folder: Path, start: Path | None, train: Callable[[], Vocabulary]) -> Vocabulary:
    """Return the vocabulary in the folder of a run, and write it there first if it is missing.

    Args:
        folder: Folder of the run.
        start: Folder of the run to take the vocabulary from; None trains a new one.
        train: Trains a new vocabulary.
    """
    path = folder / "vocabulary.json"
    if path.is_file():
        return Vocabulary.load(path)
    vocabulary = train() if start is None else Vocabulary.load(start / "vocabulary.json")
    vocabulary.save(path)
    return vocabulary


def start_from(model: nn.Module, folder: Path) -> None:
    """Copy the weights of another run's network into a model; only the prior network may be missing there.

    Raises:
        UserError: The folder has no weights, or weights of other shapes.
    """
    path, prefix = weights_file(folder), "objective.model."
    if not path.is_file():
        raise UserError(f"{path} is missing; init_from takes the folder of a finished run")
    state = read_weights(path)
    initial = model.state_dict()
    weights = {name: state[prefix + name] for name in initial if prefix + name in state}
    misfits = [name for name, value in weights.items() if value.shape != initial[name].shape]
    misfits += [name for name in initial if name not in weights and not name.startswith("attention.prior.")]
    if misfits:
        raise UserError(f"{path} does not fit this network in {misfits[0]}; give both runs the same sizes")
    model.load_state_dict(weights, strict=False)


HYBRID = Block(
    "Hybrid attention",
    "Share of doubly normalized attention in the heads of the encoder at the end of the training.",
    [Column(f"layer {layer}, head {head}", f"hybrid_layers.{layer}_{head}") for layer in range(2) for head in range(4)],
    terminal=True,
)


def text_encoder(config: TextEncoderOptions, vocabulary: Vocabulary, prior: PriorFactory) -> TextEncoder:
    """Build an untrained encoder.

    Args:
        config: Sizes and normalizer.
        vocabulary: Word pieces.
        prior: Makes a prior network from (key width, heads).
    """

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads, initial=config.hybrid_share, sweeps=config.sweeps)

    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "dropout")}
    return TextEncoder(len(vocabulary), **sizes, positions=config.length, prior=prior, normalizer=normalizer)
