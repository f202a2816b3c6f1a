"""Translation with a latent alignment: sentence pairs, network, and training from options to metrics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.data.dataset_names import ParallelName
from experiments.data.storage import SPLITS
from experiments.data.text.batches import BucketSampler, EncodedText, Vocabulary, train_tokenizer
from experiments.data.text.parallel import load_parallel
from experiments.data.text.parallel_text import ParallelText, read_parallel
from experiments.files import UserError, user_errors
from experiments.folder import saved_config
from experiments.nmt.align import SAMPLES, aligned_pairs, alignment_views, write_alignments
from experiments.nmt.config import TranslationConfig
from experiments.nmt.evaluation import evaluate, uncertainty_metrics
from experiments.nmt.texts import tokenized
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.sequence.evaluation import training_warnings
from experiments.sequence.model import Encoded, TrainedSequences, assemble, load_run, run_vocabulary
from experiments.sequence.run import train_and_score
from experiments.training import PriorFactory, seeded_build
from guides.inference_network import AlignmentNetwork
from models.nmt import Translation, TranslationSizes
from models.temporal import TemporalNormalizer

Texts = dict[str, ParallelText]
_LONGEST = 1000  # largest number of words of a validation or test sentence

# data


def load_texts(config: TranslationConfig) -> Texts:
    """Load all splits of the data set, and the test texts of the data sets out of domain, by name.

    Raises:
        UserError: Data sets out of domain are given, and no sentence pairs whose uncertainty is measured.
    """
    if config.out_of_domain and not config.selective_pairs:
        raise UserError(
            f"out_of_domain is {', '.join(config.out_of_domain)}, and selective_pairs is 0, so that nothing would be "
            f"measured; pass the number of test pairs by --selective-pairs, or leave --out-of-domain out"
        )
    texts = {split: load_text(config, split) for split in SPLITS}
    if config.progress and texts["train"].skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in texts["train"].skipped.items())
        print(f"training text: {len(texts['train'])} pairs; left out in reading: {reasons}", file=sys.stderr)
    return texts | foreign_texts(config, config.out_of_domain)


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Load the sentence pairs of a split, "train", "val" or "test", as many as configured.

    Training pairs longer than ``max_words`` are left out. A validation or test sentence is refused only beyond 1000
    words, as in a file that has lost its line ends.

    Raises:
        UserError: Options do not fit the data set.
        ValueError: A line is bad.
        OSError: A file is missing.
    """
    rules: dict[str, Any] = {
        "lowercase": config.lowercase, "skip": config.skip_bad, "words": config.words, "max_words": _LONGEST
    }  # fmt: skip
    if config.words != "none" and tokenized(config):
        raise UserError(f"dataset {config.dataset} is tokenized already; leave out --tokenize {config.words}")
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset != "own":
        languages = {"source": config.source, "target": config.target}
        text = load_parallel(config.dataset, split, **languages, data_root=config.data_root, **rules)
    elif config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    else:
        text = _read_files(config.text, split, config, rules)
    pairs = {"train": config.train_pairs, "test": config.test_pairs}.get(split)
    return text if pairs is None else text.first(pairs)


def _read_files(folder: Path, split: str, config: TranslationConfig, rules: dict[str, Any]) -> ParallelText:
    """Read a split from the files of a folder."""
    languages = (config.source, config.target)
    files = [folder / f"{split}.{language}" for language in languages]
    if split == "train" and not config.skip_bad:
        # long pairs are left out below, but a bad line stops the training
        read_parallel(*files, languages=languages, words=config.words)
    return read_parallel(*files, languages=languages, name=folder.name, **rules)


def foreign_texts(config: TranslationConfig, names: Sequence[ParallelName]) -> dict[str, ParallelText]:
    """Load test texts of data sets that a network was not trained on, read with the options of its training.

    Raises:
        UserError: A data set is that of the training, or cannot be loaded.
    """
    texts: dict[str, ParallelText] = {}
    for name in names:
        if name == config.dataset:
            raise UserError(f"--out-of-domain has {name}, the data set of the training; expected other data sets")
        foreign = replace(config, dataset=name, text=None, test_pairs=None)
        if tokenized(foreign):  # this text is already divided into words
            foreign = replace(foreign, tokenize=None)
        with user_errors(ValueError, OSError):
            texts[name] = load_text(foreign, "test")
    return texts


# network

Trained = TrainedSequences[TranslationConfig, Translation]


def build(config: TranslationConfig, vocabulary: Vocabulary) -> Trained:
    """Build network, guide and objective, untrained or with the weights of ``init_from``."""
    scheme, hidden = config.build_scheme(), config.hidden
    sizes = TranslationSizes(
        embedding=config.embedding, memory=hidden, decoder=config.decoder_width or hidden,
        attention=config.attention_width or hidden, layers=config.layers,
    )  # fmt: skip

    def build_model(prior: PriorFactory) -> Translation:
        normalizer = None
        if config.normalizer != "softmax":
            normalizer = TemporalNormalizer(share=0.5 if config.normalizer == "hybrid" else None)
        return Translation(
            len(vocabulary), len(vocabulary), sizes=sizes, scores=config.scores, dropout=config.dropout,
            init_range=config.init_range,
            input_feed=config.input_feed, prior=prior(sizes.memory, 1), normalizer=normalizer,
        )  # fmt: skip

    model = seeded_build(build_model, scheme.prior, seed=config.seed)
    network = None
    if scheme.amortized:
        network = AlignmentNetwork(
            model.source_embedding, model.target_embedding, hidden=hidden, layers=config.layers,
            dropout=config.dropout,
        )  # fmt: skip
    return assemble(config, scheme, model, network, vocabulary, plateau=0)


def load_trained(folder: Path, *, device: str = "auto") -> Trained:
    """Load the network of a finished run, with the weights of its best epoch.

    Raises:
        UserError: The folder holds no finished translation run.
    """
    # the weights are loaded, so their initial values are not needed
    config = saved_config(folder, TranslationConfig, script="experiments.nmt", device=device, init_from=None)
    return load_run(config, folder, build)


# training


class TranslationTask(Task[TranslationConfig, Trained]):
    """Translation of sentences."""

    config = TranslationConfig
    script = "experiments.nmt"

    def folder(self, config: TranslationConfig) -> str:
        return f"nmt/{config.dataset}-{config.guide}-{config.seed}"

    def main_metrics(self, config: TranslationConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return ("test_ppl", "test_bleu", "test_chrf", "test_posterior_aer", "test_prior_aer", "test_entropy", "val_ppl")

    def run(self, config: TranslationConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                texts = load_texts(config)
                folder = run.begin()
                sentences = [*texts["train"].source, *texts["train"].target]
                vocabulary = run_vocabulary(
                    folder, config.init_from, lambda: train_tokenizer(sentences, size=config.vocabulary)
                )
                trained = build(config, vocabulary)
            train, val = (EncodedText(texts[split], vocabulary) for split in ("train", "val"))
            sampler = BucketSampler(train.lengths, sentences=config.batch_size, seed=config.seed)
            encoded = Encoded(train, val, sampler, train.targets)
            return train_and_score(
                run, trained, encoded, lambda: self.scores(trained, texts),
                file="translations.txt", patience=config.patience,
            )  # fmt: skip

    def restore(self, config: TranslationConfig, folder: Path) -> Trained:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def scores(self, trained: Trained, texts: Texts) -> tuple[dict[str, float], list[str]]:
        """Return the metrics on the test text, and its translations."""
        metrics, translations = evaluate(trained, texts["test"])
        if pairs := trained.config.selective_pairs:
            out_of_domain: Texts = {name: texts[name] for name in trained.config.out_of_domain}
            metrics |= uncertainty_metrics(trained, texts["test"], out_of_domain, pairs)
        sizes = {"train_pairs": len(texts["train"]), "train_left_out": sum(texts["train"].skipped.values())}
        return metrics | sizes, translations

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return training_warnings(metrics)

    def show(self, config: TranslationConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        trained, text = load_trained(folder, device=config.device), load_text(config, "test").first(10)
        views = alignment_views({config.guide: aligned_pairs(trained, text, num_samples=SAMPLES)}, text)
        print(write_alignments(folder / "figures" / "alignments.html", views, title=f"{config.dataset}: sentences"))


def train(config: TranslationConfig) -> None:
    """Train a translation network, and print its metrics."""
    task = TranslationTask()
    show_run(task, config, task.run(config))
