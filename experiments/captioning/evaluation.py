"""How well a captioning network predicts and describes, and where it looks."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from experiments.captioning import diversity, pointing, uncertainty
from experiments.captioning import scores as caption_scores
from experiments.captioning.diversity import LONGEST
from experiments.captioning.model import Trained
from experiments.captioning.pointing import MapPointing
from experiments.captioning.scores import score_captions
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.datasets.images.segmentation import SegmentationMaps
from experiments.datasets.text.batches import Batch, BucketSampler, batch_loader
from experiments.sequence import evaluation as sequence
from experiments.sequence.alignments import EntropySums, align_batch, has_posterior_gap
from experiments.sequence.model import perplexity

__all__ = ["DEFINITIONS", "batches", "describe", "evaluate", "floor_scores"]

_REFERENCES = 5  # captions of a photograph that perplexity and entropies are of

DEFINITIONS = {
    **sequence.DEFINITIONS,
    **{f"test_{name}": f"{text}; of beam search" for name, text in caption_scores.DEFINITIONS.items()},
    **{
        f"floor_{name}": f"{caption_scores.DEFINITIONS[name]}; of captions of random training images"
        for name in ("bleu_1", "cider_d")
    },
    **pointing.DEFINITIONS,
    **uncertainty.DEFINITIONS,
    **diversity.DEFINITIONS,
    "test_true_captions": "share of the captions of beam search that are true of the scene, word for word",
    "test_ppl": f"perplexity per word piece of the first {_REFERENCES} captions of each test image (of a digit scene, "
    "the first): alignments summed out exactly; for Bayesian attention the predictive one, the mean probability over "
    "posterior samples (num_samples of the configuration); for soft plain",
    "val_ppl": "perplexity per word piece of the first caption of each validation image at the best epoch, Bayesian "
    "attention at its mean",
    "word_pieces": "number of word pieces to choose from",
    "parameters": "number of trained parameters, of the inference network too, without those of the frozen encoder",
    "skipped": "images and captions of all splits that were left out as bad",
}


def batches(trained: Trained, data: RegionCaptions, *, references: int) -> Iterator[Batch]:
    """Images with their first captions, in batches of similar lengths, on the network's device."""
    pairs = EncodedCaptions(data, trained.vocabulary, references=references)
    for batch in batch_loader(pairs, BucketSampler(pairs.lengths, sentences=sequence.BATCH, shuffle=False)):
        yield batch.to(trained.device)


def describe(trained: Trained, data: RegionCaptions) -> list[str]:
    """A caption of every image by beam search."""
    found = []
    for regions, mask in data.sources(sequence.BATCH, trained.device):
        best = sequence.search(trained, regions, mask, max_length=LONGEST)
        found += [trained.vocabulary.decode(one.tokens) for one in best]
    return found


def floor_scores(train: RegionCaptions, test: RegionCaptions) -> dict[str, float]:
    """Scores of captions of random training images, to be seen beside those of a network."""
    random = Random(0)
    drawn = [random.choice(random.choice(train.captions)) for _ in range(len(test))]
    scores = score_captions(drawn, test.captions)
    return {f"floor_{name}": scores[name] for name in ("bleu_1", "cider_d")}


def evaluate(
    trained: Trained, data: dict[str, RegionCaptions], maps: SegmentationMaps | None
) -> tuple[dict[str, float], list[str]]:
    """Metrics on the test images, with segmentation maps of photographs if there are any, and their captions."""
    test, photographs = data["test"], data["test"].scenes is None
    captions, references = describe(trained, test), _REFERENCES if photographs else 1
    metrics = {f"test_{name}": score for name, score in score_captions(captions, test.captions).items()}
    metrics |= floor_scores(data["train"], test) | pointing.pointing(trained, test, captions)
    metrics |= _looking(trained, test, maps, references)
    if test.scenes is not None:
        true = [caption in texts for caption, texts in zip(captions, test.captions, strict=True)]
        metrics["test_true_captions"] = sum(true) / len(true)
    metrics |= {
        "test_ppl": perplexity(trained, batches(trained, test, references=references)),
        "word_pieces": len(trained.vocabulary),
        "skipped": sum(sum(split.skipped.values()) for split in data.values()),
    }
    if photographs:
        doubts = uncertainty.caption_doubts(trained, test, captions)
        metrics |= uncertainty.ranking(doubts, captions, test.captions) | diversity.diversity(trained, test)
    return metrics, captions


def _looking(
    trained: Trained, test: RegionCaptions, maps: SegmentationMaps | None, references: int
) -> dict[str, float]:
    """How far the attention is from uniform in the first captions of each image, and whether it is where things are."""
    entropies, pairs = EntropySums(), EncodedCaptions(test, trained.vocabulary, references=references)
    count, exact = trained.config.num_samples, has_posterior_gap(trained)
    game = None if maps is None else MapPointing(maps, test, pairs, trained.vocabulary)
    for batch in batches(trained, test, references=references):
        found = align_batch(trained, batch, num_samples=count, exact=exact)
        entropies.add(trained, batch, found)
        if game is not None:
            game.add(batch, found)
    return entropies.metrics | ({} if game is None else game.metrics)
