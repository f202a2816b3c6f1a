"""Alignments of a comparison on translation to look at, and the IBM models beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.align import aligned_pairs
from experiments.nmt.alignment_figures import agreement_heatmap, pair_figure
from experiments.nmt.alignment_page import alignment_views, what_is_shown
from experiments.nmt.alignments import PairAlignment
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.ibm_models import train_ibm
from experiments.nmt.model import load_trained
from experiments.report.figures import save
from experiments.report.report import Part
from pyro_attention.analysis import Alignment, agreement, alignment_error_rate

__all__ = ["differing_places", "ibm_error_rates", "picture_parts"]

_SHOWN = 50  # sentence pairs whose alignments are compared
_CHOSEN = 8  # of them, that are shown
_SHORT = 5  # words
_SAMPLES = 200


def compared_pairs(runs: Mapping[str, TranslationConfig], text: ParallelText) -> dict[str, list[PairAlignment]]:
    """Alignments of the first test sentences by every scheme."""
    return {row: _pairs(config, text) for row, config in runs.items()}


def differing_places(pairs: Mapping[str, Sequence[PairAlignment]]) -> list[int]:
    """The sentences in whose links the schemes agree least, these first; short ones, which show little, come last."""

    def agreed(place: int) -> tuple[bool, float]:
        links = {row: [found[place].links] for row, found in pairs.items()}
        return len(next(iter(pairs.values()))[place].target) < _SHORT, agreement(links).mean().item()

    return sorted(range(len(next(iter(pairs.values())))), key=agreed)[:_CHOSEN]


def sentence_part(runs: Mapping[str, TranslationConfig], text: ParallelText) -> Part:
    """The viewer, with prior and posterior of all schemes for some sentences."""
    schemes = {row: _pairs(config, text, num_samples=_SAMPLES) for row, config in runs.items()}
    views = alignment_views(schemes, languages=text.languages, gold=text.gold)
    words = (
        f"Of the first {_SHOWN} test sentences these are the {len(text)} on which the schemes agree least. "
        f"{what_is_shown(text.languages)}"
    )
    return Part("Where do the schemes differ?", words, views=views, terminal=False, published=False)


def sentence_figures(runs: Mapping[str, TranslationConfig], text: ParallelText, folder: Path) -> list[Part]:
    """Prior beside posterior, and mean beside credible intervals, for the first sentence of a text."""
    gold = None if text.gold is None else text.gold[0]
    parts = []
    for row in ("categorical_enum", "marginal", "dirichlet", "weibull"):
        if row not in runs:
            continue
        if row == "weibull":
            (pair,) = _pairs(runs[row], text.first(1), num_samples=_SAMPLES)
            name, shown = "Bayesian attention", f"{_SAMPLES} posterior samples of the attention weights"
        else:
            (pair,) = _pairs(runs[row], text.first(1))
            pair = replace(pair, posterior=pair.posterior.mean(0, keepdim=True))
            name, shown = "Prior and posterior", "where the next word is expected to come from, and where it came from"
        figure = pair_figure(pair, gold=gold, title=f"{row}: {shown}", languages=text.languages)
        parts.append(Part(f"{name}: {row}", picture=save(figure, folder / f"{row}.png"), published=False))
    return parts


def agreement_figure(pairs: Mapping[str, Sequence[PairAlignment]], text: ParallelText, folder: Path) -> Part:
    """How far the schemes' alignments agree on the first test sentences."""
    links: dict[str, Sequence[Alignment]] = {row: [pair.links for pair in found] for row, found in pairs.items()}
    if text.alignments is not None:
        links["gold"] = text.alignments
    figure = agreement_heatmap(links, title=f"agreement of the alignments of {len(text)} test sentences")
    words = "F1 between the links of every two schemes, each target word linked to its most probable source word."
    return Part("Do the schemes agree?", words, picture=save(figure, folder / "agreement.png"), published=False)


def picture_parts(runs: Mapping[str, TranslationConfig], folder: Path) -> list[Part]:
    """The viewer for sentences on which the schemes differ, pictures of the first of them, and how far all agree."""
    text = load_text(next(iter(runs.values())), "test").first(_SHOWN)
    pairs = compared_pairs(runs, text)
    chosen = text.chosen(differing_places(pairs))
    return [sentence_part(runs, chosen), *sentence_figures(runs, chosen, folder), agreement_figure(pairs, text, folder)]


def ibm_error_rates(config: TranslationConfig, *, models: Iterable[Any]) -> list[dict[str, Any]]:
    """Alignment error rates of NLTK's IBM models, trained on the training text of a run; none without gold links."""
    train, test = load_text(config, "train"), load_text(config, "test")
    gold = test.gold
    if gold is None:
        return []
    rows = []
    for model in models:
        aligner = train_ibm(_words(train), model=model)
        found = [aligner.align(source, target) for source, target in _words(test)]
        rows.append({"model": f"IBM Model {model}", "AER %": 100 * alignment_error_rate(found, gold).aer})
    return rows


def _words(text: ParallelText) -> list[tuple[list[str], list[str]]]:
    return [(source.split(), target.split()) for source, target in zip(text.source, text.target, strict=True)]


def _pairs(config: TranslationConfig, text: ParallelText, *, num_samples: int | None = None) -> list[PairAlignment]:
    trained = load_trained(Path(str(config.out)), device=config.device)
    return aligned_pairs(trained, text, num_samples=config.num_samples if num_samples is None else num_samples)
