"""Options of the scripts that ask whether a translation's uncertainty is worth something."""

from dataclasses import dataclass
from pathlib import Path

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import ParallelName
from experiments.harness.options import RunOptions
from experiments.nmt.config import EvaluateConfig, SearchOptions

__all__ = ["SelectiveConfig", "SelectiveOptions", "SelectiveRun"]


@dataclass(frozen=True, kw_only=True)
class SelectiveOptions(SearchOptions):
    """What to measure of the uncertainty of translations.

    Args:
        pairs: Sentence pairs of each text, the first ones; all when omitted.
        coverage: Shares of the translations to keep, the most certain ones.
        out_of_domain: Data sets of the same languages, whose test sentences its uncertainty is to tell from its own.
    """

    pairs: PositiveInt | None = None
    coverage: tuple[PositiveFloat, ...] = (0.25, 0.5, 0.75, 0.9)
    out_of_domain: tuple[ParallelName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SelectiveConfig(SelectiveOptions, EvaluateConfig):
    """BLEU and chrF of a trained network's most certain translations, and whether text from elsewhere is less certain.

    Each measure of uncertainty is a mean over the word pieces of a translation. The length of the source sentence
    stands beside them for comparison: long sentences are hard to translate, and every measure is to do better.
    """


@dataclass(frozen=True, kw_only=True)
class SelectiveRun(RunOptions, SelectiveOptions):
    """The same of one network of a comparison, kept in a folder of its own.

    Args:
        run: Folder of the trained network.
        seed: Its seed.
    """

    run: Path
    seed: NonNegativeInt = 0
