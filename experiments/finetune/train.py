"""Fine-tune a pretrained transformer on a task of GLUE."""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.text.glue import GLUE, LabelledPairs, load_glue
from experiments.files import user_errors
from experiments.finetune.config import GlueConfig
from experiments.finetune.data import EncodedPairs, noisy_labels, share_of
from experiments.finetune.evaluation import definitions, evaluate, kinds, outputs_of, save_predictions
from experiments.finetune.model import FineTuned, build
from experiments.finetune.out_of_domain import foreign_parts
from experiments.finetune.pretrained import load_tokenizer
from experiments.finetune.training import check_model, drop_weights, fit_scored, run_name, training_metrics
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_metrics
from experiments.harness.training import Fitted
from experiments.report.tables import metrics_table

__all__ = ["GlueConfig", "run", "run_and_show", "run_folder"]


def run_folder(config: GlueConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "finetune", f"{config.task}-{run_name(config)}")


@exclusive
def run(config: GlueConfig) -> dict[str, float]:
    """Fine-tune, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json, which says what they are.

    Raises:
        UserError: Data, model, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    check_model(config)
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        texts: dict[str, LabelledPairs] = dict(load_glue(config.task, data_root=config.data_root))
        foreign = foreign_parts(config)
        open_run(folder, config)
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    with user_errors(ValueError, OSError):
        train, noisy = training_part(config, texts["train"])
        texts = texts | {"train": train} | foreign
        tokenizer = load_tokenizer(config.model)
        data = {part: EncodedPairs(text, tokenizer, length=config.length) for part, text in texts.items()}
        trained = build(config, lengths=data["train"].lengths)
    loaders = (
        data["train"].loader(sentences=config.batch_size, seed=config.seed),
        data["val"].loader(sentences=64, shuffle=False),
    )
    fitted = fit_scored(config, trained, *loaders, folder=folder)
    metrics = _evaluated(trained, data, fitted, folder) | {"train_examples": len(train), "noisy_labels": noisy}
    write_metrics(folder, metrics, definitions(metrics))
    drop_weights(config, folder)
    return metrics


def training_part(config: GlueConfig, text: LabelledPairs) -> tuple[LabelledPairs, int]:
    """The examples to train on, with noise in their labels if there is to be any, and how many labels that changed."""
    share = config.train_share
    chosen = text.select(share_of(len(text), share, seed=config.seed)) if share < 1 else text
    classes = len(GLUE[config.task].classes)
    labels = noisy_labels(chosen.labels, config.label_noise, classes=classes, seed=config.seed)
    changed = round(config.label_noise * len(chosen))
    return LabelledPairs(chosen.first, chosen.second, labels), changed


def _evaluated(trained: FineTuned, data: dict[str, EncodedPairs], fitted: Fitted, folder: Path) -> dict[str, float]:
    config = trained.config
    parts = ("val", "test", *config.out_of_domain)
    outputs = {
        kind: {part: outputs_of(trained, data[part], kind, num_samples=config.num_samples) for part in parts}
        for kind in kinds(config.guide)
    }
    labels = {part: data[part].labels for part in ("val", "test")}
    save_predictions(folder / "predictions.npz", outputs, labels)
    return evaluate(trained, outputs, labels) | training_metrics(trained, fitted)


def run_and_show(config: GlueConfig) -> None:
    """The script: table on the terminal."""
    print(f"{metrics_table(run(config))}\n\nsaved in {run_folder(config)}")
