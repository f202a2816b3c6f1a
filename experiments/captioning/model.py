"""Vocabulary, network and guide of a captioning run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from experiments.captioning.config import CaptioningConfig
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.folder import saved_config
from experiments.harness.training import PriorFactory, seeded_build
from experiments.sequence.model import TrainedSequences, assembled, load_run, run_vocabulary
from guides.inference_network import RegionNetwork
from models.captioning import Captioning, CaptioningSizes
from pyro_attention import AttentionELBO

__all__ = ["Trained", "build", "load_trained", "load_vocabulary", "read_config"]


Trained = TrainedSequences[CaptioningConfig, Captioning]


def load_vocabulary(config: CaptioningConfig, folder: Path, data: RegionCaptions) -> Vocabulary:
    """The vocabulary in the folder; else that of ``init_from`` or a new one, which is then put there."""
    texts = [caption for captions in data.captions for caption in captions]
    return run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: CaptioningConfig, vocabulary: Vocabulary, features: int) -> Trained:
    """Network and guide, untrained or with the network of ``init_from``."""
    scheme = config.build_scheme()
    if isinstance(scheme.elbo, AttentionELBO):
        scheme.elbo.kl = config.kl
    width = config.hidden
    sizes = CaptioningSizes(embedding=config.embedding, memory=width, decoder=width, attention=width)

    def make(prior: PriorFactory) -> Captioning:
        return Captioning(
            features, len(vocabulary), sizes=sizes, dropout=config.dropout, init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1),
        )  # fmt: skip

    model = seeded_build(make, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortised:
        network = RegionNetwork(features, model.embedding, hidden=width, dropout=config.dropout)
    # an image has another caption in every epoch: the loss is noisy
    return assembled(config, scheme, model, network, vocabulary, plateau=2)


def load_trained(folder: Path, features: int, *, device: str = "auto") -> Trained:
    """The network of a finished run, at its best epoch; UserError where there is none."""
    return load_run(read_config(folder, device=device), folder, partial(build, features=features))


def read_config(folder: Path, **changes: Any) -> CaptioningConfig:
    """The configuration of the run in a folder."""
    return saved_config(folder, CaptioningConfig, script="experiments.captioning", **changes)
