"""Headlines by a Transformer with latent attention: network, training, what it writes and predicts, and the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.text import rouge_score
from tqdm import tqdm

from experiments.data.text.batches import (
    BEGIN,
    END,
    Batch,
    ChoiceSampler,
    EncodedText,
    Vocabulary,
    in_order,
    train_tokenizer,
)
from experiments.data.text.headlines import HeadlineText, lead, load_headlines, plain_words
from experiments.data.text.parallel_text import ParallelText, Rules
from experiments.data.text.word_rules import join_words
from experiments.files import text_lines, user_errors
from experiments.folder import saved_config
from experiments.headlines.config import HeadlineConfig, SummarizeConfig
from experiments.run import BAD_INPUT, Task, load_trained, run_folder, show_run
from experiments.sequence import evaluation
from experiments.sequence.evaluation import validation_perplexities
from experiments.sequence.model import (
    Encoded,
    TrainedText,
    fit_sequences,
    model_arguments,
    run_vocabulary,
    text_encoder,
)
from experiments.sequence.own_text import read_source, write_lines
from experiments.training import (
    OneCycleTraining,
    PriorFactory,
    hybrid_metrics,
    mean_prediction,
    resolve_device,
    seeded_build,
)
from models.decoding import search_words
from models.headlines import HeadlineWriter
from pyro_attention import AttentionGuide, FixedGammaPrior, Soft

# texts as pairs of ids, and the network


def load_texts(config: HeadlineConfig) -> dict[str, HeadlineText]:
    """The splits, with as many texts as configured."""
    files = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
    found = load_headlines(data_root=config.data_root, files=files)
    counts = {"train": config.train_texts, "val": config.test_texts, "test": config.test_texts}
    return {split: data.kept([*range(len(data))][: counts[split]]) for split, data in found.items()}


def encoded(
    texts: Sequence[str], headlines: Sequence[str], vocabulary: Vocabulary, config: HeadlineConfig
) -> EncodedText:
    """Pairs of a text and a headline, cut off at the lengths that the network has room for."""
    pairs = EncodedText(ParallelText(list(texts), list(headlines), "headlines", ("text", "headline")), vocabulary)
    pairs.sources = [ids[: config.length] for ids in pairs.sources]
    pairs.targets = [ids[: config.headline_length - 1] for ids in pairs.targets]
    return pairs


def first_headlines(data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> EncodedText:
    """Every text with its first headline."""
    return encoded(data.texts, [headlines[0] for headlines in data.headlines], vocabulary, config)


class TrainingPairs(EncodedText):
    """Every text with each of its headlines, and behind these pairs every text with its first words."""

    def __init__(self, data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> None:
        self.counts = [len(headlines) for headlines in data.headlines]  # of every text
        texts = [text for text, count in zip(data.texts, self.counts, strict=True) for _ in range(count)]
        headlines = [headline for some in data.headlines for headline in some]
        leads = [lead(text, config.lead_words) for text in data.texts]
        pairs = encoded([*texts, *data.texts], [*headlines, *leads], vocabulary, config)
        self.sources, self.targets = pairs.sources, pairs.targets


class LeadSampler(ChoiceSampler):
    """Every text once an epoch: in the first epochs with its first words, then with one of its headlines."""

    def __init__(self, data: TrainingPairs, *, lead_epochs: int, **options: Any) -> None:
        super().__init__(data.lengths, data.counts, **options)
        self.lead_epochs = lead_epochs

    def chosen(self, epoch: int) -> np.ndarray:
        leads: np.ndarray = self.counts.sum() + np.arange(len(self.counts))
        return leads if epoch < self.lead_epochs else super().chosen(epoch)


def target_log_probs(model: HeadlineWriter, batch: Batch) -> Tensor:
    """Log probabilities of all word pieces of a batch, the attention at its posterior mean."""
    memory = model.encoder(batch.source, batch.source_mask)
    features = model.decode(memory, batch.source_mask, batch.target_in, batch.target_mask)
    return model.likelihood(features[batch.target_mask]).log_prob(batch.target_out[batch.target_mask])


class HeadlineTraining(OneCycleTraining):
    """Trains a :class:`HeadlineWriter`."""

    def arguments(self, batch: Batch) -> Sequence[Tensor]:
        return model_arguments(batch)

    def observations(self, batch: Batch) -> int:
        return int(batch.target_mask.sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": -target_log_probs(self.objective.model, batch).mean()}


TrainedWriter = TrainedText[HeadlineConfig, HeadlineWriter]


def load_vocabulary(config: HeadlineConfig, folder: Path, data: HeadlineText) -> Vocabulary:
    """The vocabulary in the folder; else a new one, which is then put there."""
    texts = [*data.texts, *(headline for headlines in data.headlines for headline in headlines)]
    return run_vocabulary(folder, None, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: HeadlineConfig, vocabulary: Vocabulary) -> TrainedWriter:
    """Network and guide, untrained."""
    scheme, latent = config.build_scheme(), config.decoder == "latent"
    sizes = {"layers": config.layers, "positions": config.headline_length, "dropout": config.dropout}

    def make(prior: PriorFactory) -> HeadlineWriter:
        # a contextual prior of soft attention would have parameters that nothing trains
        decoder: PriorFactory = prior if latent else lambda *_: FixedGammaPrior()
        return HeadlineWriter(text_encoder(config, vocabulary, prior), **sizes, prior=decoder)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    guide = AttentionGuide(model, {"layers.*": scheme.family, "decoder.*": scheme.family if latent else Soft()})
    module = HeadlineTraining(model, guide, scheme.objective(), learning_rate=config.learning_rate)
    return TrainedWriter(config, module.to(resolve_device(config.device)), vocabulary)


# training

_SUMMARIES = "summaries.txt"
_ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # torchmetrics' names


class HeadlineTask(Task[HeadlineConfig, TrainedWriter]):
    """Headlines of texts."""

    config = HeadlineConfig
    script = "experiments.headlines"

    def folder(self, config: HeadlineConfig) -> str:
        return f"headlines/{config.normalizer}-{config.guide}-{config.seed}"

    def restore(self, config: HeadlineConfig, folder: Path) -> TrainedWriter:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def encode(self, trained: TrainedWriter, data: Mapping[str, HeadlineText]) -> Encoded:
        config = trained.config
        pairs = TrainingPairs(data["train"], trained.vocabulary, config)
        val = first_headlines(data["val"], trained.vocabulary, config)
        sampler = LeadSampler(pairs, lead_epochs=config.lead_epochs, sentences=config.batch_size, seed=config.seed)
        return Encoded(pairs, val, sampler, pairs.targets[: sum(pairs.counts)])

    def run(self, config: HeadlineConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = load_texts(config)
                folder = run.begin()
                trained = build(config, load_vocabulary(config, folder, data["train"]))
            encoded = self.encode(trained, data)
            fitted = fit_sequences(trained, encoded, folder)
            metrics, headlines = self.scores(trained, data)
            write_lines(folder / _SUMMARIES, headlines)
            return run.finish(metrics | validation_perplexities(trained, encoded, fitted) | fitted.metrics)

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return evaluation.warnings_of(metrics)

    def scores(self, trained: TrainedWriter, data: Mapping[str, HeadlineText]) -> tuple[dict[str, float], list[str]]:
        config, test = trained.config, data["test"]
        written = write_headlines(trained, test.texts, progress=config.progress)
        headlines = [one.text for one in written]
        metrics = {f"test_{name}": fmean(values) for name, values in rouge(headlines, test.headlines).items()}
        metrics |= {f"lead_{name}": fmean(values) for name, values in lead_baseline(test, config.lead_words).items()}
        metrics |= {
            "test_words": fmean(len(headline.split()) for headline in headlines),
            "test_cut": fmean(one.cut for one in written),
            "test_ppl": perplexity(trained, test),
        }
        return metrics | hybrid_metrics(trained.model), headlines

    def show(self, config: HeadlineConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        test = load_texts(config)["test"]
        for text, people, network in list(zip(test.texts, test.headlines, summaries(folder), strict=True))[:3]:
            print(f"\ntext:      {text}\npeople:    {people[0]}\nnetwork:   {network}")


def summaries(folder: Path) -> list[str]:
    """The headlines that a finished run has written of the test texts, in their order."""
    return text_lines(folder / _SUMMARIES, "remove the folder to train again")


def train(config: HeadlineConfig) -> None:
    """Run the command."""
    task = HeadlineTask()
    show_run(task, config, task.run(config))


# what it writes and predicts


def rouge(headlines: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """F-measures of every headline, times 100: ``rouge_1``, ``rouge_2`` and ``rouge_l``.

    Example:
        >>> found = rouge(["police kill the gunman"], [["police killed the gunman"]])
        >>> {name: round(values[0], 1) for name, values in found.items()}
        {'rouge_1': 75.0, 'rouge_2': 33.3, 'rouge_l': 75.0}

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, sections 2 and 3.
    """
    keys = tuple(_ROUGE.values())
    scores = [
        rouge_score([headline], [list(wanted)], rouge_keys=keys)
        for headline, wanted in zip(headlines, references, strict=True)
    ]
    return {name: [100 * one[f"{theirs}_fmeasure"].item() for one in scores] for name, theirs in _ROUGE.items()}


def lead_baseline(data: HeadlineText, words: int) -> dict[str, list[float]]:
    """:func:`rouge` of the first words of every text."""
    return rouge([lead(text, words) for text in data.texts], data.headlines)


class Written(NamedTuple):
    """A headline that the network wrote."""

    text: str
    cut: bool  # it had not ended at the largest length


@torch.no_grad()
def write_headlines(trained: TrainedWriter, texts: Sequence[str], *, progress: bool = False) -> list[Written]:
    """Headlines of texts by beam search, in their order; the attention is at its posterior mean."""
    config, model, found = trained.config, trained.model.eval(), dict[int, Written]()
    pairs = encoded(texts, [""] * len(texts), trained.vocabulary, config)
    with tqdm(total=len(texts), desc="writing headlines", unit="text", disable=not progress) as bar:
        for batch in in_order(pairs, sentences=evaluation.BATCH, device=trained.device):
            best = search_words(
                model.start(batch.source, batch.source_mask), model.advance, begin=BEGIN, end=END,
                beam=config.beam, max_length=config.headline_length, length_penalty=config.length_penalty,
                no_repeat=config.no_repeat,
            )  # fmt: skip
            for place, (one, *_) in zip(batch.indices.tolist(), best, strict=True):
                found[place] = Written(trained.vocabulary.decode(one.tokens), cut=not one.finished)
            bar.update(len(batch))
    return [found[place] for place in range(len(texts))]


@torch.no_grad()
def perplexity(trained: TrainedWriter, data: HeadlineText) -> float:
    """Perplexity per word piece of the first headlines."""
    likelihood, total, count = trained.module.eval().objective.model.likelihood, 0.0, 0
    pairs = first_headlines(data, trained.vocabulary, trained.config)
    for batch in in_order(pairs, sentences=evaluation.BATCH, device=trained.device):
        said = batch.target_out[batch.target_mask]
        probabilities = mean_prediction(
            trained,
            model_arguments(batch),
            lambda features: likelihood(features).log_prob(said).exp(),  # noqa: B023
        )
        total, count = total - probabilities.log().double().sum().item(), count + len(said)
    return math.exp(total / count)


# The command


def summarize_file(config: SummarizeConfig) -> Path:
    """Write the headlines, a line for each of the file, and print where they are; what was left out on stderr."""
    saved = saved_config(config.run, HeadlineConfig, script="experiments.headlines", device=config.device)
    trained = load_trained(HeadlineTask(), saved)
    out = config.out or config.file.with_suffix(".headlines")
    source = read_source(config.file, Rules(max_words=1000, words=config.tokenize), out, config.overwrite)
    texts = [plain_words(text) for text in source.sentences]
    found = write_headlines(trained, texts, progress=True)
    source.write([join_words(one.text, config.tokenize) for one in found], [one.cut for one in found])
    print(f"{len(found)} headlines, in small letters, with # for digits: {out}")
    return out
