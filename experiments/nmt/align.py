"""Word alignments of given translations: links, error rates, pages for a browser, and tables."""

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
    """Prior and posterior weights between the words of one sentence pair.

    Attributes:
        source: The N source words.
        target: The M target words.
        prior: Mean of the prior, ``[M, N]``. None for a prior that is the same for all words, and for soft attention.
        posterior: Posterior samples ``[S, M, N]``.
        exact: Exact posterior p(z | x, y), ``[M, N]``. None unless it was requested and differs from ``posterior``.
    """

    source: list[str]
    target: list[str]
    prior: Tensor | None
    posterior: Tensor
    exact: Tensor | None = None

    @property
    def links(self) -> Alignment:
        """Links of every target word to its most probable source word."""
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
    """Align the words of all sentence pairs, in the order of the text.

    Args:
        trained: The network.
        text: The sentence pairs.
        num_samples: Number of posterior samples.
        exact: Also compute the exact posterior; see :func:`experiments.sequence.alignments.align_batch`.
        entropies: Sums to which the weights of all batches are added.
        progress: Show a progress bar.
        drawing: Further options of :func:`experiments.sequence.alignments.align_batch`.
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


def alignment_metrics(trained: AnyTrained, text: ParallelText) -> dict[str, float]:
    """Compute entropies of the weights, and alignment error rates if the text has gold links; see docs/metrics.md."""
    count, exact, entropies = trained.config.num_samples, has_posterior_gap(trained), EntropySums()
    pairs = aligned_pairs(trained, text, num_samples=count, exact=exact, entropies=entropies)
    metrics, gold = entropies.metrics, text.gold
    if gold is None:
        return metrics
    # the prior of Bayesian attention depends on the source alone: it is the same for all target words, and has no links
    priors = [] if predicts_by_posterior(trained) else [pair.prior for pair in pairs]
    if links := [hard_alignment(prior) for prior in priors if prior is not None]:
        metrics["test_prior_aer"] = alignment_error_rate(links, gold).aer
    metrics["test_posterior_aer"] = alignment_error_rate([pair.links for pair in pairs], gold).aer
    return metrics


SAMPLES = 100  # posterior samples of the alignments on a page


def alignment_views(
    schemes: Mapping[str, Sequence[PairAlignment]], text: ParallelText, gold: Sequence[GoldAlignment] | None = None
) -> list[AlignmentView]:
    """Return a view of every sentence pair, with the posterior of each scheme, and its prior if there is one."""
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
    """Write a page of alignments that explains in plain words what it shows."""
    source, target = views[0].names[::-1]
    text = (
        f"The page shows for each word of a translation ({target}) from which words of the sentence ({source}) the "
        "network took it. The prior is what the network expected before it saw the word. The posterior is what it "
        "believes afterwards, or for Bayesian attention the weights that it used. Point at a word, or move to it with "
        "the Tab and arrow keys: the stronger a color, the larger the weight. The 90 % credible interval and the "
        "samples of a weight, if any, are on the right."
    )
    return write_page(path, views, title=title, text=text)


COLUMNS = ("line", "source", "target", "source_word", "target_word", "prior", "posterior", "low", "high", "link")
_LEAST = 0.01  # links are left out if their prior and their posterior are smaller


def table_lines(pairs: Sequence[PairAlignment], links: Sequence[Alignment], *, level: float = 0.9) -> Iterator[str]:
    """Yield the lines of the table of likely links, the header first, with tabs between the columns.

    Lines of the text are counted from 1, words from 0. A missing prior is an empty cell. An exact posterior has empty
    cells for the ends of the interval. The last column is 1 for a written link, else 0.

    Args:
        pairs: Weights of every sentence pair.
        links: The links that were written, of every sentence pair.
        level: Probability of the credible interval of a weight.
    """
    yield "\t".join(COLUMNS)
    for number, (pair, written) in enumerate(zip(pairs, links, strict=True), 1):
        mean = pair.posterior.mean(0)
        ends: list[Tensor | None] = [None, None]
        if len(pair.posterior) > 1:
            ends = list(equal_tailed(pair.posterior, level)[1:])
        likely = (mean if pair.prior is None else mean.maximum(pair.prior)) >= _LEAST
        for target, source in (likely.cpu() | written.to_matrix()).nonzero().tolist():
            cells = ["" if part is None else f"{part[target, source]:.4f}" for part in (pair.prior, mean, *ends)]
            labels = [str(number), str(source), str(target), pair.source[source], pair.target[target]]
            yield "\t".join([*labels, *cells, str(int((source, target) in written.links))])
