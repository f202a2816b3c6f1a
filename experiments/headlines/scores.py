"""ROUGE of headlines, and the baseline that says the first words of a text."""

from __future__ import annotations

from collections.abc import Sequence

from torchmetrics.functional.text import rouge_score

from experiments.datasets.text.headlines import HeadlineText, lead

__all__ = ["DEFINITIONS", "ROUGE", "lead_baseline", "rouge"]

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # with torchmetrics' names
_KINDS = {"rouge_1": "words", "rouge_2": "pairs of words", "rouge_l": "the longest common subsequence of words"}
DEFINITIONS = {
    name: f"ROUGE by torchmetrics, F-measure of {what}, without stemming, in small letters, of letters and digits "
    "alone; of several references the best; mean over texts, times 100"
    for name, what in _KINDS.items()
}


def rouge(headlines: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """F-measures of every headline, times 100: ``rouge_1``, ``rouge_2`` and ``rouge_l``.

    Raises:
        ValueError: Another number of headlines than of texts with references, or none.

    Example:
        >>> found = rouge(["police kill the gunman"], [["police killed the gunman"]])
        >>> {name: round(values[0], 1) for name, values in found.items()}
        {'rouge_1': 75.0, 'rouge_2': 33.3, 'rouge_l': 75.0}

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, sections 2 and 3.
    """
    if len(headlines) != len(references) or not headlines:
        raise ValueError(
            f"{len(headlines)} headlines and references of {len(references)} texts; expected as many, at least one"
        )
    found: dict[str, list[float]] = {name: [] for name in ROUGE}
    for headline, wanted in zip(headlines, references, strict=True):
        scores = rouge_score([headline], [list(wanted)], rouge_keys=tuple(ROUGE.values()))
        for name, theirs in ROUGE.items():
            found[name].append(100 * scores[f"{theirs}_fmeasure"].item())
    return found


def lead_baseline(data: HeadlineText, words: int) -> dict[str, list[float]]:
    """:func:`rouge` of the first words of every text."""
    return rouge([lead(text, words) for text in data.texts], data.headlines)
