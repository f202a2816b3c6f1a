"""What pretraining and headlines share: the encoder of sentences, out of their options, and a table of its heads."""

from __future__ import annotations

from experiments.datasets.text.vocabulary import Vocabulary
from experiments.harness.training import PriorFactory
from experiments.report.statistics import Column
from experiments.sequence.config import TextEncoderOptions
from experiments.study import Block
from guides.schemes import build_normalizer
from models.text import TextEncoder
from pyro_attention.normalizers import Normalizer

HYBRID = Block(
    "Hybrid attention",
    "Share of doubly normalised attention that the heads of the encoder end with.",
    [Column(f"layer {layer}, head {head}", f"hybrid_layers.{layer}_{head}") for layer in range(2) for head in range(4)],
    terminal=True,
)


def text_encoder(config: TextEncoderOptions, vocabulary: Vocabulary, prior: PriorFactory) -> TextEncoder:
    """An untrained encoder; ``prior`` makes a prior network from (key width, heads)."""

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads, initial=config.hybrid_share)

    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "dropout")}
    return TextEncoder(len(vocabulary), **sizes, positions=config.length, prior=prior, normalizer=normalizer)
