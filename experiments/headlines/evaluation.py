"""What headlines a trained network writes, and how well it predicts those that people wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.headlines import HeadlineText
from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.harness.results import hybrid_metrics
from experiments.harness.training import Fitted
from experiments.headlines import scores
from experiments.headlines.data import encoded, first_headlines
from experiments.headlines.model import TrainedWriter, target_log_probs
from experiments.headlines.scores import lead_baseline, rouge
from experiments.sequence import evaluation as sequence
from experiments.sequence.model import model_arguments
from models.decoding import search_words
from pyro_attention import predict

__all__ = ["Written", "definitions", "evaluate", "perplexity", "write_headlines"]

_DEFINITIONS = {
    **sequence.DEFINITIONS,
    **{f"test_{name}": f"{text}; headlines of beam search" for name, text in scores.DEFINITIONS.items()},
    **{f"lead_{name}": f"{text}; the first words of the texts" for name, text in scores.DEFINITIONS.items()},
    "test_words": "mean number of words of the headlines of beam search",
    "test_cut": "share of the headlines of beam search that had not ended at the largest length",
    "test_ppl": "perplexity per word piece of the first headline of every test text: mean probability over posterior "
    "samples (num_samples of the configuration); for soft plain",
    "val_ppl": "the same of the validation texts at the best epoch, attention at its mean",
}


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric means."""
    hybrid = "share of doubly normalised attention in this layer and head of the encoder, at the best epoch"
    return {name: hybrid if name.startswith("hybrid_") else _DEFINITIONS[name] for name in metrics}


def _batches(trained: TrainedWriter, pairs: EncodedText) -> Iterator[Batch]:
    """Pairs of similar lengths, on the network's device."""
    for batch in batch_loader(pairs, BucketSampler(pairs.lengths, sentences=sequence.BATCH, shuffle=False)):
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


def evaluate(trained: TrainedWriter, data: HeadlineText, fitted: Fitted) -> sequence.Evaluation:
    """All metrics of a trained network on the test texts."""
    written = write_headlines(trained, data.texts, progress=trained.config.progress)
    headlines = [one.text for one in written]
    metrics = {f"test_{name}": fmean(values) for name, values in rouge(headlines, data.headlines).items()}
    baseline = lead_baseline(data, trained.config.lead_words)
    metrics |= {f"lead_{name}": fmean(values) for name, values in baseline.items()} | {
        "test_words": fmean(len(headline.split()) for headline in headlines),
        "test_cut": fmean(one.cut for one in written),
        "test_ppl": perplexity(trained, data),
        **sequence.shared_metrics(trained, fitted),
        **hybrid_metrics(trained.model),
    }
    return sequence.Evaluation(metrics, definitions(metrics), headlines)
