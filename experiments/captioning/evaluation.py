"""Evaluation of captioning networks: test metrics, captions, doubt about captions, and diversity of captions."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from experiments.captioning.attention import attention_metrics, pointing
from experiments.captioning.batches import batches, captioned_batches
from experiments.captioning.scores import cider_d, score_captions, set_scores, split_words
from experiments.captioning.wordnet import MISSING
from experiments.data.images.region_captions import RegionCaptions, SegmentationMaps
from experiments.data.text.batches import BEGIN, END
from experiments.sequence import evaluation as sequence
from experiments.sequence.evaluation import BATCH, sentence_doubts
from experiments.sequence.model import AnyTrained, predictive_perplexity
from models.decoding import Hypothesis, Inference, beam_search, sample
from pyro_attention import Soft

COUNT = 5  # captions of a photograph in a set
_IMAGES = 250  # photographs with a set of captions, the first ones of the test data
_LONGEST = 40  # largest number of word pieces of a caption
_REFERENCES = 5  # captions of a photograph for perplexity and entropies
_COVERAGES = (0.5, 0.25)  # shares of the captions with the least doubt
_TEMPERATURES = (0.5, 1.0)

DOUBTS = {
    "surprise": "negative log probability of the caption",
    "entropy": "entropy of the next word piece",
    "spread": "mutual information of the next word piece and the attention, over its posterior samples",
}
"""Measures of the doubt about a caption, means over its word pieces, by name."""
WAYS = {
    "beam": f"the best {COUNT} captions of a beam",
    **{f"temperature_{t:g}": f"{COUNT} captions drawn word by word at temperature {t:g}" for t in _TEMPERATURES},
    "posterior": f"{COUNT} beam searches, each with one posterior sample of the attention of every word",
}
"""Ways to make a set of captions for a photograph, by name."""


def evaluate(
    trained: AnyTrained, data: Mapping[str, RegionCaptions], maps: SegmentationMaps | None
) -> tuple[dict[str, float], list[str]]:
    """Compute the metrics on the test images, and their captions.

    Args:
        trained: The network.
        data: All splits.
        maps: Segmentation maps of the test photographs, if there are any.

    Returns:
        Metrics by the names of docs/metrics.md, and the captions.
    """
    test, photographs = data["test"], data["test"].digits is None
    captions, references = describe(trained, test), _REFERENCES if photographs else 1
    metrics = {f"test_{name}": score for name, score in score_captions(captions, test.captions).items()}
    if photographs and "test_nltk_meteor" not in metrics and trained.config.progress:
        print(MISSING, file=sys.stderr)
    metrics |= random_caption_scores(data["train"], test)
    metrics |= attention_metrics(trained, test, maps, references)
    metrics |= {
        "test_ppl": predictive_perplexity(trained, batches(trained, test, references=references)),
        "word_pieces": len(trained.vocabulary),
    }
    if not photographs:
        pairs = zip(captions, test.captions, strict=True)
        metrics["test_true_captions"] = fmean(caption in texts for caption, texts in pairs)
        return metrics | pointing(trained, test, captions), captions
    ranks = doubt_metrics(caption_doubts(trained, test, captions), captions, test.captions)
    return metrics | ranks | diversity(trained, test), captions


def random_caption_scores(train: RegionCaptions, test: RegionCaptions) -> dict[str, float]:
    """Score captions of random training images as captions of the test images, a floor for the network's scores."""
    random = Random(0)
    captions = [random.choice(random.choice(train.captions)) for _ in range(len(test))]
    scores = score_captions(captions, test.captions)
    return {f"floor_{name}": scores[name] for name in ("bleu_1", "cider_d")}


def describe(trained: AnyTrained, data: RegionCaptions) -> list[str]:
    """Write a caption of every image by beam search."""
    captions = []
    for regions, mask in data.sources(BATCH, trained.device):
        best = sequence.search(trained, regions, mask, max_length=_LONGEST)
        captions += [trained.vocabulary.decode(hypothesis.tokens) for hypothesis in best]
    return captions


# doubt about captions


def caption_doubts(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, Tensor]:
    """Compute the :data:`DOUBTS` about the caption of every image; soft attention has no spread."""
    doubts = sentence_doubts(trained, captioned_batches(trained, data, captions), trained.inference())
    return dict(zip([*DOUBTS][: 2 if isinstance(trained.family, Soft) else 3], doubts, strict=False))


def doubt_metrics(
    doubts: Mapping[str, Tensor], captions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Compare doubts with the CIDEr-D scores of captions.

    Returns:
        Rank correlations, which are missing if all scores or all doubts are equal, and the mean score of the captions
        with the least doubt.
    """
    scores, metrics = 100 * np.array(cider_d(*split_words(captions, references))), dict[str, float]()
    for name, doubt in doubts.items():
        if np.ptp(scores) > 0 and np.ptp(doubt.numpy()) > 0:
            metrics[f"test_rank_{name}"] = float(stats.spearmanr(doubt.numpy(), scores).statistic)
        sorted_scores = scores[doubt.argsort(stable=True).numpy()]
        for share in _COVERAGES:
            surest = sorted_scores[: max(1, round(share * len(sorted_scores)))]
            metrics[f"test_cider_d_{name}_{100 * share:.0f}"] = float(surest.mean())
    return metrics


# diversity of several captions


def diversity(trained: AnyTrained, data: RegionCaptions) -> dict[str, float]:
    """Score sets of captions of the first photographs, made in all :data:`WAYS` that the network has."""
    captions = defaultdict[str, list[list[str]]](list)
    for cells in data.regions[:_IMAGES].split(BATCH):
        regions = cells.float().to(trained.device)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        for way, sets in _caption_sets(trained, regions, mask):
            captions[way] += [[trained.vocabulary.decode(item.tokens) for item in hypotheses] for hypotheses in sets]
    return {
        f"test_{score}_{way}": value
        for way, texts in captions.items()
        for score, value in set_scores(texts, data.captions[:_IMAGES]).items()
    }


def _caption_sets(
    trained: AnyTrained, regions: Tensor, mask: Tensor
) -> Iterator[tuple[str, Sequence[Sequence[Hypothesis]]]]:
    """Yield each way with its sets of captions of a batch of images."""
    config, inference = trained.config, trained.inference()
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": _LONGEST}
    yield "beam", beam_search(
        trained.model, regions, mask, beam=max(COUNT, config.beam), keep=COUNT, inference=inference,
        no_repeat=config.no_repeat, alignments=False, **options,
    )  # fmt: skip
    for temperature in _TEMPERATURES:
        draw = partial(sample, trained.model, regions, mask, temperature=temperature, inference=inference, **options)
        yield f"temperature_{temperature:g}", list(zip(*(draw(seed=seed) for seed in range(COUNT)), strict=True))
    if trained.is_random:
        single_sample = Inference(family=trained.family, samples=1)
        search = partial(sequence.search, trained, regions, mask, max_length=_LONGEST, inference=single_sample)
        yield "posterior", list(zip(*(search(seed=seed) for seed in range(COUNT)), strict=True))
