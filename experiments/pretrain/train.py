"""Pretraining of a small Transformer encoder with softmax, doubly normalised or hybrid attention."""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.text.batches import batch_loader
from experiments.datasets.text.masked_text import EpochSampler, MaskedText, encode_sentences, load_english
from experiments.files import user_errors
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_metrics
from experiments.harness.training import fit_batches
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.evaluation import definitions, evaluate
from experiments.pretrain.figures import hybrid_curves, loss_curves, mass_histogram
from experiments.pretrain.model import build, load_vocabulary
from experiments.report.figures import save
from experiments.report.tables import metrics_table

__all__ = ["PretrainConfig", "run", "run_and_show", "run_folder"]


def run_folder(config: PretrainConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "pretrain", f"{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}")


@exclusive
def run(config: PretrainConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        texts = load_english(config.dataset, limit=config.sentences, data_root=config.data_root)
        open_run(folder, config)
        vocabulary = load_vocabulary(config, folder)
        trained = build(config, vocabulary)
        rows = {split: encode_sentences(text, vocabulary, length=config.length) for split, text in texts.items()}
        data = {
            split: MaskedText(rows[split], vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            for split in ("train", "val")
        }
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    sampler = EpochSampler(rows["train"], sentences=config.batch_size, seed=config.seed)
    fitted = fit_batches(
        config,
        trained.module,
        batch_loader(data["train"], sampler),
        batch_loader(data["val"], EpochSampler(rows["val"], sentences=config.batch_size, shuffle=False)),
        folder=folder,
        patience=config.max_epochs,
    )
    metrics, masses = evaluate(trained, fitted)
    name = f"{config.normalizer}, {config.guide}"
    save(loss_curves({name: [fitted.history]}), folder / "figures" / "loss.png")
    save(mass_histogram({name: masses}), folder / "figures" / "key_mass.png")
    if config.normalizer == "hybrid":
        save(hybrid_curves({name: [fitted.history]}, start=config.hybrid_share), folder / "figures" / "hybrid.png")
    write_metrics(folder, metrics, definitions(metrics))
    return metrics


def run_and_show(config: PretrainConfig) -> None:
    """The script: table on the terminal."""
    metrics, folder = run(config), run_folder(config)
    print(metrics_table(metrics))
    print(f"\nsaved in {folder}; fine-tune it: python -m experiments.finetune sst2 --init-from {folder}")
