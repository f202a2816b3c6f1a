"""Headlines by a Transformer with latent attention: texts, network, training, scores, and the command for files."""

from __future__ import annotations

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
from experiments.report.terminal import wrapped
from experiments.run import BAD_INPUT, Task, load_trained, run_folder, show_run
from experiments.sequence import evaluation
from experiments.sequence.model import (
    Encoded,
    TrainedText,
    mean_perplexity,
    model_arguments,
    run_vocabulary,
    text_encoder,
)
from experiments.sequence.run import train_and_score
from experiments.sequence.text_files import read_source
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

# texts and headlines as ids, and the network


def load_texts(config: HeadlineConfig) -> dict[str, HeadlineText]:
    """Load all splits; the training split has as many texts as configured."""
    files = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
    texts = load_headlines(data_root=config.data_root, files=files)
    return texts | {"train": texts["train"].select([*range(len(texts["train"]))][: config.train_texts])}


def encoded(
    texts: Sequence[str], headlines: Sequence[str], vocabulary: Vocabulary, config: HeadlineConfig
) -> EncodedText:
    """Return pairs of a text and a headline as ids, both cut at the largest lengths of the network."""
    pairs = EncodedText(ParallelText(list(texts), list(headlines), "headlines", ("text", "headline")), vocabulary)
    pairs.sources = [ids[: config.length] for ids in pairs.sources]
    pairs.targets = [ids[: config.headline_length - 1] for ids in pairs.targets]
    return pairs


def first_headlines(data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> EncodedText:
    """Return pairs of every text and its first headline."""
    return encoded(data.texts, [headlines[0] for headlines in data.headlines], vocabulary, config)


class TrainingPairs(EncodedText):
    """Pairs of every text and each of its headlines, followed by pairs of every text and its first words.

    Attributes:
        counts: Number of headlines of each text.
    """

    def __init__(self, data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> None:
        self.counts = [len(headlines) for headlines in data.headlines]
        texts = [text for text, count in zip(data.texts, self.counts, strict=True) for _ in range(count)]
        headlines = [headline for of_text in data.headlines for headline in of_text]
        leads = [lead(text, config.lead_words) for text in data.texts]
        pairs = encoded([*texts, *data.texts], [*headlines, *leads], vocabulary, config)
        self.sources, self.targets = pairs.sources, pairs.targets


class LeadSampler(ChoiceSampler):
    """Sampler of every text once an epoch, in the first epochs with its first words, then with one of its headlines."""

    def __init__(self, data: TrainingPairs, *, lead_epochs: int, **options: Any) -> None:
        super().__init__(data.lengths, data.counts, **options)
        self.lead_epochs = lead_epochs

    def chosen(self, epoch: int) -> np.ndarray:
        leads: np.ndarray = self.counts.sum() + np.arange(len(self.counts))
        return leads if epoch < self.lead_epochs else super().chosen(epoch)


def target_log_probs(model: HeadlineWriter, batch: Batch) -> Tensor:
    """Return the log probabilities of all word pieces of a batch, with the attention at its posterior mean."""
    memory = model.encoder(batch.source, batch.source_mask)
    features = model.decode(memory, batch.source_mask, batch.target_in, batch.target_mask)
    return model.likelihood(features[batch.target_mask]).log_prob(batch.target_out[batch.target_mask])


class HeadlineTraining(OneCycleTraining):
    """Lightning module that trains a :class:`HeadlineWriter`."""

    def arguments(self, batch: Batch) -> Sequence[Tensor]:
        return model_arguments(batch)

    def observations(self, batch: Batch) -> int:
        return int(batch.target_mask.sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": -target_log_probs(self.objective.model, batch).mean()}


TrainedWriter = TrainedText[HeadlineConfig, HeadlineWriter]


def load_vocabulary(config: HeadlineConfig, folder: Path, data: HeadlineText) -> Vocabulary:
    """Return the vocabulary in the folder of a run, which is trained first if it is missing."""
    texts = [*data.texts, *(headline for headlines in data.headlines for headline in headlines)]
    return run_vocabulary(folder, None, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: HeadlineConfig, vocabulary: Vocabulary) -> TrainedWriter:
    """Build network, guide and objective, untrained."""
    scheme, latent = config.build_scheme(), config.decoder == "latent"
    sizes = {"layers": config.layers, "positions": config.headline_length, "dropout": config.dropout}

    def build_model(prior: PriorFactory) -> HeadlineWriter:
        # a contextual prior of soft attention would have parameters that are never trained
        decoder_prior: PriorFactory = prior if latent else lambda *_: FixedGammaPrior()
        return HeadlineWriter(text_encoder(config, vocabulary, prior), **sizes, prior=decoder_prior)

    model = seeded_build(build_model, scheme.prior, seed=config.seed)
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

    def main_metrics(self, config: HeadlineConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return ("test_rouge_1", "test_rouge_2", "test_rouge_l", "test_ppl", "test_words", "val_ppl")

    def restore(self, config: HeadlineConfig, folder: Path) -> TrainedWriter:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def encode(self, trained: TrainedWriter, data: Mapping[str, HeadlineText]) -> Encoded:
        """Return training and validation data as ids."""
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
                trained = build(config, load_vocabulary(config, run.begin(), data["train"]))
            encoded = self.encode(trained, data)
            return train_and_score(
                run, trained, encoded, lambda: self.scores(trained, data), file=_SUMMARIES, patience=config.max_epochs
            )

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return evaluation.training_warnings(metrics)

    def scores(self, trained: TrainedWriter, data: Mapping[str, HeadlineText]) -> tuple[dict[str, float], list[str]]:
        """Return the metrics on validation and test texts, and the headlines that the network writes for the latter."""
        config, test = trained.config, data["test"]
        written = {
            split: write_headlines(trained, data[split].texts, progress=config.progress) for split in ("val", "test")
        }
        texts = {split: [headline.text for headline in of_split] for split, of_split in written.items()}
        metrics = {
            f"{split}_{name}": fmean(values)
            for split in texts
            for name, values in rouge(texts[split], data[split].headlines).items()
        }
        metrics |= {f"lead_{name}": fmean(values) for name, values in lead_baseline(test, config.lead_words).items()}
        metrics |= {
            "test_words": fmean(len(headline.split()) for headline in texts["test"]),
            "test_cut": fmean(headline.cut for headline in written["test"]),
            "test_ppl": perplexity(trained, test),
        }
        return metrics | hybrid_metrics(trained.model), texts["test"]

    def show(self, config: HeadlineConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        test = load_texts(config)["test"]
        for text, references, headline in list(zip(test.texts, test.headlines, summaries(folder), strict=True))[:3]:
            lines = f"text:      {text}\nreference: {references[0]}\nnetwork:   {headline}"
            print(f"\n{wrapped(lines, indent=11 * ' ')}")


def summaries(folder: Path) -> list[str]:
    """Read the headlines that a finished run has written for the test texts, in their order."""
    return text_lines(folder / _SUMMARIES, "remove the folder to train again")


def train(config: HeadlineConfig) -> None:
    """Train a network that writes headlines, and print its metrics."""
    task = HeadlineTask()
    show_run(task, config, task.run(config))


# scores and headlines


def rouge(headlines: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Compute the ROUGE F-measures of every headline, times 100: ``rouge_1``, ``rouge_2`` and ``rouge_l``.

    Args:
        headlines: A headline of each text.
        references: Reference headlines of each text.

    Example:
        >>> scores = rouge(["police kill the gunman"], [["police killed the gunman"]])
        >>> {name: round(values[0], 1) for name, values in scores.items()}
        {'rouge_1': 75.0, 'rouge_2': 33.3, 'rouge_l': 75.0}

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, sections 2 and 3.
    """
    keys = tuple(_ROUGE.values())
    scores = [
        rouge_score([headline], [list(of_text)], rouge_keys=keys)
        for headline, of_text in zip(headlines, references, strict=True)
    ]
    return {name: [100 * score[f"{key}_fmeasure"].item() for score in scores] for name, key in _ROUGE.items()}


def lead_baseline(data: HeadlineText, words: int) -> dict[str, list[float]]:
    """Compute :func:`rouge` of the first ``words`` words of every text."""
    return rouge([lead(text, words) for text in data.texts], data.headlines)


class Written(NamedTuple):
    """Headline that a network wrote.

    Attributes:
        text: The headline.
        cut: Whether it was cut at the largest length.
    """

    text: str
    cut: bool


@torch.no_grad()
def write_headlines(trained: TrainedWriter, texts: Sequence[str], *, progress: bool = False) -> list[Written]:
    """Write headlines of texts by beam search, in their order, with the attention at its posterior mean."""
    config, model, headlines = trained.config, trained.model.eval(), dict[int, Written]()
    pairs = encoded(texts, [""] * len(texts), trained.vocabulary, config)
    with tqdm(total=len(texts), desc="writing headlines", unit="text", disable=not progress) as bar:
        for batch in in_order(pairs, sentences=evaluation.BATCH, device=trained.device):
            best = search_words(
                model.start(batch.source, batch.source_mask), model.advance, begin=BEGIN, end=END,
                beam=config.beam, max_length=config.headline_length, no_repeat=config.no_repeat,
            )  # fmt: skip
            for index, (hypothesis, *_) in zip(batch.indices.tolist(), best, strict=True):
                text = trained.vocabulary.decode(hypothesis.tokens)
                headlines[index] = Written(text, cut=not hypothesis.finished)
            bar.update(len(batch))
    return [headlines[index] for index in range(len(texts))]


@torch.no_grad()
def perplexity(trained: TrainedWriter, data: HeadlineText) -> float:
    """Return the perplexity per word piece of the first headlines, under the mean over posterior samples."""
    likelihood = trained.module.eval().objective.model.likelihood

    def log_probs(batch: Batch) -> Tensor:
        words = batch.target_out[batch.target_mask]

        def probabilities(features: Tensor) -> Tensor:
            return torch.as_tensor(likelihood(features).log_prob(words).exp())

        return mean_prediction(trained, model_arguments(batch), probabilities).log()

    pairs = first_headlines(data, trained.vocabulary, trained.config)
    return mean_perplexity(in_order(pairs, sentences=evaluation.BATCH, device=trained.device), log_probs)


# the command for files


def summarize_file(config: SummarizeConfig) -> Path:
    """Write a headline for every line of a file, and print where they are; lines left out are named on stderr."""
    saved = saved_config(config.run, HeadlineConfig, script="experiments.headlines", device=config.device)
    trained = load_trained(HeadlineTask(), saved)
    out = config.out or config.file.with_suffix(".headlines")
    source = read_source(config.file, Rules(max_words=1000, words=config.tokenize), out, config.overwrite)
    texts = [plain_words(text) for text in source.sentences]
    headlines = write_headlines(trained, texts, progress=True)
    lines = [join_words(headline.text, config.tokenize) for headline in headlines]
    source.write(lines, [headline.cut for headline in headlines])
    print(f"{len(headlines)} headlines, in lower case, with # for digits: {out}")
    return out
