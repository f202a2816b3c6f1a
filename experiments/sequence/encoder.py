"""The encoder of sentences that pretraining and headlines share, out of their options."""

from __future__ import annotations

from typing import Any

from experiments.datasets.text.vocabulary import Vocabulary
from experiments.harness.training import PriorFactory
from guides.schemes import build_normalizer
from models.text import TextEncoder
from pyro_attention.normalizers import Normalizer


def text_encoder(config: Any, vocabulary: Vocabulary, prior: PriorFactory) -> TextEncoder:
    """An untrained encoder.

    Args:
        config: Options of a run: ``width``, ``heads``, ``layers`` and ``dropout``, the most pieces ``length`` of a
            sentence, the name of the ``normalizer``, and ``hybrid_share``, which hybrid attention begins with.
        vocabulary: Word pieces.
        prior: Makes a prior network from (key width, heads).
    """

    def normalizer(heads: int) -> Normalizer:
        return build_normalizer(config.normalizer, heads, initial=config.hybrid_share)

    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "dropout")}
    return TextEncoder(len(vocabulary), **sizes, positions=config.length, prior=prior, normalizer=normalizer)
