"""What training and evaluation of networks that write sentences have in common: the search, metrics, saved files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from experiments.datasets.text.batches import BucketSampler
from experiments.datasets.text.vocabulary import BEGIN, END
from experiments.files import write_atomic
from experiments.harness.results import write_metrics
from experiments.harness.training import FITTED, Fitted, fit_batches
from experiments.sequence import learned
from experiments.sequence.model import AnyTrained
from models.decoding import Hypothesis, beam_search

__all__ = ["BATCH", "DEFINITIONS", "Evaluation", "search", "shared_metrics", "train_and_save"]

BATCH = 50  # sentences at a time, in evaluation

DEFINITIONS = {
    "test_entropy": "entropy in nats of the mean weights that predict a word piece (prior of an alignment, posterior "
    "mean of Bayesian attention), mean over word pieces",
    "test_posterior_entropy": "entropy in nats of the mean posterior weights, mean over word pieces",
    "test_posterior_gap": "KL in nats from the posterior of an inference network to the exact one, mean over word "
    "pieces: so far is the bound that is trained below the log evidence",
    "test_support": "number of keys with a positive probability in a sparse alignment (in the prior of "
    "sparse_marginal, in the posterior of sparse_enum), mean over word pieces",
    **learned.DEFINITIONS,
    **FITTED,
}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a trained network, what they mean, and the sentences that it wrote of the test data."""

    metrics: dict[str, float]
    definitions: dict[str, str]
    sentences: list[str]


def search(trained: AnyTrained, source: Tensor, mask: Tensor, **options: Any) -> list[Hypothesis]:
    """The best sentence for each source by beam search, with the network's options unless told otherwise."""
    config = trained.config
    options = {"beam": config.beam, "no_repeat": config.no_repeat, "inference": trained.inference()} | options
    found = beam_search(
        trained.model, source, mask, begin=BEGIN, end=END, length_penalty=config.length_penalty, alignments=False,
        **options,
    )  # fmt: skip
    return [best for best, *_ in found]


def shared_metrics(trained: Any, fitted: Fitted) -> dict[str, float]:
    """How the training went, and how large the network is."""
    perplexity = math.exp(fitted.history[fitted.best_epoch]["val_loss"])
    return {"val_ppl": perplexity, **fitted.metrics, "parameters": trained.parameters}


def train_and_save(
    trained: Any,
    folder: Path,
    train_data: Any,
    val_data: Any,
    *,
    sampler: BucketSampler,
    evaluate: Callable[[Fitted], Evaluation],
    file: str,
    written: Sequence[Tensor] | None = None,
) -> dict[str, float]:
    """Train on the batches of a sampler, evaluate, write metrics.json and the file of sentences; the metrics.

    The unigram model counts the ids of the sentences ``written``, all targets of the training when omitted.
    """
    config = trained.config
    in_order = BucketSampler(val_data.lengths, sentences=config.batch_size, shuffle=False)
    # batch_size=None: what a sampler yields, a list of places, is the index
    samplers = ((train_data, sampler), (val_data, in_order))
    loaders = [DataLoader(data, sampler=some, batch_size=None) for data, some in samplers]
    evaluation = evaluate(fit_batches(config, trained.module, *loaders, folder=folder, patience=config.patience))
    lines = "".join(f"{line}\n" for line in evaluation.sentences)
    write_atomic(folder / file, lambda file: file.write(lines.encode()))
    counted = train_data.targets if written is None else written
    unigram = learned.unigram_perplexity(counted, val_data.targets, vocabulary=len(trained.vocabulary))
    metrics = evaluation.metrics | {"val_ppl_unigram": unigram} | learned.most_frequent(evaluation.sentences)
    write_metrics(folder, metrics, learned.DEFINITIONS | evaluation.definitions)
    return metrics
