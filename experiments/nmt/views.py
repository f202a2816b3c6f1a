"""Pages to look at alignments with, in a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import write_atomic
from experiments.nmt.alignments import PairAlignment, aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.model import load_trained
from experiments.report.report import Part, element
from pyro_attention.analysis import GoldAlignment
from pyro_attention.viewer import AlignmentView, document, fragment

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


def _what_is_shown(languages: tuple[str, str]) -> str:
    """What one sees on such a page, in plain words."""
    source, target = languages
    return (
        f"For each word of a translation ({target}): from which words of the sentence ({source}) the network took it, "
        "by the prior, what it expected before it saw the word, and by the posterior, what it holds afterwards (for "
        "Bayesian attention the weights that it used). Point at a word, or move to it with the Tab and arrow keys: the "
        "stronger a colour, the larger the weight. On the right stand its 90 % credible interval and samples, if any."
    )


def write_page(path: Path, views: Sequence[AlignmentView], *, title: str) -> Path:
    """Write the page, one file that needs no other."""
    lead = element("p", _what_is_shown(views[0].names[::-1]), **{"class": "lead"})
    write_atomic(path, lambda file: file.write(document(title, lead + fragment(views))))
    return path


def viewer_part(runs: Mapping[str, TranslationConfig]) -> Part:
    """The viewer for the first test sentences, with the network of every row."""
    text = load_text(next(iter(runs.values())), "test").first(10)
    networks = {row: load_trained(Path(str(config.out)), device=config.device) for row, config in runs.items()}
    schemes = {row: aligned_pairs(one, text, num_samples=SAMPLES) for row, one in networks.items()}
    words = _what_is_shown(text.languages)
    views = alignment_views(schemes, text)
    return Part("Alignments to look at", words, views=views, terminal=False, published=False)
