"""Vocabulary, network and guide of a translation run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.folder import saved_config
from experiments.harness.training import PriorFactory, seeded_build
from experiments.nmt.config import TranslationConfig
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import TrainedSequences, assembled, load_run, run_vocabulary
from guides.inference_network import AlignmentNetwork
from models.nmt import Translation, TranslationSizes
from models.score_terms import DiagonalBias, Jumps, TemporalNormalizer

__all__ = ["Trained", "batches", "build", "load_trained", "load_vocabulary", "read_config"]

Trained = TrainedSequences[TranslationConfig, Translation]


def load_vocabulary(config: TranslationConfig, folder: Path, text: ParallelText) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""
    texts = [*text.source, *text.target]
    return run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme = config.build_scheme()
    sizes = TranslationSizes(
        embedding=config.embedding, memory=config.hidden, decoder=config.hidden, attention=config.hidden,
        layers=config.layers,
    )  # fmt: skip

    normalized = config.normalizer != "softmax"

    def make(prior: PriorFactory) -> Translation:
        normalizer = TemporalNormalizer(share=0.5 if config.normalizer == "hybrid" else None) if normalized else None
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1), normalizer=normalizer,
            diagonal=DiagonalBias() if config.diagonal else None, words_from=config.words_from,
            encoder=config.encoder, prior_from=config.prior_from, null_word=config.null_word,
            jumps=Jumps() if config.jumps else None,
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortised:
        network = AlignmentNetwork(
            model.source_embedding, model.target_embedding, hidden=config.hidden, layers=config.layers,
            dropout=config.dropout, null_word=config.null_word,
        )  # fmt: skip
    return assembled(config, scheme, model, network, vocabulary, plateau=0)


def batches(trained: Trained, text: ParallelText) -> Iterator[Batch]:
    """The pairs of a text in batches of similar lengths, on the network's device."""
    data = EncodedText(text, trained.vocabulary)
    sampler = BucketSampler(data.lengths, sentences=BATCH, shuffle=False)
    for batch in batch_loader(data, sampler):
        yield batch.to(trained.device)


def load_trained(folder: Path, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch; UserError where there is none."""
    return load_run(read_config(folder, device=device), folder, build)


def read_config(folder: Path, **changes: Any) -> TranslationConfig:
    """The configuration of the run in a folder."""
    # runs of before there was a choice took the words as they were
    older = {"tokenize": "none"}
    return saved_config(folder, TranslationConfig, script="experiments.nmt", older=older, **changes)
