"""What headlines a trained network writes, their ROUGE, and how well it predicts those that people wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torchmetrics.functional.text import rouge_score
from tqdm import tqdm

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.headlines import HeadlineText, lead
from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.harness.results import hybrid_metrics
from experiments.harness.training import FITTED, Fitted
from experiments.headlines.data import TrainingPairs, encoded, first_headlines
from experiments.headlines.model import TrainedWriter, target_log_probs
from experiments.sequence import learned
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import model_arguments
from models.decoding import search_words
from pyro_attention import predict

__all__ = ["Written", "definitions", "evaluate", "lead_baseline", "perplexity", "rouge", "write_headlines"]

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # with torchmetrics' names
_KINDS = {"rouge_1": "words", "rouge_2": "pairs of words", "rouge_l": "the longest common subsequence of words"}
_SCORES = {
    name: f"ROUGE by torchmetrics, F-measure of {what}, without stemming, in small letters, of letters and digits "
    "alone; of several references the best; mean over texts, times 100"
    for name, what in _KINDS.items()
}

_DEFINITIONS = {
    **{f"test_{name}": f"{text}; headlines of beam search" for name, text in _SCORES.items()},
    **{f"lead_{name}": f"{text}; the first words of the texts" for name, text in _SCORES.items()},
    "test_words": "mean number of words of the headlines of beam search",
    "test_cut": "share of the headlines of beam search that had not ended at the largest length",
    "test_ppl": "perplexity per word piece of the first headline of every test text: mean probability over posterior "
    "samples (num_samples of the configuration); for soft plain",
    "val_ppl": "the same of the validation texts at the best epoch, attention at its mean",
    **learned.DEFINITIONS,
    **FITTED,
}


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric means."""
    hybrid = "share of doubly normalised attention in this layer and head of the encoder, at the best epoch"
    return {name: hybrid if name.startswith("hybrid_") else _DEFINITIONS[name] for name in metrics}


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


def _batches(trained: TrainedWriter, pairs: EncodedText) -> Iterator[Batch]:
    """Pairs of similar lengths, on the network's device."""
    for batch in batch_loader(pairs, BucketSampler(pairs.lengths, sentences=BATCH, shuffle=False)):
        yield batch.to(trained.device)


@dataclass(frozen=True)
class Written:
    """A headline that the network wrote."""

    text: str
    cut: bool  # it had not ended at the largest length


@torch.no_grad()
def write_headlines(
    trained: TrainedWriter,
    texts: Sequence[str],
    *,
    beam: int | None = None,
    no_repeat: int | None = None,
    max_length: int | None = None,
    progress: bool = False,
) -> list[Written]:
    """Headlines of texts by beam search, in their order, with the options of the training where none are given.

    The attention is at its posterior mean.
    """
    config, model, found = trained.config, trained.model.eval(), dict[int, Written]()
    with tqdm(total=len(texts), desc="writing headlines", unit="text", disable=not progress) as bar:
        for batch in _batches(trained, encoded(texts, [""] * len(texts), trained.vocabulary, config)):
            best = search_words(
                model.start(batch.source, batch.source_mask), model.advance, begin=BEGIN, end=END,
                beam=beam or config.beam, max_length=max_length or config.headline_length,
                length_penalty=config.length_penalty, no_repeat=no_repeat or config.no_repeat,
            )  # fmt: skip
            for place, (one, *_) in zip(batch.indices.tolist(), best, strict=True):
                found[place] = Written(trained.vocabulary.decode(one.tokens), cut=not one.finished)
            bar.update(len(batch))
    return [found[place] for place in range(len(texts))]


@torch.no_grad()
def perplexity(trained: TrainedWriter, data: HeadlineText) -> float:
    """Perplexity per word piece of the first headlines; see the definitions."""
    trained.module.eval()
    total, count = 0.0, 0
    for batch in _batches(trained, first_headlines(data, trained.vocabulary, trained.config)):
        log_probs = _mean_log_probs(trained, batch) if trained.is_random else target_log_probs(trained.model, batch)
        total, count = total - log_probs.double().sum().item(), count + len(log_probs)
    return math.exp(total / count)


def _mean_log_probs(trained: TrainedWriter, batch: Batch) -> Tensor:
    """Logarithms of the mean probabilities, over posterior samples, of the word pieces of a batch."""
    said = batch.target_out[batch.target_mask]

    def probabilities(features: Tensor) -> Tensor:
        return trained.model.likelihood(features).log_prob(said).exp()

    found = predict(
        trained.guide, *model_arguments(batch), num_samples=trained.config.num_samples, noise="attention",
        seed=trained.config.seed, transform=probabilities,
    )  # fmt: skip
    return found.mean.log()


def evaluate(
    trained: TrainedWriter, data: Mapping[str, HeadlineText], fitted: Fitted
) -> tuple[dict[str, float], list[str]]:
    """Metrics of a trained network, and the headlines that it writes of the test texts."""
    config, test = trained.config, data["test"]
    written = write_headlines(trained, test.texts, progress=config.progress)
    headlines = [one.text for one in written]
    pairs = TrainingPairs(data["train"], trained.vocabulary, config)
    val = first_headlines(data["val"], trained.vocabulary, config)
    metrics = {f"test_{name}": fmean(values) for name, values in rouge(headlines, test.headlines).items()}
    metrics |= {f"lead_{name}": fmean(values) for name, values in lead_baseline(test, config.lead_words).items()}
    metrics |= {
        "test_words": fmean(len(headline.split()) for headline in headlines),
        "test_cut": fmean(one.cut for one in written),
        "test_ppl": perplexity(trained, test),
        "val_ppl": math.exp(fitted.history[fitted.best_epoch]["val_loss"]),
        "val_ppl_unigram": learned.unigram_perplexity(
            pairs.targets[: sum(pairs.counts)], val.targets, vocabulary=len(trained.vocabulary)
        ),
        **learned.most_frequent(headlines),
        **hybrid_metrics(trained.model),
    }
    return metrics, headlines
