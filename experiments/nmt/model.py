"""Texts, vocabulary, network and guide of a translation run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from experiments.datasets.text.parallel import PARALLEL, ParallelText, load_parallel, read_parallel
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import UserError, user_errors
from experiments.harness.training import load_best, resolve_device, seeded_build
from experiments.nmt.config import NormalizerName, TranslationConfig
from experiments.sequence.model import (
    SequenceTraining,
    TrainedSequences,
    model_arguments,
    run_config,
    run_vocabulary,
    scheme_of,
    start_from,
)
from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.nmt import Translation, TranslationSizes
from models.temporal import TemporalNormalizer
from pyro_attention import Prior

__all__ = [
    "Trained",
    "TranslationTraining",
    "build",
    "load_text",
    "load_trained",
    "load_vocabulary",
    "model_arguments",
    "read_config",
    "tokenised",
]


class TranslationTraining(SequenceTraining):
    """Trains on batches of sentence pairs."""


@dataclass(frozen=True)
class Trained(TrainedSequences):
    """A translation network with its guide.

    Attributes:
        config: How it was made.
        module: Network, guide and objective.
        vocabulary: Word pieces of both languages.
    """

    config: TranslationConfig
    module: TranslationTraining

    @property
    def model(self) -> Translation:
        """The network."""
        model: Translation = self.module.objective.model
        return model


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Sentence pairs of a split, "train", "val" or "test", as many as configured."""
    text, pairs = _load_all(config, split), {"train": config.train_pairs, "test": config.test_pairs}.get(split)
    return text if pairs is None else text.first(pairs)


def _load_all(config: TranslationConfig, split: str) -> ParallelText:
    """All pairs of a split; only training pairs may be left out for their length."""
    languages = (config.source, config.target)
    rules: dict[str, Any] = {"lowercase": config.lowercase, "skip": config.skip_bad, "words": config.words}
    if config.words != "none" and tokenised(config):
        raise UserError(f"dataset {config.dataset} is tokenised already; leave out --tokenize {config.words}")
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset != "own":
        source, target = languages
        return load_parallel(config.dataset, split, source=source, target=target, data_root=config.data_root, **rules)
    if config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    if split == "train" and not config.skip_bad:
        # a long pair is left out, a bad line stops
        read_parallel(*_own_files(config, split), languages=languages, words=config.words)
    return read_parallel(*_own_files(config, split), languages=languages, name=config.text.name, **rules)


def tokenised(config: TranslationConfig) -> bool:
    """Whether punctuation stands between blanks in the files of the data set."""
    return config.dataset != "own" and PARALLEL[config.dataset].tokenised


def _own_files(config: TranslationConfig, split: str) -> list[Path]:
    folder = Path() if config.text is None else config.text
    return [folder / f"{split}.{language}" for language in (config.source, config.target)]


def load_vocabulary(config: TranslationConfig, folder: Path) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""

    def train() -> Vocabulary:
        text = load_text(config, "train")
        return train_tokenizer([*text.source, *text.target], size=config.vocabulary)

    return run_vocabulary(folder, config.init_from, train)


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme = scheme_of(config)
    sizes = TranslationSizes(
        embedding=config.embedding, memory=config.hidden, decoder=config.hidden, attention=config.hidden,
        layers=config.layers,
    )  # fmt: skip

    def make(prior: Callable[[int, int], Prior]) -> Translation:
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1), normalizer=_normalizer(config.normalizer),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, plain=build_scheme("soft").prior, seed=config.seed)
    network = _inference_network(config, model) if scheme.amortised else None
    if config.init_from is not None:
        start_from(model, config.init_from, vocabulary)
    module = TranslationTraining(
        model, scheme.guide(model, network, from_prior=config.posterior_from_prior), scheme.elbo,
        vocabulary=vocabulary, warm_start=config.warm_start, learning_rate=config.learning_rate,
    )  # fmt: skip
    return Trained(config, module.to(resolve_device(config.device)), vocabulary)


def _normalizer(name: NormalizerName) -> TemporalNormalizer | None:
    return None if name == "softmax" else TemporalNormalizer(share=0.5 if name == "hybrid" else None)


def _inference_network(config: TranslationConfig, model: Translation) -> nn.Module:
    network = AlignmentNetwork(
        model.source_embedding,
        model.target_embedding,
        hidden=config.hidden,
        layers=config.layers,
        dropout=config.dropout,
    )
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
    return run_config(folder, TranslationConfig, script="experiments.nmt", older=older, **changes)
