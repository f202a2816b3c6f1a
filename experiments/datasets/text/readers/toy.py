"""The embedded corpus, which needs no file."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules
from experiments.datasets.text.toy_translation import toy_translation


@cache
def toy_corpus() -> dict[str, ParallelText]:
    """Draw the corpus, once."""
    return toy_translation()


def read_toy(_: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Return a split with its gold alignments; of the rules only small letters count."""
    text = toy_corpus()[split]
    if rules.lowercase:
        source, target = ([sentence.lower() for sentence in side] for side in (text.source, text.target))
        text = replace(text, source=source, target=target)
    return text if languages == ("de", "en") else text.turned()


PARALLEL.register("toy")(ParallelReader(read_toy, ("de", "en"), tokenised=True))
