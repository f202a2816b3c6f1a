"""A page to look at the alignments of sentence pairs with, by one network or by several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.files import user_errors, write_atomic
from experiments.nmt.alignments import PairAlignment
from experiments.report.tables import element
from pyro_attention.analysis import GoldAlignment
from pyro_attention.viewer import AlignmentView, document, fragment

__all__ = ["MOST_PAIRS", "alignment_views", "what_is_shown", "write_page"]

MOST_PAIRS = 200  # on one page


def alignment_views(
    schemes: Mapping[str, Sequence[PairAlignment]],
    *,
    languages: tuple[str, str],
    gold: Sequence[GoldAlignment] | None = None,
) -> list[AlignmentView]:
    """A view of every sentence pair, with the prior and posterior of each scheme that has one."""
    views = []
    for place, pairs in enumerate(zip(*schemes.values(), strict=True)):
        found = dict(zip(schemes, pairs, strict=True))
        views.append(
            AlignmentView(
                title=f"Pair {place + 1}", source=pairs[0].source, target=pairs[0].target, languages=languages,
                posterior={name: pair.posterior for name, pair in found.items()},
                prior={name: pair.prior for name, pair in found.items() if pair.prior is not None},
                gold=None if gold is None else gold[place],
            )
        )  # fmt: skip
    return views


def what_is_shown(languages: tuple[str, str]) -> str:
    """What one sees on such a page, in plain words."""
    source, target = languages
    return (
        f"For each word of a translation ({target}) the page shows from which words of the sentence ({source}) the "
        "network took it, and how sure that is: the prior is what it expected before it saw the word, the posterior "
        "what it holds afterwards, or, for Bayesian attention, the weights that it used. Point at a word, or move to "
        "it with the Tab and arrow keys: the stronger a colour, the larger the weight. On the right stand the mean "
        "weight of each link, its 90 % credible interval and samples, where the weights are random."
    )


def write_page(path: Path, views: Sequence[AlignmentView], *, title: str) -> Path:
    """Write the page, one file that needs no other; UserError where it cannot be written."""
    text = element("p", what_is_shown(views[0].languages), **{"class": "lead"})
    with user_errors(OSError):
        write_atomic(path, lambda file: file.write(document(title, text + fragment(views))))
    return path
