"""A table of the probabilities of links: prior, posterior and credible interval of every likely one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from experiments.nmt.alignments import PairAlignment
from pyro_attention.analysis import Alignment
from pyro_attention.analysis.inputs import equal_tailed

__all__ = ["COLUMNS", "table_lines"]

COLUMNS = ("line", "source", "target", "source_word", "target_word", "prior", "posterior", "low", "high", "link")
_LEAST = 0.01  # links whose prior and posterior are below it are left out


def table_lines(pairs: Sequence[PairAlignment], links: Sequence[Alignment], *, level: float = 0.9) -> Iterator[str]:
    """Lines of the table, its header first, with tabs between the columns; lines count from 1 and words from 0.

    A prior that there is none of is an empty cell, and so are the ends of an interval where the posterior is exact. The
    last column is 1 for links that were chosen, else 0.
    """
    yield "\t".join(COLUMNS)
    for number, (pair, chosen) in enumerate(zip(pairs, links, strict=True), 1):
        mean = pair.posterior.mean(0)
        ends: list[Tensor | None] = [None, None]
        if len(pair.posterior) > 1:
            ends = list(equal_tailed(pair.posterior, level)[1:])
        likely = (mean if pair.prior is None else mean.maximum(pair.prior)) >= _LEAST
        for target, source in (likely.cpu() | chosen.to_matrix()).nonzero().tolist():
            cells = ["" if part is None else f"{part[target, source]:.4f}" for part in (pair.prior, mean, *ends)]
            place = [str(number), str(source), str(target), pair.source[source], pair.target[target]]
            yield "\t".join([*place, *cells, str(int((source, target) in chosen.links))])
