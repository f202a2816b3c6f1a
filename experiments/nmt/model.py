"""Vocabulary, network and guide of a translation run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import user_errors
from experiments.harness.folder import saved_config
from experiments.harness.training import PriorFactory, load_best, resolve_device, seeded_build
from experiments.nmt.config import NormalizerName, TranslationConfig
from experiments.nmt.data import load_text
from experiments.sequence.model import SequenceTraining, TrainedSequences, run_vocabulary, start_from
from guides.inference_network import AlignmentNetwork
from models.nmt import Translation, TranslationSizes
from models.temporal import TemporalNormalizer

__all__ = ["Trained", "build", "load_trained", "load_vocabulary", "read_config"]

Trained = TrainedSequences[TranslationConfig, Translation]


def load_vocabulary(config: TranslationConfig, folder: Path) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""

    def train() -> Vocabulary:
        text = load_text(config, "train")
        return train_tokenizer([*text.source, *text.target], size=config.vocabulary)

    return run_vocabulary(folder, config.init_from, train)


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme = config.build_scheme()
    sizes = TranslationSizes(
        embedding=config.embedding, memory=config.hidden, decoder=config.hidden, attention=config.hidden,
        layers=config.layers,
    )  # fmt: skip

    def make(prior: PriorFactory) -> Translation:
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1), normalizer=_normalizer(config.normalizer),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, seed=config.seed)
    network = _inference_network(config, model) if scheme.amortised else None
    if config.init_from is not None:
        start_from(model, config.init_from, vocabulary)
    module = SequenceTraining(
        model, scheme.guide(model, network, from_prior=config.posterior_from_prior), scheme.elbo,
        vocabulary=vocabulary, warm_start=config.warm_start, learning_rate=config.learning_rate,
    )  # fmt: skip
    return Trained(config, module.to(resolve_device(config.device)), vocabulary)


def _normalizer(name: NormalizerName) -> TemporalNormalizer | None:
    return None if name == "softmax" else TemporalNormalizer(share=0.5 if name == "hybrid" else None)


def _inference_network(config: TranslationConfig, model: Translation) -> nn.Module:
    network = AlignmentNetwork(
        model.source_embedding, model.target_embedding, hidden=config.hidden, layers=config.layers,
        dropout=config.dropout,
    )  # fmt: skip
    if config.posterior_from_prior:
        nn.init.zeros_(network.score.projection.weight)
    return network


def load_trained(folder: Path, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch.

    Raises:
        UserError: The folder holds no run, or one of another network.
    """
    with user_errors(ValueError, OSError):
        config = read_config(folder, device=device)
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"))
        load_best(trained.module, folder)
    return trained


def read_config(folder: Path, **changes: Any) -> TranslationConfig:
    """The configuration of the run in a folder."""
    # runs of before there was a choice took the words as they were
    older = {"tokenize": "none"}
    return saved_config(folder, TranslationConfig, script="experiments.nmt", older=older, **changes)
