"""Translation with a latent alignment: train a network, evaluate it, draw the first alignments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from experiments.datasets.places import SPLITS
from experiments.datasets.text.batches import BucketSampler, EncodedText, train_tokenizer
from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.align import SAMPLES, aligned_pairs, alignment_views, write_alignments
from experiments.nmt.config import TranslationConfig
from experiments.nmt.evaluation import evaluate, foreign_texts, measured
from experiments.nmt.model import Trained, build, load_text, load_trained
from experiments.run import run_and_show
from experiments.sequence.evaluation import Encoded, SequenceTask
from experiments.sequence.model import run_vocabulary

Texts = dict[str, ParallelText]


class TranslationTask(SequenceTask[TranslationConfig, Texts, Trained]):
    """Translations of sentences."""

    config = TranslationConfig
    script = "experiments.nmt"
    file = "translations.txt"

    def folder(self, config: TranslationConfig) -> str:
        return f"nmt/{config.dataset}-{config.guide}-{config.seed}"

    def load(self, config: TranslationConfig) -> Texts:
        texts = {split: load_text(config, split) for split in SPLITS if config.test or split != "test"}
        if config.progress and texts["train"].skipped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in texts["train"].skipped.items())
            print(f"training text: {len(texts['train'])} pairs; left out in reading: {reasons}", file=sys.stderr)
        return texts | foreign_texts(config, config.out_of_domain)

    def build(self, config: TranslationConfig, data: Texts, folder: Path) -> Trained:
        texts = [*data["train"].source, *data["train"].target]
        return build(
            config, run_vocabulary(folder, config.init_from, lambda: train_tokenizer(texts, size=config.vocabulary))
        )

    def encode(self, trained: Trained, data: Texts) -> Encoded:
        train, val = (EncodedText(data[split], trained.vocabulary) for split in ("train", "val"))
        sampler = BucketSampler(train.lengths, sentences=trained.config.batch_size, seed=trained.config.seed)
        return Encoded(train, val, sampler, train.targets)

    def scores(self, trained: Trained, data: Texts) -> tuple[dict[str, float], list[str]]:
        sizes = {"train_pairs": len(data["train"]), "train_left_out": sum(data["train"].skipped.values())}
        if not trained.config.test:
            return dict[str, float](sizes), []
        metrics, translations = evaluate(trained, data["test"])
        if pairs := trained.config.selective_pairs:
            elsewhere: Texts = {name: data[name] for name in trained.config.out_of_domain}
            metrics |= measured(trained, data["test"], elsewhere, pairs)
        return metrics | sizes, translations

    def show(self, config: TranslationConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        trained = load_trained(folder, device=config.device)
        text = load_text(config, "test" if config.test else "val").first(10)
        views = alignment_views({config.guide: aligned_pairs(trained, text, num_samples=SAMPLES)}, text)
        print(write_alignments(folder / "figures" / "alignments.html", views, title=f"{config.dataset}: sentences"))


train = partial(run_and_show, TranslationTask())
