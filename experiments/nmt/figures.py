"""Pictures of a comparison on translation, and the IBM models beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.align import aligned_pairs
from experiments.nmt.alignment_figures import agreement_heatmap, pair_figure
from experiments.nmt.alignments import PairAlignment
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.ibm_models import train_ibm
from experiments.nmt.model import load_trained
from experiments.reporting.figures import save
from experiments.reporting.report import Part
from pyro_attention.analysis import alignment_error_rate

__all__ = ["agreement_figure", "ibm_error_rates", "sentence_figures"]

_SHOWN = 50  # sentence pairs whose alignments are compared
_SAMPLES = 200


def sentence_figures(runs: Mapping[str, TranslationConfig], folder: Path) -> list[Part]:
    """Prior beside posterior, and mean beside credible intervals, for one test sentence."""
    text = load_text(next(iter(runs.values())), "test").first(_SHOWN)
    place = _reordered(text)
    gold = None if text.gold is None else text.gold[place]
    parts = []
    for row in ("categorical_enum", "marginal", "dirichlet", "weibull"):
        if row not in runs:
            continue
        if row == "weibull":
            pair = _pairs(runs[row], text, num_samples=_SAMPLES)[place]
            name, shown = "Bayesian attention", f"{_SAMPLES} posterior samples of the attention weights"
        else:
            pair = _pairs(runs[row], text)[place]
            pair = replace(pair, posterior=pair.posterior.mean(0, keepdim=True))
            name, shown = "Prior and posterior", "where the next word is expected to come from, and where it came from"
        path = save(pair_figure(pair, gold=gold, title=f"{row}: {shown}"), folder / f"{row}.png")
        parts.append(Part(f"{name}: {row}", picture=path, page=False))
    return parts


def agreement_figure(runs: Mapping[str, TranslationConfig], folder: Path) -> Part:
    """How far the schemes' alignments agree on the first test sentences."""
    text = load_text(next(iter(runs.values())), "test").first(_SHOWN)
    links = {row: [pair.links for pair in _pairs(config, text)] for row, config in runs.items()}
    if text.alignments is not None:
        links["gold"] = text.alignments
    figure = agreement_heatmap(links, title=f"agreement of the alignments of {len(text)} test sentences")
    words = "F1 between the links of every two schemes, each target word linked to its most probable source word."
    return Part("Do the schemes agree?", words, picture=save(figure, folder / "agreement.png"), page=False)


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


def _reordered(text: ParallelText) -> int:
    """The first sentence of 8 to 12 words whose words change places; the first of all where there is none."""
    for place, links in enumerate(text.alignments or ()):
        crossing = any(i < k and j > m for i, j in links.links for k, m in links.links)
        if crossing and 8 <= links.num_target <= 12:
            return place
    return 0


def _pairs(config: TranslationConfig, text: ParallelText, *, num_samples: int | None = None) -> list[PairAlignment]:
    trained = load_trained(Path(str(config.out)), device=config.device)
    return aligned_pairs(trained, text, num_samples=config.num_samples if num_samples is None else num_samples)
