"""What the runs of all tasks of fine-tuning share: their names, their training, and which weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from experiments.files import UserError, user_errors
from experiments.finetune.config import FineTuneOptions
from experiments.finetune.model import Tuned
from experiments.harness.folder import saved_config
from experiments.harness.training import Fitted, fit_batches, load_best
from experiments.harness.weights import remove_weights, weights_file

__all__ = ["check_finished", "check_model", "drop_weights", "fit_scored", "restored", "run_name", "training_metrics"]

Config = TypeVar("Config", bound=FineTuneOptions)
AnyTuned = TypeVar("AnyTuned", bound=Tuned[Any, Any])


def run_name(config: FineTuneOptions) -> str:
    """Model, row and seed, as they stand in the name of a run's folder."""
    row = config.guide if config.guide == "soft" else f"{config.guide}-{config.prior}"
    return f"{Path(config.model).name}-{row}-{config.seed}"


def check_model(config: FineTuneOptions) -> None:
    """Raise UserError unless a pretrained model is named."""
    if not config.model:
        raise UserError("model is missing, expected --model FOLDER, of a pretrained model of Hugging Face")


def fit_scored(
    config: FineTuneOptions, trained: Tuned[Any, Any], train: DataLoader[Any], val: DataLoader[Any], *, folder: Path
) -> Fitted:
    """Train for all epochs, as the learning rate is planned over them, and keep the last one.

    The validation parts of small tasks have a few hundred examples: the best of their scores is often that of an epoch
    in which the network still gave nearly all examples to the larger class.
    """
    return fit_batches(
        config, trained.module, train, val, folder=folder, patience=config.max_epochs, monitor={"val_score": "max"},
        keep="last",
    )  # fmt: skip


def training_metrics(trained: Tuned[Any, Any], fitted: Fitted) -> dict[str, float]:
    """What metrics.json says of the training."""
    last = fitted.history[fitted.best_epoch]
    scores = {name: last[name] for name in ("val_score", "val_loss")}
    return scores | fitted.metrics | {"parameters": trained.parameters}


def drop_weights(config: FineTuneOptions, folder: Path) -> None:
    """Remove the weights that nobody needs after a run; last.ckpt has three times the weights, and nothing goes on."""
    (folder / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
    if not config.keep_weights:
        remove_weights(folder)


def check_finished(folder: Path) -> None:
    """Raise UserError unless a folder holds a finished run with its weights."""
    for path in (folder / "config.yaml", weights_file(folder)):
        if not path.is_file():
            raise UserError(
                f"{folder} holds no finished run with its weights ({path.name} is missing; runs of tables keep none); "
                f"train one: python -m experiments.finetune glue TASK --model FOLDER --out RUN (for questions: qa v1 "
                f"or v2)"
            )


def restored(
    folder: Path, config_type: type[Config], build: Callable[[Config], AnyTuned], *, script: str, **changes: Any
) -> AnyTuned:
    """The model of a finished run; ``script`` makes such runs, with changes of its configuration.

    Raises:
        UserError: The folder holds no such run, or its pretrained model is not there any more.
    """
    check_finished(folder)
    with user_errors(ValueError, OSError, TypeError):
        trained = build(saved_config(folder, config_type, script=script, **changes))
        load_best(trained.module, folder)
    return trained
