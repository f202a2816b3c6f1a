"""Pretraining: a small Transformer encoder as a masked language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from experiments.datasets.text.batches import batch_loader
from experiments.datasets.text.glue import load_sst2
from experiments.datasets.text.masked_text import EpochSampler, MaskedText, encode_sentences, load_english
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import user_errors
from experiments.harness.training import Fitted, fit_batches
from experiments.pretrain.config import FinetuneConfig, PretrainConfig
from experiments.pretrain.finetune import SST2Task
from experiments.pretrain.model import TrainedEncoder, build, definitions, evaluate, load_vocabulary
from experiments.run import Task, run, run_and_show

Sentences = Mapping[str, Sequence[str]]  # by split


class PretrainTask(Task[PretrainConfig, Sentences, TrainedEncoder]):
    """Hidden word pieces of sentences."""

    config = PretrainConfig
    script = "experiments.pretrain"

    def folder(self, config: PretrainConfig) -> str:
        return f"pretrain/{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}"

    def planned(self, config: PretrainConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: PretrainConfig) -> Sentences:
        if config.finetune_epochs:
            load_sst2(data_root=config.data_root)
        return load_english(config.dataset, limit=config.sentences, data_root=config.data_root)

    def build(self, config: PretrainConfig, data: Sentences, folder: Path) -> TrainedEncoder:  # noqa: ARG002
        return build(config, load_vocabulary(config, folder))

    def restore(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedEncoder, data: Sentences, folder: Path) -> Fitted:
        config, vocabulary = trained.config, trained.vocabulary
        loaders = []
        for split in ("train", "val"):
            with user_errors(ValueError):
                rows = encode_sentences(data[split], vocabulary, length=config.length)
            text = MaskedText(rows, vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            order = {"seed": config.seed} if split == "train" else {"shuffle": False}
            loaders.append(batch_loader(text, EpochSampler(rows, sentences=config.batch_size, **order)))
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.max_epochs)

    def evaluate(
        self, trained: TrainedEncoder, data: Sentences, fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        metrics, config = evaluate(trained, fitted), trained.config
        if config.finetune_epochs:
            for name, scratch in (("sst2", False), ("scratch", True)):
                # whatever is there may have begun with other weights
                how = config.for_runs() | {"resume": False, "overwrite": True}
                finetuning = FinetuneConfig(
                    **how, run=folder, scratch=scratch, seed=config.seed, max_epochs=config.finetune_epochs,
                    num_samples=config.num_samples, out=folder / name,
                )  # fmt: skip
                metrics[f"{name}_accuracy"] = run(SST2Task(), finetuning)["test_accuracy"]
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)


train = partial(run_and_show, PretrainTask())
