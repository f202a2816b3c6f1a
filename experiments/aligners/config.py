"""Options of the comparison of aligners."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt


@dataclass(frozen=True, kw_only=True)
class AlignersConfig:
    """Compare word aligners that need no network: IBM Model 1, eflomal if it is installed, and pyro-align.

    Args:
        dataset: Sentence pairs with gold links in the test split; drawn-jumps and drawn-order are generated.
        pairs: Number of training pairs; all when omitted.
        joined: Number of test pairs that are joined into one text.
        aligners: Rows of the table; all when omitted, except cross-fitting, one model in place of two halves, and an
            encoder without training on the test.
        encoder: Folder of a multilingual encoder of Hugging Face, for one more row.
        data_root: Folder of the data sets.
        results: Folder to publish the table in.
    """

    dataset: Literal["toy", "europarl_de_en", "hansards_fr_en", "drawn-jumps", "drawn-order"] = "toy"
    pairs: PositiveInt | None = None
    joined: PositiveInt = 1
    aligners: tuple[str, ...] = ()
    encoder: Path | None = None
    data_root: Path | None = None
    results: Path | None = None
