"""Alignments of given translations, by one direction or by both: links, pages to look at, and the command for files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from experiments.data.text.parallel_text import ParallelText
from experiments.nmt.texts import batches
from experiments.report.report import write_page
from experiments.sequence.alignments import EntropySums, align_batch, has_posterior_gap, predicts_by_posterior
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import (
    Alignment,
    GoldAlignment,
    alignment_error_rate,
    hard_alignment,
    merge_pieces,
)
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.viewer import AlignmentView


@dataclass(frozen=True)
class PairAlignment:
    """Weights between the words of one sentence pair."""

    source: list[str]  # N words
    target: list[str]  # M words
    prior: Tensor | None  # its mean [M, N]; None where it is the same for all words, or under soft attention
    posterior: Tensor  # [S, M, N]
    exact: Tensor | None = None  # [M, N], where it was asked for and the posterior is none of z given y

    @property
    def links(self) -> Alignment:
        """Every target word with its most probable source word."""
        return hard_alignment(self.posterior.mean(0))


def aligned_pairs(
    trained: AnyTrained,
    text: ParallelText,
    *,
    num_samples: int,
    exact: bool = False,
    entropies: EntropySums | None = None,
    progress: bool = False,
    **drawing: Any,
) -> list[PairAlignment]:
    """Word alignments of all sentence pairs, in the order of the text.

    ``exact`` and ``drawing`` as of :func:`experiments.sequence.alignments.align_batch`; the entropies are summed where
    they are given.
    """
    pairs = dict[int, PairAlignment]()
    bar = tqdm(desc="aligning", total=len(text), unit="sentence", disable=not progress)
    for batch in batches(trained, text):
        alignment = align_batch(trained, batch, num_samples=num_samples, exact=exact, **drawing)
        if entropies is not None:
            entropies.add(trained, batch, alignment)
        for row, index in enumerate(batch.indices.tolist()):
            source = trained.vocabulary.words(batch.source[row][batch.source_mask[row]].tolist())
            target = trained.vocabulary.words(batch.target_out[row][batch.target_mask[row]].tolist())
            cut = slice(len(target)), slice(len(source))
            merge = partial(merge_pieces, source=source, target=target, renormalize=True)
            means = alignment.prior, alignment.exact
            prior, summed = (None if mean is None else merge(mean[row][cut]) for mean in means)
            words = text.source[index].split(), text.target[index].split()
            pairs[index] = PairAlignment(*words, prior, merge(alignment.posterior[:, row][:, *cut]), summed)
        bar.update(len(batch))
    bar.close()
    return [pairs[index] for index in range(len(text))]


def alignment_summary(trained: AnyTrained, text: ParallelText) -> dict[str, float]:
    """Entropies, and alignment error rates where the text has gold links; docs/metrics.md says what they are."""
    count, exact, entropies = trained.config.num_samples, has_posterior_gap(trained), EntropySums()
    pairs = aligned_pairs(trained, text, num_samples=count, exact=exact, entropies=entropies)
    summary, gold = entropies.metrics, text.gold
    if gold is None:
        return summary
    # the prior of Bayesian attention sees the source alone, and is the same for every target word: it aligns nothing
    priors = [] if predicts_by_posterior(trained) else [pair.prior for pair in pairs]
    if links := [hard_alignment(prior) for prior in priors if prior is not None]:
        summary["test_prior_aer"] = alignment_error_rate(links, gold).aer
    summary["test_posterior_aer"] = alignment_error_rate([pair.links for pair in pairs], gold).aer
    return summary


SAMPLES = 100


def alignment_views(
    schemes: Mapping[str, Sequence[PairAlignment]], text: ParallelText, gold: Sequence[GoldAlignment] | None = None
) -> list[AlignmentView]:
    """A view of every sentence pair, with the prior and posterior of each scheme that has one."""
    views, gold = list[AlignmentView](), gold or text.gold
    for number, pairs in enumerate(zip(*schemes.values(), strict=True)):
        by_scheme = dict(zip(schemes, pairs, strict=True))
        views.append(
            AlignmentView(
                title=f"Pair {number + 1}", source=pairs[0].source, target=pairs[0].target, languages=text.languages,
                posterior={name: pair.posterior for name, pair in by_scheme.items()},
                prior={name: pair.prior for name, pair in by_scheme.items() if pair.prior is not None},
                gold=None if gold is None else gold[number],
            )
        )  # fmt: skip
    return views


def write_alignments(path: Path, views: Sequence[AlignmentView], *, title: str) -> Path:
    """Write a page of alignments, and say in plain words what one sees there."""
    source, target = views[0].names[::-1]
    text = (
        f"For each word of a translation ({target}): from which words of the sentence ({source}) the network took it, "
        "by the prior, what it expected before it saw the word, and by the posterior, what it holds afterwards (for "
        "Bayesian attention the weights that it used). Point at a word, or move to it with the Tab and arrow keys: the "
        "stronger a colour, the larger the weight. On the right stand its 90 % credible interval and samples, if any."
    )
    return write_page(path, views, title=title, text=text)


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
            labels = [str(number), str(source), str(target), pair.source[source], pair.target[target]]
            yield "\t".join([*labels, *cells, str(int((source, target) in chosen.links))])
