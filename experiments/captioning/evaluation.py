"""How well a captioning network predicts and describes, and where it looks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from experiments.captioning import pointing
from experiments.captioning import scores as caption_scores
from experiments.captioning.model import Trained
from experiments.captioning.scores import score_captions
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.datasets.text.batches import Batch, BucketSampler, batch_loader
from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.harness.training import Fitted
from experiments.sequence.alignments import EntropySums, align_batch
from experiments.sequence.model import perplexity
from models.decoding import beam_search

__all__ = ["DEFINITIONS", "batches", "describe", "evaluate", "floor_scores"]

_BATCH = 50
_LONGEST = 40
_REFERENCES = 5  # captions of a photograph that perplexity and entropies are of

DEFINITIONS = {
    **{f"test_{name}": f"{text}; of beam search" for name, text in caption_scores.DEFINITIONS.items()},
    **{
        f"floor_{name}": f"{caption_scores.DEFINITIONS[name]}; of captions of random training images"
        for name in ("bleu_1", "cider_d")
    },
    **pointing.DEFINITIONS,
    "test_true_captions": "share of the captions of beam search that are true of the scene, word for word",
    "test_ppl": f"perplexity per word piece of the first {_REFERENCES} captions of each test image (of a digit scene, "
    "the first): alignments summed out exactly; for Bayesian attention the predictive one, the mean probability over "
    "posterior samples (num_samples of the configuration); for soft plain",
    "test_entropy": "entropy in nats of the mean weights that predict a word piece (prior of an alignment, posterior "
    "mean of Bayesian attention), mean over the word pieces of the same captions",
    "test_posterior_entropy": "entropy in nats of the mean posterior weights, mean over word pieces",
    "val_ppl": "perplexity per word piece of the first caption of each validation image at the best epoch, Bayesian "
    "attention at its mean",
    "best_epoch": "epoch of the kept weights, counted from 0",
    "epochs": "number of epochs trained",
    "updates": "number of training steps",
    "step_ms": "median over epochs of the mean time of a training step, in milliseconds",
    "word_pieces": "number of word pieces to choose from",
    "parameters": "number of trained parameters, of the inference network too, without those of the frozen encoder",
    "skipped": "images and captions of all splits that were left out as bad",
}


def batches(trained: Trained, data: RegionCaptions, *, references: int) -> Iterator[Batch]:
    """Images with their first captions, in batches of similar lengths, on the network's device."""
    pairs = EncodedCaptions(data, trained.vocabulary, references=references)
    for batch in batch_loader(pairs, BucketSampler(pairs.lengths, sentences=_BATCH, shuffle=False)):
        yield batch.to(trained.device)


def describe(trained: Trained, data: RegionCaptions) -> list[str]:
    """A caption of every image by beam search."""
    found, config, inference = [], trained.config, trained.inference()
    for regions, mask in data.sources(_BATCH, trained.device):
        hypotheses = beam_search(
            trained.model, regions, mask, begin=BEGIN, end=END, beam=config.beam, inference=inference,
            length_penalty=config.length_penalty, max_length=_LONGEST, no_repeat=config.no_repeat, alignments=False,
        )  # fmt: skip
        found += [trained.vocabulary.decode(best[0].tokens) for best in hypotheses]
    return found


def floor_scores(train: RegionCaptions, test: RegionCaptions) -> dict[str, float]:
    """Scores of captions of random training images, to be seen beside those of a network."""
    random = Random(0)
    drawn = [random.choice(random.choice(train.captions)) for _ in range(len(test))]
    scores = score_captions(drawn, test.captions).metrics
    return {f"floor_{name}": scores[name] for name in ("bleu_1", "cider_d")}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a trained network, what they mean, and its captions of the test images."""

    metrics: dict[str, float]
    definitions: dict[str, str]
    captions: list[str]


def evaluate(trained: Trained, data: dict[str, RegionCaptions], fitted: Fitted) -> Evaluation:
    """All metrics of a trained network on the test images."""
    test, best, entropies = data["test"], fitted.history[fitted.best_epoch], EntropySums()
    captions, references = describe(trained, test), _REFERENCES if test.scenes is None else 1
    for batch in batches(trained, test, references=references):
        entropies.add(trained, batch, align_batch(trained, batch, num_samples=trained.config.num_samples))
    metrics = {f"test_{name}": score for name, score in score_captions(captions, test.captions).metrics.items()}
    metrics |= floor_scores(data["train"], test) | pointing.pointing(trained, test, captions) | entropies.metrics
    if test.scenes is not None:
        true = [caption in texts for caption, texts in zip(captions, test.captions, strict=True)]
        metrics["test_true_captions"] = sum(true) / len(true)
    metrics |= {
        "test_ppl": perplexity(trained, batches(trained, test, references=references)),
        "val_ppl": math.exp(best["val_loss"]),
        **fitted.metrics,
        "word_pieces": len(trained.vocabulary),
        "parameters": trained.parameters,
        "skipped": sum(sum(split.skipped.values()) for split in data.values()),
    }
    definitions = {name: DEFINITIONS[name] for name in metrics}
    definitions["parameters"] += f"; features: {test.encoder}"
    return Evaluation(metrics, definitions, captions)
