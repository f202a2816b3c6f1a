"""Vocabulary, network and guide of a translation run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.datasets.text.batches import Batch, EncodedText, in_order
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.harness.folder import saved_config
from experiments.harness.training import PriorFactory, seeded_build
from experiments.nmt.config import TranslationConfig
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import TrainedSequences, assembled, load_run
from guides.inference_network import AlignmentNetwork
from models.nmt import Translation, TranslationSizes
from models.score_terms import DiagonalBias, Jumps, TemporalNormalizer

Trained = TrainedSequences[TranslationConfig, Translation]


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme, hidden = config.build_scheme(), config.hidden
    sizes = TranslationSizes(
        embedding=config.embedding, memory=hidden, decoder=hidden, attention=hidden, layers=config.layers
    )  # fmt: skip

    def make(prior: PriorFactory) -> Translation:
        normalizer = None
        if config.normalizer != "softmax":
            normalizer = TemporalNormalizer(share=0.5 if config.normalizer == "hybrid" else None)
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1), normalizer=normalizer,
            diagonal=DiagonalBias() if config.diagonal else None, words_from=config.words_from,
            encoder=config.encoder, prior_from=config.prior_from, null_word=config.null_word,
            jumps=Jumps() if config.jumps else None,
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortized:
        network = AlignmentNetwork(
            model.source_embedding, model.target_embedding, hidden=hidden, layers=config.layers,
            dropout=config.dropout, null_word=config.null_word,
        )  # fmt: skip
    return assembled(config, scheme, model, network, vocabulary, plateau=0)


def batches(trained: Trained, text: ParallelText) -> Iterator[Batch]:
    """The pairs of a text in batches of similar lengths, on the network's device."""
    return in_order(EncodedText(text, trained.vocabulary), sentences=BATCH, device=trained.device)


def load_trained(folder: Path, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch; UserError where there is none."""
    config = saved_config(folder, TranslationConfig, script="experiments.nmt", device=device)
    return load_run(config, folder, build)
