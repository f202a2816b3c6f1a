"""How well a captioning network predicts and describes, where it looks, how sure it is, and how much it varies."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from random import Random
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import sacrebleu
import torch
from nltk.translate.meteor_score import meteor_score
from nltk.util import everygrams, ngrams
from scipy import stats
from torch import Tensor

from experiments.captioning.wordnet import MISSING, find_wordnet
from experiments.data.images.captions import caption_words
from experiments.data.images.digit_scenes import DIGIT_NAMES, NO_CELL, word_cells
from experiments.data.images.region_captions import EncodedCaptions, RegionCaptions, SegmentationMaps
from experiments.data.text.batches import BEGIN, END, Batch, Vocabulary, in_order
from experiments.sequence import evaluation as sequence
from experiments.sequence.alignments import BatchAlignment, EntropySums, align_batch, has_posterior_gap
from experiments.sequence.evaluation import BATCH, sentence_doubts
from experiments.sequence.model import AnyTrained, perplexity
from models.decoding import Hypothesis, Inference, beam_search, sample
from pyro_attention import Soft
from pyro_attention.analysis import merge_pieces

Words: TypeAlias = Sequence[str]

_ORDERS = 4  # n-grams of 1 to 4 words
_SIGMA = 6.0  # of CIDEr-D's penalty on differences of length
_BETA = 1.2  # of ROUGE-L: how much more recall counts than precision


def score_captions(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores of one caption an image, times 100 as papers print them.

    CIDEr-D weighs words by how many of these images have them in their references, so the scores of a caption depend on
    the whole set, and those of a single image are 0. METEOR is there where NLTK, or Debian, has WordNet.

    Source: Papineni et al., BLEU, 2002; Lin, ROUGE, 2004; Vedantam, Zitnick and Parikh, CIDEr, 2015; Lavie and Agarwal,
    METEOR, 2007; https://github.com/tylin/coco-caption. Post, A Call for Clarity in Reporting BLEU Scores, 2018.

    Raises:
        ValueError: There are no captions, or not as many sets of references, or a set is empty.
    """
    if not captions or len(captions) != len(references):
        raise ValueError(
            f"{len(captions)} captions and references of {len(references)} images; expected one caption an image, and "
            f"one image at least"
        )
    if without := [place for place, texts in enumerate(references) if not texts]:
        raise ValueError(f"image {without[0]} has no references, expected one at least; leave it out")
    spoken, written = split_words(captions, references)
    pairs = list(zip(spoken, written, strict=True))
    scores = {f"bleu_{n}": 100 * score for n, score in enumerate(corpus_bleu(spoken, written), 1)}
    scores["rouge_l"] = 100 * (sum(rouge_l(words, texts) for words, texts in pairs) / len(pairs))
    scores["cider_d"] = 100 * (sum(cider_d(spoken, written)) / len(pairs))
    wordnet = find_wordnet()
    if wordnet is None:
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


COUNT = 5  # captions of a photograph, of those that vary
_IMAGES = 250  # photographs that have so many, the first of the test
_LONGEST = 40  # word pieces of a caption
_REFERENCES = 5  # captions of a photograph that perplexity and entropies are of
_LEAST = 0.01  # of a photograph's area that a class has; smaller ones are not counted
_COVERAGES = (0.5, 0.25)
_TEMPERATURES = (0.5, 1.0)

DOUBTS = {
    "surprise": "negative log probability of the caption",
    "entropy": "entropy of the next word piece",
    "spread": "mutual information of the next word piece and the attention, over its posterior samples",
}
WAYS = {
    "beam": f"the best {COUNT} captions of a beam",
    **{f"temperature_{t:g}": f"{COUNT} captions drawn word by word at temperature {t:g}" for t in _TEMPERATURES},
    "posterior": f"{COUNT} beam searches, each with one posterior sample of the attention of every word",
}
NOUNS = {
    "person": "person people man men woman women boy boys girl girls child children kid kids baby babies toddler lady "
    "ladies guy guys player players",
    "dog": "dog dogs puppy puppies",
    "horse": "horse horses pony",
    "bicycle": "bicycle bicycles bike bikes",
    "motorbike": "motorbike motorbikes motorcycle motorcycles",
    "car": "car cars",
    "boat": "boat boats canoe kayak",
    "bird": "bird birds",
}
"""Words for the classes of Pascal VOC that Flickr8k's test photographs have."""
_CLASS_OF = {word: name for name, words in NOUNS.items() for word in words.split()}


def evaluate(
    trained: AnyTrained, data: Mapping[str, RegionCaptions], maps: SegmentationMaps | None
) -> tuple[dict[str, float], list[str]]:
    """Metrics on the test images, with segmentation maps of photographs if there are any, and their captions."""
    test, photographs = data["test"], data["test"].digits is None
    captions, references = describe(trained, test), _REFERENCES if photographs else 1
    metrics = {f"test_{name}": score for name, score in score_captions(captions, test.captions).items()}
    if photographs and "test_nltk_meteor" not in metrics and trained.config.progress:
        print(MISSING, file=sys.stderr)
    random = Random(0)
    drawn = [random.choice(random.choice(data["train"].captions)) for _ in range(len(test))]
    floor = score_captions(drawn, test.captions)
    metrics |= {f"floor_{name}": floor[name] for name in ("bleu_1", "cider_d")}
    metrics |= _looking(trained, test, maps, references)
    metrics |= {
        "test_ppl": perplexity(trained, batches(trained, test, references=references)),
        "word_pieces": len(trained.vocabulary),
    }
    if not photographs:
        metrics["test_true_captions"] = fmean(one in texts for one, texts in zip(captions, test.captions, strict=True))
        return metrics | pointing(trained, test, captions), captions
    doubts = ranking(caption_doubts(trained, test, captions), captions, test.captions)
    return metrics | doubts | diversity(trained, test), captions


def batches(trained: AnyTrained, data: RegionCaptions, *, references: int) -> Iterator[Batch]:
    """Images with their first captions, in batches of similar lengths, on the network's device."""
    pairs = EncodedCaptions(data, trained.vocabulary, references=references)
    return in_order(pairs, sentences=BATCH, device=trained.device)


def describe(trained: AnyTrained, data: RegionCaptions) -> list[str]:
    """A caption of every image by beam search."""
    found = []
    for regions, mask in data.sources(BATCH, trained.device):
        best = sequence.search(trained, regions, mask, max_length=_LONGEST)
        found += [trained.vocabulary.decode(one.tokens) for one in best]
    return found


def _described(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> Iterator[Batch]:
    """Images with one given caption each, in their order; the indices are those of the images."""
    pairs = EncodedCaptions(data.with_captions(captions), trained.vocabulary)
    for places in torch.arange(len(pairs)).split(BATCH):
        yield pairs[places.tolist()].to(trained.device)


def _of_words(weights: Tensor, batch: Batch, row: int, vocabulary: Vocabulary) -> Tensor:
    """Weights ``[..., words, N]`` of one sentence, of those of the word pieces of a batch, ``[..., B, M, N]``."""
    length = int(batch.target_mask[row].sum())
    words = vocabulary.words(batch.target_out[row, :length].tolist())
    return merge_pieces(weights[..., row, :length, :].cpu(), source=list(range(weights.size(-1))), target=words)


# where attention is


def _looking(
    trained: AnyTrained, test: RegionCaptions, maps: SegmentationMaps | None, references: int
) -> dict[str, float]:
    """How far the attention is from uniform in the first captions of each image, and whether it is where things are."""
    entropies, numbers = EntropySums(), defaultdict[str, list[float]](list)
    pairs = EncodedCaptions(test, trained.vocabulary, references=references)
    for batch in batches(trained, test, references=references):
        found = align_batch(trained, batch, num_samples=trained.config.num_samples, exact=has_posterior_gap(trained))
        entropies.add(trained, batch, found)
        if maps is not None:
            for name, value in map_scores(maps, test, pairs, trained.vocabulary, batch, found):
                numbers[name].append(value)
    counted = {name: float(len(values)) for name, values in numbers.items() if "_nouns_" in name}
    return entropies.metrics | {name: fmean(values) for name, values in numbers.items()} | counted


def pointing(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, float]:
    """Pointing accuracy of prior, posterior mean and posterior samples on scenes, for captions that were made of them.

    Nothing about a prior that is the same for all cells, and nothing without a digit's name.
    """
    if data.digits is None:
        raise ValueError(f"the images of {data.name} are no scenes, expected some whose digits have known cells")
    scores = defaultdict[str, list[Tensor]](list)
    for batch in _described(trained, data, captions):
        found = align_batch(trained, batch, num_samples=trained.config.num_samples)
        for row, image in enumerate(batch.indices.tolist()):
            spoken = [place for place, name in enumerate(captions[image].split()) if name in DIGIT_NAMES]
            if not spoken:
                continue
            cells = torch.tensor(word_cells(data.digits[image], captions[image]))[spoken]
            samples = _of_words(found.posterior, batch, row, trained.vocabulary)[:, spoken]
            scores["test_pointing_samples"].append((samples.argmax(-1) == cells).float().mean(0))
            means = {"test_pointing": samples.mean(0)}
            if found.prior is not None:
                means["test_pointing_prior"] = _of_words(found.prior, batch, row, trained.vocabulary)[spoken]
            for name, weights in means.items():
                mass = weights.gather(-1, cells.clamp(min=0).unsqueeze(-1)).squeeze(-1)
                scores[f"{name}_mass"].append(mass.where(cells != NO_CELL, 0))
                scores[name].append((weights.argmax(-1) == cells).float())
    return {name: torch.cat(values).mean().item() for name, values in scores.items()}


def middle(grid: tuple[int, int]) -> Tensor:
    """Weights on the cells of a grid that are nearest to its middle, one or two each way, ``[cells]``."""
    rows, columns = ((torch.arange(side) - (side - 1) / 2).abs() < 1 for side in grid)
    cells = (rows[:, None] & columns).float().flatten()
    return cells / cells.sum()


def map_scores(
    maps: SegmentationMaps, data: RegionCaptions, pairs: EncodedCaptions, vocabulary: Vocabulary, batch: Batch,
    found: BatchAlignment,
) -> Iterator[tuple[str, float]]:  # fmt: skip
    """Names and values of the numbers ``test_map_*`` of every noun in a batch of photographs with their captions."""
    looked = {"": found.posterior.mean(0)} | ({} if found.prior is None else {"_prior": found.prior})
    for row, pair in enumerate(batch.indices.tolist()):
        image = pairs.image[pair]
        nouns = list(_nouns(maps, data, image, data.captions[image][pair - pairs.firsts[image]]))
        words = {end: _of_words(weights, batch, row, vocabulary) for end, weights in looked.items()} if nouns else {}
        for place, kind, shares in nouns:
            yield f"test_map_nouns_{kind}", 1.0
            weights = {end: values[place] for end, values in words.items()}
            for end, at in weights.items():
                yield f"test_map_point{end}", float(shares[at.argmax()])
            uniform = torch.full_like(shares, 1 / len(shares))
            for end, at in (weights | {"_uniform": uniform, "_centre": middle(data.grid)}).items():
                for kinds in ("", f"_{kind}"):
                    yield f"test_map_mass{end}{kinds}", float(at @ shares)


def _nouns(maps: SegmentationMaps, data: RegionCaptions, image: int, caption: str) -> Iterator[tuple[int, str, Tensor]]:
    """Place of the nouns in a caption, their classes, and the share of every region that the class has."""
    name = data.files[image].name
    if name in maps.places:
        shares = maps.shares(name, data.grid)
        for place, word in enumerate(caption.split()):
            kind = _CLASS_OF.get(word)
            if kind in maps.classes and shares[maps.classes.index(kind)].mean() >= _LEAST:
                yield place, kind, shares[maps.classes.index(kind)]


# whether doubt tells bad captions


def caption_doubts(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, Tensor]:
    """The numbers of ``DOUBTS``, one for each image and its caption; of soft attention there is no spread."""
    doubts = sentence_doubts(trained, _described(trained, data, captions), trained.inference())
    return dict(zip([*DOUBTS][: 2 if isinstance(trained.family, Soft) else 3], doubts, strict=False))


def ranking(
    doubts: Mapping[str, Tensor], captions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """How doubts rank captions; no correlation where all captions score or are doubted the same."""
    scores, metrics = 100 * np.array(cider_d(*split_words(captions, references))), dict[str, float]()
    for name, doubt in doubts.items():
        if np.ptp(scores) > 0 and np.ptp(doubt.numpy()) > 0:
            metrics[f"test_rank_{name}"] = float(stats.spearmanr(doubt.numpy(), scores).statistic)
        surest = scores[doubt.argsort(stable=True).numpy()]
        for share in _COVERAGES:
            kept = surest[: max(1, round(share * len(surest)))]
            metrics[f"test_cider_d_{name}_{100 * share:.0f}"] = float(kept.mean())
    return metrics


# how different several captions of a photograph are


def diversity(trained: AnyTrained, data: RegionCaptions) -> dict[str, float]:
    """Scores of the captions of the first photographs that are made in ``WAYS``; the last is of Bayesian attention."""
    found = defaultdict[str, list[list[str]]](list)
    for cells in data.regions[:_IMAGES].split(BATCH):
        regions = cells.float().to(trained.device)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        for way, sets in _several(trained, regions, mask):
            found[way] += [[trained.vocabulary.decode(one.tokens) for one in some] for some in sets]
    return {
        f"test_{score}_{way}": value
        for way, texts in found.items()
        for score, value in set_scores(texts, data.captions[:_IMAGES]).items()
    }


def _several(
    trained: AnyTrained, regions: Tensor, mask: Tensor
) -> Iterator[tuple[str, Sequence[Sequence[Hypothesis]]]]:
    """What every way finds for a batch of images."""
    config, inference = trained.config, trained.inference()
    options: dict[str, Any] = {"begin": BEGIN, "end": END, "max_length": _LONGEST}
    yield "beam", beam_search(
        trained.model, regions, mask, beam=max(COUNT, config.beam), keep=COUNT, inference=inference,
        no_repeat=config.no_repeat, length_penalty=config.length_penalty, alignments=False, **options,
    )  # fmt: skip
    for heat in _TEMPERATURES:
        draw = partial(sample, trained.model, regions, mask, temperature=heat, inference=inference, **options)
        yield f"temperature_{heat:g}", list(zip(*(draw(seed=seed) for seed in range(COUNT)), strict=True))
    if trained.is_random:
        drawn = Inference(family=trained.family, samples=1)
        look = partial(sequence.search, trained, regions, mask, max_length=_LONGEST, inference=drawn)
        yield "posterior", list(zip(*(look(seed=seed) for seed in range(COUNT)), strict=True))


def set_scores(captions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores of several captions of every image."""
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
