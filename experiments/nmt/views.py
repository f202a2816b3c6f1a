"""Pages to look at alignments with, in a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.alignments import PairAlignment, aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.model import load_trained
from experiments.report.report import Part, write_page
from pyro_attention.analysis import GoldAlignment
from pyro_attention.viewer import AlignmentView

SAMPLES = 100


def alignment_views(
    schemes: Mapping[str, Sequence[PairAlignment]], text: ParallelText, gold: Sequence[GoldAlignment] | None = None
) -> list[AlignmentView]:
    """A view of every sentence pair, with the prior and posterior of each scheme that has one."""
    views, gold = list[AlignmentView](), gold or text.gold
    for place, pairs in enumerate(zip(*schemes.values(), strict=True)):
        found = dict(zip(schemes, pairs, strict=True))
        views.append(
            AlignmentView(
                title=f"Pair {place + 1}", source=pairs[0].source, target=pairs[0].target, languages=text.languages,
                posterior={name: pair.posterior for name, pair in found.items()},
                prior={name: pair.prior for name, pair in found.items() if pair.prior is not None},
                gold=None if gold is None else gold[place],
            )
        )  # fmt: skip
    return views


def write_alignments(path: Path, views: Sequence[AlignmentView], *, title: str) -> Path:
    """Write a page of alignments, and say in plain words what one sees there."""
    source, target = views[0].languages
    text = (
        f"For each word of a translation ({target}): from which words of the sentence ({source}) the network took it, "
        "by the prior, what it expected before it saw the word, and by the posterior, what it holds afterwards (for "
        "Bayesian attention the weights that it used). Point at a word, or move to it with the Tab and arrow keys: the "
        "stronger a colour, the larger the weight. On the right stand its 90 % credible interval and samples, if any."
    )
    return write_page(path, views, title=title, text=text)


def viewer_part(runs: Mapping[str, TranslationConfig], path: Path) -> Part:
    """The first test sentences, with the network of every row, on a page of their own."""
    text = load_text(next(iter(runs.values())), "test").first(10)
    networks = {row: load_trained(Path(str(config.out)), device=config.device) for row, config in runs.items()}
    schemes = {row: aligned_pairs(one, text, num_samples=SAMPLES) for row, one in networks.items()}
    page = write_alignments(path, alignment_views(schemes, text), title="Sentences and their translations")
    return Part(text=f"Alignments to look at: {page}", published=False)
