"""The embedded corpus, which needs no file."""

from functools import cache
from pathlib import Path

from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules
from experiments.datasets.text.toy_translation import toy_translation


@cache
def toy_corpus() -> dict[str, ParallelText]:
    """Draw the corpus, once."""
    return toy_translation()


def read_toy(_: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Return a split with its gold alignments, from de to en; of the rules only small letters count."""
    if languages != ("de", "en"):
        raise ValueError(f"dataset toy is from de to en, not from {languages[0]} to {languages[1]}")
    text = toy_corpus()[split]
    if not rules.lowercase:
        return text
    source, target = ([sentence.lower() for sentence in side] for side in (text.source, text.target))
    return ParallelText(source, target, text.name, text.languages, text.alignments)


PARALLEL.register("toy")(ParallelReader(read_toy, ("de", "en"), tokenised=True))
