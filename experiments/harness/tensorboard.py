"""Files for TensorBoard beside history.csv, where they are asked for and the package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.files import UserError, unwritable
from experiments.harness.options import DeviceOptions

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger

__all__ = ["event_files", "require_logger", "tensorboard_logger"]

_FOLDER = "tensorboard"


def require_logger(config: DeviceOptions) -> None:
    """Raise UserError where files for TensorBoard are asked for and it is not installed."""
    if config.logger != "tensorboard":
        return
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"logger is tensorboard, but the package tensorboard is not installed ({error}); pip install tensorboard, "
            f"or leave out --logger: history.csv is written in any case"
        ) from error


def event_files(folder: Path) -> list[Path]:
    """TensorBoard's files in the folder of a run."""
    return sorted((folder / _FOLDER).glob("events.out.tfevents.*"))


def tensorboard_logger(folder: Path) -> Logger:
    """Lightning's logger for the folder of a run, without the files that an earlier part of the run has left."""
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    for file in event_files(folder):
        try:
            file.unlink()
        except OSError as error:
            raise unwritable(file, error) from error
    return TensorBoardLogger(folder, name="", version=_FOLDER)
