"""Several captions of a photograph, and how different they are: of a beam, of drawn words and of drawn attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from nltk.util import ngrams
from torch import Tensor

from experiments.captioning.model import Trained
from experiments.captioning.scores import cider_d, corpus_bleu, split_words
from experiments.datasets.images.captions import caption_words
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.sequence.evaluation import BATCH, search
from models.decoding import Hypothesis, Inference, beam_search, sample

__all__ = ["COUNT", "DEFINITIONS", "LONGEST", "WAYS", "diversity", "set_scores"]

COUNT = 5  # captions of a photograph
_IMAGES = 250  # the first of the test photographs
LONGEST = 40  # word pieces of a caption
_TEMPERATURES = (0.5, 1.0)

WAYS = {
    "beam": f"the best {COUNT} captions of a beam",
    **{
        f"temperature_{heat:g}": f"{COUNT} captions drawn word by word at temperature {heat:g}"
        for heat in _TEMPERATURES
    },
    "posterior": f"{COUNT} beam searches, each with one posterior sample of the attention of every word",
}
_SCORES = {
    "distinct_1": "number of different words over the number of words",
    "distinct_2": "number of different pairs of words over the number of pairs",
    "self_bleu": "corpus BLEU-4 of every caption against the others of its photograph, times 100",
    "set_cider_d": "mean CIDEr-D of the captions, document frequencies of these photographs, times 100",
}
DEFINITIONS = {
    f"test_{score}_{way}": f"{text}, of {how}; first {_IMAGES} test photographs"
    for score, text in _SCORES.items()
    for way, how in WAYS.items()
}  # fmt: skip


def diversity(trained: Trained, data: RegionCaptions) -> dict[str, float]:
    """The numbers of ``DEFINITIONS``; the last way is of Bayesian attention alone."""
    references, metrics = data.captions[:_IMAGES], dict[str, float]()
    for way, texts in _captions(trained, data).items():
        found = set_scores(texts, references)
        metrics |= {f"test_{score}_{way}": value for score, value in found.items()}
    return metrics


def set_scores(captions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores of several captions of every image.

    Example:
        >>> found = set_scores([["a dog runs", "a dog runs"], ["a red cat", "two old cats"]], [["a dog"], ["a cat"]])
        >>> found["distinct_1"], found["distinct_2"], f"{found['self_bleu']:.0f}"
        (0.75, 0.75, '0')
    """
    words = [[caption_words(text) for text in texts] for texts in captions]
    scores = {f"distinct_{n}": fmean(_distinct(texts, n) for texts in words) for n in (1, 2)}
    pairs = [(text, [*texts[:at], *texts[at + 1 :]]) for texts in words for at, text in enumerate(texts)]
    kept = [(text, others) for text, others in pairs if any(others)]
    scores["self_bleu"] = 100 * corpus_bleu(*map(list, zip(*kept, strict=True)))[-1] if kept else 100.0
    of_set = [fmean(cider_d(*split_words(some, references))) for some in zip(*captions, strict=True)]
    return scores | {"set_cider_d": 100 * fmean(of_set)}


def _distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    """Of captions of one image; 1 where none has so many words."""
    grams = [gram for text in texts for gram in ngrams(text, n)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _captions(trained: Trained, data: RegionCaptions) -> dict[str, list[list[str]]]:
    """Captions of the first images, by the way that they were made."""
    found: dict[str, list[list[str]]] = {}
    for cells in data.regions[:_IMAGES].split(BATCH):
        regions = cells.float().to(trained.device)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        for way, sets in _searched(trained, regions, mask).items():
            texts = [[trained.vocabulary.decode(one.tokens) for one in some] for some in sets]
            found.setdefault(way, []).extend(texts)
    return found


def _searched(trained: Trained, regions: Tensor, mask: Tensor) -> dict[str, Sequence[Sequence[Hypothesis]]]:
    """What every way finds for a batch of images."""
    config, inference = trained.config, trained.inference()
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": LONGEST, "alignments": False}
    found: dict[str, Sequence[Sequence[Hypothesis]]] = {
        "beam": beam_search(
            trained.model, regions, mask, beam=max(COUNT, config.beam), keep=COUNT, inference=inference,
            no_repeat=config.no_repeat, length_penalty=config.length_penalty, **options,
        )
    }  # fmt: skip
    for heat in _TEMPERATURES:
        draw = partial(sample, trained.model, regions, mask, temperature=heat, inference=inference, **options)
        found[f"temperature_{heat:g}"] = list(zip(*(draw(seed=seed) for seed in range(COUNT)), strict=True))
    if trained.is_random:
        drawn = Inference(family=trained.family, samples=1)
        look = partial(search, trained, regions, mask, max_length=LONGEST, inference=drawn)
        found["posterior"] = list(zip(*(look(seed=seed) for seed in range(COUNT)), strict=True))
    return found
