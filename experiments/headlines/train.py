"""Headlines by a Transformer with latent attention: train a network, and judge what it writes and predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics.functional.text import rouge_score
from tqdm import tqdm

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.headlines import HeadlineText, lead
from experiments.datasets.text.vocabulary import BEGIN, END, Vocabulary
from experiments.files import read_text, write_text
from experiments.harness.results import hybrid_metrics
from experiments.harness.training import FITTED, Fitted, fit_batches
from experiments.headlines.config import HeadlineConfig
from experiments.headlines.model import (
    LeadSampler,
    TrainedWriter,
    TrainingPairs,
    build,
    encoded,
    first_headlines,
    load_texts,
    load_vocabulary,
    target_log_probs,
)
from experiments.report.tables import metrics_table
from experiments.run import Task, run_and_show
from experiments.sequence import learned
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import model_arguments
from models.decoding import search_words
from pyro_attention import Soft, predict

SUMMARIES = "summaries.txt"
_ROUGE = {
    "rouge_1": ("rouge1", "words"),
    "rouge_2": ("rouge2", "pairs of words"),
    "rouge_l": ("rougeL", "the longest common subsequence of words"),
}  # with torchmetrics' names
_DEFINITIONS = {
    **{
        f"{written}_{name}": f"ROUGE by torchmetrics, F-measure of {what}, without stemming, in small letters, of "
        f"letters and digits alone; of several references the best; mean over texts, times 100; {whose}"
        for written, whose in (("test", "headlines of beam search"), ("lead", "the first words of the texts"))
        for name, (_, what) in _ROUGE.items()
    },
    "test_words": "mean number of words of the headlines of beam search",
    "test_cut": "share of the headlines of beam search that had not ended at the largest length",
    "test_ppl": "perplexity per word piece of the first headline of every test text: mean probability over posterior "
    "samples (num_samples of the configuration); for soft plain",
    "val_ppl": "the same of the validation texts at the best epoch, attention at its mean",
    **learned.DEFINITIONS,
    **FITTED,
}
_HYBRID = "share of doubly normalised attention in this layer and head of the encoder, at the best epoch"


class HeadlineTask(Task[HeadlineConfig, Mapping[str, HeadlineText], TrainedWriter]):
    """Headlines of texts."""

    config = HeadlineConfig
    script = "experiments.headlines"

    def folder(self, config: HeadlineConfig) -> str:
        return f"headlines/{config.normalizer}-{config.guide}-{config.seed}"

    def planned(self, config: HeadlineConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: HeadlineConfig) -> Mapping[str, HeadlineText]:
        return load_texts(config)

    def build(self, config: HeadlineConfig, data: Mapping[str, HeadlineText], folder: Path) -> TrainedWriter:
        return build(config, load_vocabulary(config, folder, data["train"]))

    def restore(self, config: HeadlineConfig, folder: Path) -> TrainedWriter:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedWriter, data: Mapping[str, HeadlineText], folder: Path) -> Fitted:
        config = trained.config
        pairs = TrainingPairs(data["train"], trained.vocabulary, config)
        val = first_headlines(data["val"], trained.vocabulary, config)
        sampler = LeadSampler(pairs, lead_epochs=config.lead_epochs, sentences=config.batch_size, seed=config.seed)
        in_order = BucketSampler(val.lengths, sentences=config.batch_size, shuffle=False)
        loaders = batch_loader(pairs, sampler), batch_loader(val, in_order)
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.patience)

    def evaluate(
        self, trained: TrainedWriter, data: Mapping[str, HeadlineText], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        config, test = trained.config, data["test"]
        written = write_headlines(trained, test.texts, progress=config.progress)
        headlines = [one.text for one in written]
        write_text(folder / SUMMARIES, "".join(f"{headline}\n" for headline in headlines))
        pairs = TrainingPairs(data["train"], trained.vocabulary, config)
        said = pairs.targets[: sum(pairs.counts)], first_headlines(data["val"], trained.vocabulary, config).targets
        metrics = {f"test_{name}": fmean(values) for name, values in rouge(headlines, test.headlines).items()}
        metrics |= {f"lead_{name}": fmean(values) for name, values in lead_baseline(test, config.lead_words).items()}
        return metrics | {
            "test_words": fmean(len(headline.split()) for headline in headlines),
            "test_cut": fmean(one.cut for one in written),
            "test_ppl": perplexity(trained, test),
            "val_ppl": math.exp(fitted.history[fitted.best_epoch]["val_loss"]),
            "val_ppl_unigram": learned.unigram_perplexity(*said, vocabulary=len(trained.vocabulary)),
            **learned.most_frequent(headlines),
            **hybrid_metrics(trained.model),
        }

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return {name: _HYBRID if name.startswith("hybrid_") else _DEFINITIONS[name] for name in metrics}

    def show(self, config: HeadlineConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(metrics_table(metrics))
        learned.print_verdict(metrics)
        test = load_texts(config)["test"]
        for text, people, network in list(zip(test.texts, test.headlines, summaries(folder), strict=True))[:3]:
            print(f"\ntext:      {text}\npeople:    {people[0]}\nnetwork:   {network}")


def summaries(folder: Path) -> list[str]:
    """The headlines that a finished run has written of the test texts, in their order."""
    return read_text(folder / SUMMARIES, "remove the folder to train again").split("\n")[:-1]


train = partial(run_and_show, HeadlineTask())


# what it writes and predicts


def rouge(headlines: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """F-measures of every headline, times 100: ``rouge_1``, ``rouge_2`` and ``rouge_l``.

    Example:
        >>> found = rouge(["police kill the gunman"], [["police killed the gunman"]])
        >>> {name: round(values[0], 1) for name, values in found.items()}
        {'rouge_1': 75.0, 'rouge_2': 33.3, 'rouge_l': 75.0}

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, sections 2 and 3.
    """
    keys = tuple(theirs for theirs, _ in _ROUGE.values())
    scores = [
        rouge_score([headline], [list(wanted)], rouge_keys=keys)
        for headline, wanted in zip(headlines, references, strict=True)
    ]
    return {name: [100 * one[f"{theirs}_fmeasure"].item() for one in scores] for name, (theirs, _) in _ROUGE.items()}


def lead_baseline(data: HeadlineText, words: int) -> dict[str, list[float]]:
    """:func:`rouge` of the first words of every text."""
    return rouge([lead(text, words) for text in data.texts], data.headlines)


class Written(NamedTuple):
    """A headline that the network wrote."""

    text: str
    cut: bool  # it had not ended at the largest length


def _batches(trained: TrainedWriter, pairs: EncodedText) -> Iterator[Batch]:
    """Pairs of similar lengths, on the network's device."""
    for batch in batch_loader(pairs, BucketSampler(pairs.lengths, sentences=BATCH, shuffle=False)):
        yield batch.to(trained.device)


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
    soft = isinstance(trained.guide.family("layers.0"), Soft)
    total, count = 0.0, 0
    for batch in _batches(trained, first_headlines(data, trained.vocabulary, trained.config)):
        log_probs = target_log_probs(trained.model, batch) if soft else _mean_log_probs(trained, batch)
        total, count = total - log_probs.double().sum().item(), count + len(log_probs)
    return math.exp(total / count)


def _mean_log_probs(trained: TrainedWriter, batch: Batch) -> Tensor:
    """Logarithms of the mean probabilities, over posterior samples, of the word pieces of a batch."""
    said = batch.target_out[batch.target_mask]
    found = predict(
        trained.guide, *model_arguments(batch), num_samples=trained.config.num_samples, noise="attention",
        seed=trained.config.seed, transform=lambda features: trained.model.likelihood(features).log_prob(said).exp(),
    )  # fmt: skip
    return found.mean.log()
