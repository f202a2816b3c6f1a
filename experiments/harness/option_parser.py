"""Options of a command out of the fields of a dataclass, and errors that say in one line what to type instead."""

from __future__ import annotations

import re
from argparse import ArgumentError
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, ActionYesNo, ArgumentParser

from experiments.files import did_you_mean, read_yaml

_WRITTEN = ("out", "results", "cache")  # options that name what is written


def parse(config_type: type, arguments: Sequence[str], *, name: str, training: type | None = None) -> dict[str, Any]:
    """Read the options that are given to a command, fields of a dataclass; ``name`` is what the help calls it.

    Those of a ``training`` are taken too, into ``changes``: a command that trains many networks changes all of them.
    What a training requires says which one it is, and stays.

    Raises:
        ArgumentError: What is given is not an option, or not a value of one; its text is one line.
        SystemExit: The help was asked for and has been printed.
    """
    parser, own = option_parser(config_type, name=name), {field.name for field in fields(config_type)}
    if training is not None:
        required = {field.name for field in fields(training) if field.default is field.default_factory is MISSING}
        parser.add_class_arguments(training, as_group=False, skip={*own, *required, "seed"})
    try:
        options: dict[str, Any] = parser.parse_args(arguments, defaults=False).as_dict()
    except ArgumentError as error:
        raise ArgumentError(None, _explained(parser, error)) from error
    for path in options.pop("config", None) or ():
        _check_places(Path(str(path)), {word.partition("=")[0] for word in arguments})
    if training is not None:
        options["changes"] = {option: options.pop(option) for option in sorted(options.keys() - own)}
    return options


def refuse_unused(config: Any, arguments: Sequence[str]) -> None:
    """Refuse what is given on a command line and not used, as each class of the configuration says in ``USED_BY``.

    Raises:
        ArgumentError: Naming the option and what it is for.
    """
    given = {word.partition("=")[0].replace("--no-", "--") for word in arguments}
    for option, choices in (use for one in type(config).__mro__ for use in vars(one).get("USED_BY", {}).items()):
        name = option.replace("_", "-")
        for choice, values in choices.items() if f"--{name}" in given else ():
            chosen, by = getattr(config, choice, None), choice.replace("_", "-")
            if isinstance(chosen, str) and chosen not in values:
                text = f"--{name} is for {by} {', '.join(values)}, and {by} is {chosen}"
                raise ArgumentError(None, f"{text}; leave it out, or change --{by}")


def option_parser(config_type: type, *, name: str) -> ArgumentParser:
    """The parser of a command; see :func:`parse`."""
    line = (config_type.__doc__ or "").strip().split("\n")[0]
    parser = _Parser(prog=f"python -m {name}", description=line, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action=ActionConfigFile, help="A config.yaml to read options from.")
    parser.add_class_arguments(config_type, as_group=False)
    return parser


class _Parser(ArgumentParser):
    """Options with dashes, switches without a value, what is required by position: ``bam1 --seeds 10 --resume``."""

    def add_argument(self, *names: Any, **options: Any) -> Any:
        # jsonargparse looks for this option of its own under its name
        if names != ("--print_config",):
            names = tuple(name.replace("_", "-") for name in names)
        if options.pop("required", False):
            names = tuple(name.removeprefix("--") for name in names)
        if options.get("type") is bool:
            del options["type"]
            options["action"] = ActionYesNo(no_prefix="no-")
        return super().add_argument(*names, **options)


def _check_places(path: Path, given: set[str]) -> None:
    """What a file removes or writes elsewhere is said on the command line: it may be a stranger's."""
    found, homes = read_yaml(path, "name another file"), (Path.cwd().resolve(), path.resolve().parent)
    if found.get("overwrite") and "--overwrite" not in given:
        raise ArgumentError(None, f"{path}: overwrite is not read from a file; pass --overwrite, or remove the line")
    for name in _WRITTEN:
        place = Path(str(found.get(name) or ".")).resolve()
        if f"--{name}" not in given and not any(place.is_relative_to(home) for home in homes):
            places = f"{homes[0]} or of {homes[1]}, where the file is; pass --{name} if this is where to write"
            raise ArgumentError(None, f"{path}: {name} is {place}, expected a place inside of {places}")


def _explained(parser: ArgumentParser, error: Exception) -> str:
    """The parser's error in one line, with the word that was probably meant."""
    text = " ".join(str(error).split())
    if unknown := re.match(r"[Uu]nrecognized arguments: (--[^ =]*)", text):
        names = [name for action in parser._actions for name in action.option_strings]
        return f"there is no option {unknown[1]}{did_you_mean(names, unknown[1]) or '; --help lists the options'}"
    if wrong := re.search(r'Parser key "(\w+)":(?! Parser key) (.*)', text):
        near = did_you_mean(re.findall("'([^']*)'", wrong[2]), wrong[2].rpartition("value: ")[2])
        return f"--{wrong[1].replace('_', '-')}: {wrong[2]}{near}"
    return text
