"""Options that all scripts share, their types, and the check of every configuration, wherever it comes from.

In this module and in those of configurations annotations are types and no text (no ``from __future__ import
annotations``): the parser would look up the text of an inherited field in the module of the subclass, where its names
are not imported.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt, restricted_number_type

from experiments.files import UserError

Config = TypeVar("Config")
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["32", "bf16-mixed"]
LoggerName = Literal["csv", "tensorboard"]

HalfOpenUnitInterval = restricted_number_type(
    "HalfOpenUnitInterval", float, [(">=", 0), ("<", 1)], docstring="from 0 to below 1"
)
Dropout = HalfOpenUnitInterval  # share to drop


class OptionError(UserError, ValueError):
    """A value of a configuration that its type does not allow; a ValueError, and one line in a terminal."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How and where to run; a script's own options, which say what is computed, are fields of a subclass.

    Values are checked against the types of the fields, whether they come from the command line, from a file or from
    Python.

    Args:
        out: Folder for everything the run writes; named after the run under runs/ when omitted.
        data_root: Folder of the data sets; $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention when omitted.
        resume: Continue the run in the folder, if there is one.
        overwrite: Remove the run in the folder first.
        device: Where to compute; auto takes a GPU where there is one.
        progress: Show a progress bar.

    Raises:
        OptionError: A value is not of its field's type, or out of its range.
    """

    out: Path | None = None
    data_root: Path | None = None
    resume: bool = False
    overwrite: bool = False
    device: Device = "auto"
    progress: bool = True

    def __post_init__(self) -> None:
        _checked(type(self), {field.name: getattr(self, field.name) for field in fields(self)})

    def for_runs(self) -> dict[str, Any]:
        """Options of the runs a script starts in its own folder; one that is complete there is read, not repeated."""
        options = {name: getattr(self, name) for name in ("data_root", "device", "overwrite")}
        return options | {"resume": not self.overwrite, "progress": False}


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(RunOptions):
    """On how many devices to train one network, and how to follow that; what is computed is no other training.

    Args:
        devices: Devices of every machine: GPUs, or processes where it is computed on CPU cores. Each has batches of the
            batch size.
        num_nodes: Machines.
        logger: Where the metrics of every epoch go: csv, into history.csv alone; tensorboard, also into files for
            TensorBoard, which has to be installed.
    """

    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    logger: LoggerName = "csv"

    @property
    def processes(self) -> int:
        """Devices of all machines together."""
        return self.devices * self.num_nodes


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DeviceOptions):
    """How to train one network.

    Args:
        learning_rate: Learning rate of Adam.
        max_epochs: Epochs at most.
        num_samples: Posterior samples of random attention for test scores.
        precision: Arithmetic of the training; 32 bits in any case on a CPU without instructions for bfloat16, and in
            evaluation.
        seed: Seed of the initial weights, the order of the batches and all noise.
    """

    learning_rate: PositiveFloat = 1e-3
    max_epochs: PositiveInt = 20
    num_samples: PositiveInt = 20
    precision: Precision = "32"
    seed: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class BatchOptions(TrainingOptions):
    """How to train one network on batches of sentences or images.

    Args:
        batch_size: Sentences of a batch.
        gradient_clip: Largest norm of the gradient of the loss per word.
    """

    batch_size: PositiveInt = 32
    gradient_clip: PositiveFloat = 1.0


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """How to run many trainings.

    Args:
        workers: Trainings at a time on this machine, each on one thread.
        cluster: Address of a Dask scheduler, such as tcp://host:8786, whose workers train instead, as many as there
            are; they must have this program and see its files, data and results, under the same names.
        results: Folder for the numbers that are published; when omitted experiments/results by tables and studies,
            none by comparisons. Pictures go into the folder pictures/ there.
    """

    workers: PositiveInt = 2
    cluster: str | None = None
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SweepOptions):
    """Train the rows of a study that are not trained yet, and publish what comes out.

    What is complete in the folder is read, so seeds can be added later. Every option of a single training may be given
    too, and then holds for all of them.

    Args:
        name: The study.
        seeds: Number of seeds, shared by rows and levels; the study's own when omitted.
        first_seed: The first of them; the study's own when omitted.
        rows: Rows of the study, those among them that others are compared with; all when omitted.
        levels: Its levels, such as data sets; all when omitted.
        base: Options that the training has in place of the study's from whose network all rows go on, where there is
            one.
        changes: Options that all trainings have in place of the study's.
    """

    name: str
    seeds: PositiveInt | None = None
    first_seed: NonNegativeInt | None = None
    rows: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    base: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)


def configuration(config_type: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a configuration out of plain values, such as a file holds, with the checks of the command line.

    Raises:
        OptionError: A value is not of its field's type, out of its range or of no field.
    """
    return config_type(**_checked(config_type, values))


def _checked(config_type: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the types of their fields."""
    try:
        # the parser reads the words inside of a dictionary as numbers, in place
        found: dict[str, Any] = _parser(config_type).parse_object(deepcopy(dict(values))).as_dict()
    except ArgumentError as error:
        raise OptionError(" ".join(str(error).split())) from error
    types = {field.name: get_args(field.type) for field in fields(config_type)}
    for name, value in found.items():
        if value is None and name in values and type(None) not in types.get(name, ()):
            raise OptionError(f"{name} is null, expected a value")
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"{name} is {value}, expected a finite number")
    return found


@cache
def _parser(config_type: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(config_type, as_group=False)
    return parser
