"""Scores of captions against references: BLEU, ROUGE-L, CIDEr-D and METEOR, and the diversity of several captions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any, TypeAlias

import sacrebleu
from nltk.translate.meteor_score import meteor_score
from nltk.util import everygrams, ngrams

from experiments.captioning.wordnet import find_wordnet
from experiments.data.images.captions import caption_words

Words: TypeAlias = Sequence[str]

_ORDERS = 4  # n-grams have 1 to 4 words
_SIGMA = 6.0  # width of CIDEr-D's penalty on differences of length
_BETA = 1.2  # weight of recall against precision in ROUGE-L


def score_captions(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score one caption for each image, times 100 as papers print scores.

    CIDEr-D weighs a word by the number of these images that have it in their references. The score of a caption hence
    depends on the whole set, and a single image has the score 0. METEOR is missing without the WordNet of NLTK or
    Debian.

    Source: Papineni et al., BLEU, 2002; Lin, ROUGE, 2004; Vedantam, Zitnick and Parikh, CIDEr, 2015; Lavie and Agarwal,
    METEOR, 2007; https://github.com/tylin/coco-caption. Post, A Call for Clarity in Reporting BLEU Scores, 2018.

    Raises:
        ValueError: There are no captions, the numbers of captions and of images differ, or an image has no reference.
    """
    if not captions or len(captions) != len(references):
        raise ValueError(
            f"{len(captions)} captions and references of {len(references)} images; expected one caption for each "
            f"image, and at least one image"
        )
    if missing := [index for index, texts in enumerate(references) if not texts]:
        raise ValueError(f"image {missing[0]} has no references, expected at least one; leave it out")
    caption_lists, reference_lists = split_words(captions, references)
    pairs = list(zip(caption_lists, reference_lists, strict=True))
    scores = {f"bleu_{n}": 100 * score for n, score in enumerate(corpus_bleu(caption_lists, reference_lists), 1)}
    scores["rouge_l"] = 100 * (sum(rouge_l(words, texts) for words, texts in pairs) / len(pairs))
    scores["cider_d"] = 100 * (sum(cider_d(caption_lists, reference_lists)) / len(pairs))
    wordnet = find_wordnet()
    if wordnet is None:
        return scores
    meteors = [meteor_score(texts, words, wordnet=wordnet) for words, texts in pairs]
    return scores | {"nltk_meteor": 100 * sum(meteors) / len(pairs)}


def split_words(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Return the words of captions and of their references, in lower case without punctuation."""
    reference_words = [[caption_words(reference) for reference in texts] for texts in references]
    return [caption_words(caption) for caption in captions], reference_words


def corpus_bleu(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Compute BLEU with n-grams up to n = 1, 2, 3 and 4 of all captions together, each between 0 and 1.

    BLEU is the geometric mean of the shares of n-grams that a reference of the same image has. It is multiplied by
    exp(1 - r / c) if all captions have c words and their references r > c words, where the reference of an image is the
    one closest in length. A caption of fewer than n words has no n-gram. If no caption has one, the score is 0.
    """
    # NLTK's corpus_bleu counts one n-gram for a caption without any; a column of sacrebleu has one reference an image
    columns = list(zip_longest(*([" ".join(words) for words in image] for image in references)))
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", max_ngram_order=_ORDERS, force=True)
    result = metric.corpus_score([" ".join(words) for words in captions], columns)
    shares = [count / total if total else 0.0 for count, total in zip(result.counts, result.totals, strict=True)]
    return [result.bp * math.prod(shares[:order]) ** (1 / order) for order in range(1, _ORDERS + 1)]


def rouge_l(words: Words, references: Sequence[Words]) -> float:
    """Compute ROUGE-L of a caption, the F-measure of its best precision and best recall over the references.

    Precision and recall are the length of the longest common subsequence, divided by the length of the caption and of
    the reference. A caption without words scores 0.
    """
    common = [_common_length(words, reference) for reference in references]
    precision = max(common) / max(1, len(words))
    recall = max(length / max(1, len(reference)) for length, reference in zip(common, references, strict=True))
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision) if precision else 0.0


def _common_length(first: Words, second: Words) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        previous, lengths = lengths, [0]
        for column, second_word in enumerate(second, 1):
            same = word == second_word
            lengths.append(previous[column - 1] + 1 if same else max(previous[column], lengths[-1]))
    return lengths[-1]


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Compute CIDEr-D of every caption, between 0 and 10.

    CIDEr-D is the cosine between the n-gram counts of caption and reference, weighted by their inverse document
    frequency, where the references of an image are one document. Counts above those of the reference do not help, and a
    difference of length costs. The score is the mean over n = 1 to 4 and over the references, times 10.
    """
    reference_counts = [[_gram_counts(reference) for reference in texts] for texts in references]
    frequency = Counter(gram for counts in reference_counts for gram in set().union(*counts))

    def gram_weights(counts: Counter[Any]) -> list[dict[Any, float]]:
        """Return the weights of n-grams, a dictionary for each n from 1 to 4."""
        orders: list[dict[Any, float]] = [{} for _ in range(_ORDERS)]
        for gram, count in counts.items():
            orders[len(gram) - 1][gram] = count * (math.log(len(references)) - math.log(max(1, frequency[gram])))
        return orders

    scores = []
    for words, texts, counts in zip(captions, references, reference_counts, strict=True):
        caption, total = gram_weights(_gram_counts(words)), 0.0
        for text, reference in zip(texts, map(gram_weights, counts), strict=True):
            # the reference code measures length by the number of 2-grams
            difference = max(len(words), 1) - max(len(text), 1)
            similarity = sum(map(_similarity, caption, reference)) / _ORDERS
            total += similarity * math.exp(-(difference**2) / (2 * _SIGMA**2))
        scores.append(10 * total / len(texts))
    return scores


def _gram_counts(words: Words) -> Counter[Any]:
    return Counter(everygrams(words, max_len=_ORDERS))


def _similarity(caption: dict[Any, float], reference: dict[Any, float]) -> float:
    norms = math.hypot(*caption.values()) * math.hypot(*reference.values())
    shared = [(weight, reference[gram]) for gram, weight in caption.items() if gram in reference]
    return sum(min(weight, of_reference) * of_reference for weight, of_reference in shared) / norms if norms else 0.0


def set_scores(captions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score a set of several captions for each image by its diversity and its mean CIDEr-D.

    Args:
        captions: Captions of each image, as many for all.
        references: References of each image.

    Returns:
        ``distinct_1`` and ``distinct_2``, shares of different n-grams; ``self_bleu``, BLEU-4 of each caption against
        the other ones; ``set_cider_d``, the mean CIDEr-D.
    """
    word_sets = [[caption_words(text) for text in texts] for texts in captions]
    scores = {f"distinct_{n}": fmean(_distinct_share(texts, n) for texts in word_sets) for n in (1, 2)}
    # the references of a caption are the other captions of its image
    pairs = [(text, [*texts[:i], *texts[i + 1 :]]) for texts in word_sets for i, text in enumerate(texts)]
    scorable = [(text, rest) for text, rest in pairs if any(rest)]
    scores["self_bleu"] = 100 * corpus_bleu(*map(list, zip(*scorable, strict=True)))[-1] if scorable else 100.0
    ciders = [fmean(cider_d(*split_words(column, references))) for column in zip(*captions, strict=True)]
    return scores | {"set_cider_d": 100 * fmean(ciders)}


def _distinct_share(texts: Sequence[Words], n: int) -> float:
    """Return the share of different n-grams among all n-grams of the captions of an image; 1 without an n-gram."""
    grams = [gram for text in texts for gram in ngrams(text, n)]
    return len(set(grams)) / len(grams) if grams else 1.0
