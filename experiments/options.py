"""Options that all scripts share, and the check of every configuration: of a command line, a file, or Python.

In this module and in those of configurations annotations are types and no text (no ``from __future__ import
annotations``): the parser would look up the text of an inherited field in the module of the subclass, where its names
are not imported.
"""

import math
import re
from argparse import ArgumentError
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from jsonargparse import ActionConfigFile, ActionYesNo, ArgumentParser
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt, restricted_number_type

from experiments.files import UserError, did_you_mean

Config = TypeVar("Config")
_LONGEST_CHOICES = 48  # letters of the choices of an option that stand beside its name in the help
# Names that options have in other programs.
_ELSEWHERE = {
    "--accelerator": ("--device",),
    "--gpu": ("--device", "--devices"),
    "--gpus": ("--device", "--devices"),
    "--cuda": ("--device",),
    "--lr": ("--learning-rate",),
    "--epoch": ("--max-epochs",),
    "--epochs": ("--max-epochs",),
    "--num-epochs": ("--max-epochs",),
    "--batch": ("--batch-size",),
    "--bs": ("--batch-size",),
    "--samples": ("--num-samples",),
    "--data": ("--data-root",),
    "--data-dir": ("--data-root",),
    "--output": ("--out",),
    "--output-dir": ("--out",),
}
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["32", "bf16-mixed"]

HalfOpenUnitInterval = restricted_number_type(
    "HalfOpenUnitInterval", float, [(">=", 0), ("<", 1)], docstring="from 0 to below 1"
)
Dropout = HalfOpenUnitInterval  # share to drop
# Byte-level word pieces: 4 special tokens and 256 bytes at least.
VocabularySize = restricted_number_type("VocabularySize", int, (">=", 260), docstring="at least 260")
# What the types of numbers allow, for messages.
_NUMBERS = {
    "PositiveInt": "a whole number above 0",
    "NonNegativeInt": "a whole number of at least 0",
    "PositiveFloat": "a number above 0",
    "NonNegativeFloat": "a number of at least 0",
    "ClosedUnitInterval": "a number from 0 to 1",
    "OpenUnitInterval": "a number between 0 and 1",
    "HalfOpenUnitInterval": "a number from 0 to below 1",
    "VocabularySize": "a whole number of at least 260, for special tokens and single bytes",
}


class OptionError(UserError, ValueError):
    """Error about a value that the type of an option does not allow; a ValueError, and one line in a terminal."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of how and where to run; those of what is computed are fields of a subclass.

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
        """Return options of the runs that a script starts in its folder; one that is complete is read, not repeated."""
        return {"data_root": self.data_root, "device": self.device, "resume": True, "progress": False}


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(RunOptions):
    """Options of the training of one network.

    Args:
        devices: Devices of every machine that train it together, by Lightning's ddp: GPUs, or processes where it is
            computed on CPU cores. Each has batches of the batch size.
        num_nodes: Machines.
        learning_rate: Learning rate of Adam.
        max_epochs: Epochs at most.
        num_samples: Posterior samples of random attention for test scores.
        precision: Arithmetic of the training; 32 bits in any case on a CPU without instructions for bfloat16, and in
            evaluation.
        seed: Seed of the initial weights, the order of the batches and all noise.
    """

    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-3
    max_epochs: PositiveInt = 20
    num_samples: PositiveInt = 20
    precision: Precision = "32"
    seed: NonNegativeInt = 0

    @property
    def planned(self) -> bool:
        """True where the learning rate is planned over all epochs, whose number then stays."""
        return False

    @property
    def processes(self) -> int:
        """Number of devices of all machines together."""
        return self.devices * self.num_nodes


@dataclass(frozen=True, kw_only=True)
class BatchOptions(TrainingOptions):
    """Options of the training of one network on batches.

    Args:
        batch_size: Examples of a batch, such as sentences.
        gradient_clip: Largest norm of the gradient of the loss per observation, such as a word.
    """

    batch_size: PositiveInt = 32
    gradient_clip: PositiveFloat = 1.0


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """Options of many trainings.

    Args:
        workers: Trainings at a time on this machine, each on one thread.
        cluster: Address of a Dask scheduler, such as tcp://host:8786, whose workers train instead, as many as there
            are; they must have this program and see its files, data and results, under the same names.
        results: Folder for the numbers that are published, and for pictures/. When omitted, a whole study is written to
            experiments/results, one of some levels under a name of its own, and one of some rows, of fewer or other
            seeds or with other options to no such folder.
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
        name: The study; a name that is not known is answered by all of them.
        seeds: Number of seeds, shared by rows and levels; the study's own when omitted.
        first_seed: The first of them; 0 in a table and 1000 in a search when omitted.
        rows: Rows of the study, those among them that others are compared with; all when omitted.
        levels: Its levels, such as data sets; all when omitted.
        changes: Options that all trainings have in place of the study's; what makes a row stays. A change that reaches
            no row, or makes two levels the same, is refused.
    """

    name: str
    seeds: PositiveInt | None = None
    first_seed: NonNegativeInt | None = None
    rows: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)


def is_whole(config: Any) -> bool:
    """Return whether all options of what is computed, except for the model, have their defaults.

    Only then may a command without ``--results`` replace the published numbers.
    """
    where = {"model", *(field.name for field in fields(SweepOptions))}
    return all(getattr(config, field.name) == field.default for field in fields(config) if field.name not in where)


def configuration(config_type: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a configuration out of plain values, such as a file holds, with the checks of the command line.

    Raises:
        OptionError: A value is not of its field's type, out of its range or of no field.
    """
    return config_type(**_checked(config_type, values))


def _checked(config_type: type, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        # the parser reads the words inside of a dictionary as numbers, in place
        checked: dict[str, Any] = _parser(config_type).parse_object(deepcopy(dict(values))).as_dict()
    except ArgumentError as error:
        raise OptionError(" ".join(str(error).split())) from error
    types = {field.name: get_args(field.type) for field in fields(config_type)}
    for name, value in checked.items():
        if value is None and name in values and type(None) not in types.get(name, ()):
            raise OptionError(f"{name} is null, expected a value")
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"{name} is {value}, expected a finite number")
    return checked


@cache
def _parser(config_type: type) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(config_type, as_group=False)
    return parser


# Command lines


def parse(config_type: type, arguments: Sequence[str], *, name: str, training: type | None = None) -> dict[str, Any]:
    """Read the options that are given to a command, fields of a dataclass; ``name`` is its name in the help.

    Options of a ``training`` are read into ``changes``: a command that trains many networks changes all of them. They
    replace those of a ``changes`` that is given, as by the config.yaml of a study. Options that a training requires say
    which one it is, and stay.

    Raises:
        ArgumentError: There is no such option, or it has no such value; the text is one line.
        SystemExit: The help, or the configuration, was asked for and has been printed.
    """
    names = {field.name for field in fields(config_type)}
    parser = option_parser(config_type, name=name, training=training)
    # a configuration that is printed has all options; but to a study every option of a training is a change
    whole = training is None and any(word.partition("=")[0] == "--print_config" for word in arguments)
    try:
        options: dict[str, Any] = parser.parse_args(arguments, defaults=whole).as_dict()
        options.pop("config", None)
        if training is not None:
            given = {option: options.pop(option) for option in sorted(options.keys() - names)}
            options["changes"] = _read_changes(training, names, options.get("changes", {})) | given
    except ArgumentError as error:
        raise ArgumentError(None, _explained(parser, error)) from error
    return options


def _read_changes(training: type, names: Collection[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of trainings that a dictionary holds, with the values that the types of the options make."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(training, as_group=False, skip=_unchangeable(training, names))
    read: dict[str, Any] = parser.parse_object(deepcopy(dict(changes)), defaults=False).as_dict()
    return read


def _unchangeable(training: type, names: Collection[str]) -> set[str]:
    """Return options of a training that a study of these names has of its own, or that say which training it is."""
    required = {field.name for field in fields(training) if field.default is field.default_factory is MISSING}
    return {*names, *required, "seed"}


def refuse_unused(config: Any, arguments: Sequence[str]) -> None:
    """Refuse options that are given on a command line and not used, as the configuration says in ``USED_BY``.

    Raises:
        ArgumentError: Naming the option and the choice that uses it.
    """
    given = {word.partition("=")[0].replace("--no-", "--") for word in arguments}
    for option, choice, values in unused(config):
        name, by, chosen = option.replace("_", "-"), choice.replace("_", "-"), getattr(config, choice)
        if f"--{name}" in given:
            text = f"--{name} is for {by} {', '.join(values)}, and {by} is {chosen}"
            raise ArgumentError(None, f"{text}; leave it out, or change --{by}")


def unused(config: Any) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield options that a configuration does not use, each with the choice that decides and the values that use it.

    Every class of the configuration declares them in ``USED_BY``.
    """
    declared = (vars(declaring).get("USED_BY", {}) for declaring in type(config).__mro__)
    for option, choices in (use for uses in declared for use in uses.items()):
        for choice, values in choices.items():
            chosen = getattr(config, choice, None)
            if hasattr(config, option) and isinstance(chosen, str) and chosen not in values:
                yield option, choice, values


def option_parser(config_type: type, *, name: str, training: type | None = None) -> ArgumentParser:
    """Make the parser of a command; see :func:`parse`. Options of a training stand in groups, one a dataclass."""
    line = (config_type.__doc__ or "").strip().split("\n")[0]
    parser = _Parser(prog=f"python -m {name}", description=line, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action=ActionConfigFile, help=_config_help(training or config_type))
    parser.add_class_arguments(config_type, as_group=False)
    if training is not None:
        names = {field.name for field in fields(config_type)}
        parser.add_class_arguments(training, as_group=False, skip=_unchangeable(training, names))
    if issubclass(training or config_type, TrainingOptions):
        _in_groups(parser, [config_type, *([] if training is None else [training])])
    positional = [action.dest for action in parser._positionals._group_actions]
    parser.usage = " ".join([parser.prog, *positional, "[options]"])
    for action in parser._actions:
        if isinstance(action.metavar, str) and len(action.metavar) > _LONGEST_CHOICES:
            action.metavar = action.dest.upper()  # no line of choices is broken; the type lists them then
    return parser


def paper_files(config_type: type) -> dict[str, Path]:
    """Return the files with the published sizes of a task's networks by their names, as ``PAPER_SIZES`` lists them."""
    folder = Path(*config_type.__module__.split(".")[:-1], "paper")
    return {name: folder / f"{name}.yaml" for name in getattr(config_type, "PAPER_SIZES", ())}


def paper_sizes(config_type: type, name: str) -> dict[str, Any]:
    """Return the published sizes of a task's network, the options of one of :func:`paper_files`."""
    from yaml import safe_load  # not above: command lines that need no file do without

    path = Path(__file__).parents[1] / paper_files(config_type)[name]
    sizes: dict[str, Any] = safe_load(path.read_text())
    return sizes


def _config_help(config_type: type) -> str:
    text = "A config.yaml to read options from; options behind it change it."
    if files := paper_files(config_type):
        text += f" Published sizes: {', '.join(path.as_posix() for path in files.values())}."
    return text


def _in_groups(parser: ArgumentParser, config_types: Sequence[type]) -> None:
    """Put every option into the group of the dataclass that declares it first, those of subclasses at the top."""
    titles = dict[str, str]()
    classes = [declaring for config_type in config_types for declaring in config_type.__mro__[:-1]]
    for declaring in reversed(classes):
        for name in vars(declaring).get("__annotations__", {}):
            titles.setdefault(name, _title(declaring))
    used = [title for title in dict.fromkeys(map(_title, classes)) if title in titles.values()]
    groups = {title: parser.add_argument_group(title) for title in used}
    for action in list(parser._optionals._group_actions):
        if action.dest in titles:
            parser._optionals._group_actions.remove(action)
            groups[titles[action.dest]]._group_actions.append(action)


def _title(config_type: type) -> str:
    """Return the words of a class name without its last: "alignment scheme" of AlignmentSchemeOptions."""
    words = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]*", config_type.__name__)
    return " ".join(words[:-1]).lower()


class _Parser(ArgumentParser):
    """Parser with dashes in options, switches without a value, and required options by position: ``bam1 --resume``."""

    def add_argument(self, *names: Any, **options: Any) -> Any:
        # jsonargparse looks for this option of its own under its name
        if options.pop("required", False):
            names = tuple(name.removeprefix("--") for name in names)
        elif names != ("--print_config",):
            names = tuple(name.replace("_", "-") for name in names)
        if options.get("type") is bool:
            del options["type"]
            options["action"] = ActionYesNo(no_prefix="no-")
        return super().add_argument(*names, **options)


def _meant(names: Sequence[str], given: str) -> str:
    """The end of an error message: the option of this project for one of another, or the nearest one."""
    known = [f"'{name}'" for name in _ELSEWHERE.get(given, ()) if name in names]
    return f"; did you mean {' or '.join(known)}?" if known else did_you_mean(names, given)


def _explained(parser: ArgumentParser, error: Exception) -> str:
    """Return the parser's error in one line, with the word that was probably meant."""
    text = " ".join(str(error).split())
    if unknown := re.match(r"[Uu]nrecognized arguments: (--[^ =]*)", text):
        names = [name for action in parser._actions for name in action.option_strings]
        return f"there is no option {unknown[1]}{_meant(names, unknown[1]) or '; --help lists the options'}"
    if wrong := re.search(r'Parser key "(\w+)":(?! Parser key) (.*)', text):
        positional = {action.dest for action in parser._positionals._group_actions}
        option = wrong[1] if wrong[1] in positional else f"--{wrong[1].replace('_', '-')}"
        kind = re.search(r"Not of type (\w+):", wrong[2])
        value = re.search(r"Given value: (.*)|: (\S+) does not conform|: '([^']*)'$", wrong[2])
        if kind and value and kind[1] in _NUMBERS:
            allowed = _NUMBERS[kind[1]] + " or null" * ("NoneType" in wrong[2])
            return f"{option} is {value[1] or value[2] or value[3]}; expected {allowed}"
        known, _, given = wrong[2].rpartition("value: ")
        if "<class 'tuple'>" in known:
            return f'{option} is {given}; expected a list, such as \'["A", "B"]\''
        near = did_you_mean(re.findall("'([^']*)'", known), given)
        return f"{option}: {wrong[2]}{near}"
    return text
