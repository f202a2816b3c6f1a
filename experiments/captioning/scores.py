"""Scores of captions against references: BLEU, ROUGE-L, CIDEr-D, and METEOR where WordNet is there.

Papineni et al., BLEU, 2002; Lin, ROUGE, 2004; Vedantam, Zitnick and Parikh, CIDEr, 2015; Lavie and Agarwal, METEOR,
2007; https://github.com/tylin/coco-caption. Post, A Call for Clarity in Reporting BLEU Scores, 2018 (sacrebleu).
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import sacrebleu
from nltk.corpus import wordnet
from nltk.translate.meteor_score import meteor_score
from nltk.util import everygrams

from experiments.datasets.images.captions import caption_words

Words: TypeAlias = Sequence[str]

_ORDERS = 4  # n-grams of 1 to 4 words
_SIGMA = 6.0  # of CIDEr-D's penalty on differences of length
_BETA = 1.2  # of ROUGE-L: how much more recall counts than precision

DEFINITIONS = {
    f"bleu_{n}": f"corpus BLEU of 1- to {n}-grams by sacrebleu's counts, without smoothing, times 100"
    for n in range(1, _ORDERS + 1)
} | {
    "rouge_l": "ROUGE-L as in coco-caption (best precision, best recall, beta 1.2), mean over images, times 100",
    "cider_d": "CIDEr-D as in coco-caption, document frequencies of these references, mean over images, times 100",
    "nltk_meteor": "NLTK-METEOR (exact, stem and WordNet matches; not comparable with METEOR 1.5), mean, times 100; "
    "missing where NLTK finds no WordNet (python -m nltk.downloader wordnet)",
}


def score_captions(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores of one caption an image, times 100 as papers print them; ``DEFINITIONS`` says what the names mean.

    CIDEr-D weighs words by how many of these images have them in their references, so the scores of a caption depend on
    the whole set, and those of a single image are 0.
    """
    spoken, written = split_words(captions, references)
    pairs = list(zip(spoken, written, strict=True))
    scores = {f"bleu_{n}": 100 * score for n, score in enumerate(corpus_bleu(spoken, written), 1)}
    scores["rouge_l"] = 100 * (sum(rouge_l(words, texts) for words, texts in pairs) / len(pairs))
    scores["cider_d"] = 100 * (sum(cider_d(spoken, written)) / len(pairs))
    try:
        wordnet.synsets("dog")
    except (LookupError, OSError):  # not there, or not complete
        return scores
    meteors = [meteor_score(texts, words, wordnet=wordnet) for words, texts in pairs]
    return scores | {"nltk_meteor": 100 * sum(meteors) / len(pairs)}


def split_words(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Words of captions and of their references, in small letters without punctuation."""
    written = [[caption_words(reference) for reference in texts] for texts in references]
    return [caption_words(caption) for caption in captions], written


def corpus_bleu(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU of 1- to n-grams of all captions together, for n = 1 to 4, between 0 and 1.

    The geometric mean of the shares of n-grams that a reference of the same image has, times exp(1 - r / c) where all
    captions have c words and their references (of each image the one closest in length) r words, more than c. A caption
    of fewer than n words has no n-gram and does not count among them; where no caption has one, the score is 0.
    """
    # Not NLTK's: it counts one n-gram of a caption that has none. One column of sacrebleu is one reference an image.
    columns = list(zip_longest(*([" ".join(words) for words in image] for image in references)))
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", max_ngram_order=_ORDERS, force=True)
    counted = metric.corpus_score([" ".join(words) for words in captions], columns)
    shares = [count / total if total else 0.0 for count, total in zip(counted.counts, counted.totals, strict=True)]
    return [counted.bp * math.prod(shares[:order]) ** (1 / order) for order in range(1, _ORDERS + 1)]


def rouge_l(words: Words, references: Sequence[Words]) -> float:
    """ROUGE-L of a caption: the F-measure of its best precision and best recall over the references.

    Precision and recall are the length of the longest common subsequence as a share of the caption and of the
    reference. A caption without words scores 0.
    """
    common = [_common_length(words, reference) for reference in references]
    precision = max(common) / max(1, len(words))
    recall = max(length / max(1, len(reference)) for length, reference in zip(common, references, strict=True))
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision) if precision else 0.0


def _common_length(first: Words, second: Words) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        before, lengths = lengths, [0]
        for place, other in enumerate(second, 1):
            lengths.append(before[place - 1] + 1 if word == other else max(before[place], lengths[-1]))
    return lengths[-1]


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """CIDEr-D of every caption, between 0 and 10.

    The cosine between the n-gram counts of caption and reference, each weighted by its inverse document frequency,
    where an image's references are one document; a caption's counts beyond the reference's do not help, and a
    difference of length costs. The mean over n = 1 to 4 and over the references, times 10.
    """
    counted = [[_grams(reference) for reference in texts] for texts in references]
    frequency = Counter(gram for texts in counted for gram in set().union(*texts))

    def weighted(counts: Counter[Any]) -> list[dict[Any, float]]:
        """Weights of n-grams, by n - 1."""
        orders: list[dict[Any, float]] = [{} for _ in range(_ORDERS)]
        for gram, count in counts.items():
            orders[len(gram) - 1][gram] = count * (math.log(len(references)) - math.log(max(1, frequency[gram])))
        return orders

    scores = []
    for words, texts, counts in zip(captions, references, counted, strict=True):
        caption, total = weighted(_grams(words)), 0.0
        for text, reference in zip(texts, map(weighted, counts), strict=True):
            # the reference code measures length by the number of 2-grams
            difference = max(len(words), 1) - max(len(text), 1)
            similarity = sum(map(_similarity, caption, reference)) / _ORDERS
            total += similarity * math.exp(-(difference**2) / (2 * _SIGMA**2))
        scores.append(10 * total / len(texts))
    return scores


def _grams(words: Words) -> Counter[Any]:
    return Counter(everygrams(words, max_len=_ORDERS))


def _similarity(caption: dict[Any, float], reference: dict[Any, float]) -> float:
    norms = math.hypot(*caption.values()) * math.hypot(*reference.values())
    shared = [(weight, reference[gram]) for gram, weight in caption.items() if gram in reference]
    return sum(min(weight, other) * other for weight, other in shared) / norms if norms else 0.0
