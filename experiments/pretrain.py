"""Pretrain a small Transformer encoder as a masked language model, with softmax, doubly normalised or hybrid attention.

python -m experiments.pretrain --dataset english --normalizer hybrid --guide weibull --data-root DIR --out RUN
"""

from __future__ import annotations

import sys

from experiments.cli import run_script

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    sys.exit(
        run_script(
            "experiments.pretrain_config:PretrainConfig",
            "experiments.pretrain:_run_and_show",
            name="experiments.pretrain",
        )
    )

from pathlib import Path

from experiments.datasets.masked_text import EpochSampler, MaskedText, encode_sentences, load_english, masked_loader
from experiments.figures import save
from experiments.pretrain_config import PretrainConfig
from experiments.pretrain_evaluation import definitions, evaluate
from experiments.pretrain_figures import hybrid_curves, loss_curves, mass_histogram
from experiments.results import (
    exclusive,
    metrics_table,
    open_run,
    read_metrics,
    user_errors,
    write_environment,
    write_metrics,
)
from experiments.text_model import build, load_vocabulary
from experiments.training import fit_batches

__all__ = ["PretrainConfig", "run", "run_folder"]


def run_folder(config: PretrainConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "pretrain", f"{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}")


@exclusive
def run(config: PretrainConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json, which says what they are.

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
        rows = {
            split: encode_sentences(sentences, vocabulary, length=config.length) for split, sentences in texts.items()
        }
        data = {
            split: MaskedText(rows[split], vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            for split in ("train", "val")
        }
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    write_environment(folder, trained.device)
    sampler = EpochSampler(rows["train"], sentences=config.batch_size, seed=config.seed)
    fitted = fit_batches(
        config,
        trained.module,
        masked_loader(data["train"], sampler),
        masked_loader(data["val"], EpochSampler(rows["val"], sentences=config.batch_size, shuffle=False)),
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


def _run_and_show(config: PretrainConfig) -> None:
    """The script: table on the terminal."""
    metrics, folder = run(config), run_folder(config)
    print(metrics_table(metrics))
    print(f"\nsaved in {folder}; fine-tune it: python -m experiments.finetune sst2 --init-from {folder}")
