"""Vocabulary, network and guide of a captioning run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.captioning.config import CaptioningConfig
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import user_errors
from experiments.harness.training import load_best, resolve_device, seeded_build
from experiments.sequence.model import (
    SequenceTraining,
    TrainedSequences,
    run_config,
    run_vocabulary,
    scheme_of,
    start_from,
)
from guides.inference_network import RegionNetwork
from guides.schemes import build_scheme
from models.captioning import Captioning, CaptioningSizes
from pyro_attention import AttentionELBO, Prior

__all__ = ["CaptioningTraining", "TrainedCaptioning", "build", "load_trained", "load_vocabulary", "read_config"]


class CaptioningTraining(SequenceTraining):
    """Trains on batches of images with one caption each, another one in every epoch: the loss is noisy."""

    plateau = 2


@dataclass(frozen=True)
class TrainedCaptioning(TrainedSequences):
    """A captioning network with its guide.

    Attributes:
        config: How it was made.
        module: Network, guide and objective.
        vocabulary: Word pieces.
    """

    config: CaptioningConfig
    module: CaptioningTraining

    @property
    def model(self) -> Captioning:
        """The network."""
        model: Captioning = self.module.objective.model
        return model


def load_vocabulary(config: CaptioningConfig, folder: Path, data: RegionCaptions) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""
    texts = [caption for captions in data.captions for caption in captions]
    return run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: CaptioningConfig, vocabulary: Vocabulary, features: int) -> TrainedCaptioning:
    """Network and guide, untrained or with the network of ``init_from``.

    Raises:
        ValueError: Options that do not go together.
    """
    scheme = scheme_of(config)
    if isinstance(scheme.elbo, AttentionELBO):
        scheme.elbo.kl = config.kl
    width = config.hidden
    sizes = CaptioningSizes(embedding=config.embedding, memory=width, decoder=width, attention=width)

    def make(prior: Callable[[int, int], Prior]) -> Captioning:
        return Captioning(
            features, len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, plain=build_scheme("soft").prior, seed=config.seed)
    network = None
    if scheme.amortised:
        network = RegionNetwork(features, model.embedding, hidden=width, dropout=config.dropout)
    if config.init_from is not None:
        start_from(model, config.init_from, vocabulary)
    module = CaptioningTraining(
        model, scheme.guide(model, network), scheme.elbo, vocabulary=vocabulary, warm_start=config.warm_start,
        learning_rate=config.learning_rate,
    )  # fmt: skip
    return TrainedCaptioning(config, module.to(resolve_device(config.device)), vocabulary)


def load_trained(folder: Path, features: int, *, device: str = "auto") -> TrainedCaptioning:
    """The network of a finished run, at its best epoch.

    Args:
        folder: Folder of the run.
        features: Width of a region's features.
        device: Where to put it.

    Raises:
        UserError: The folder holds no run, or one of another network.
    """
    with user_errors(ValueError, OSError):
        trained = build(read_config(folder, device=device), Vocabulary.load(folder / "vocabulary.json"), features)
        load_best(trained.module, folder)
    return trained


def read_config(folder: Path, **changes: Any) -> CaptioningConfig:
    """The configuration of the run in a folder."""
    return run_config(folder, CaptioningConfig, script="experiments.captioning", **changes)
