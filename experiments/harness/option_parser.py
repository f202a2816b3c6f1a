"""Options of a command out of the fields of a dataclass, and errors that say in one line what to type instead."""

from __future__ import annotations

import re
from argparse import ArgumentError
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ActionConfigFile, ActionYesNo, ArgumentParser

from experiments.files import DamagedFileError, read_text, read_yaml
from experiments.harness.words import did_you_mean, expected_one_of

__all__ = ["first_line", "option_parser", "parse", "refuse_unused"]

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
    parser.given = {word.partition("=")[0] for word in arguments}
    try:
        options: dict[str, Any] = parser.parse_args(arguments, defaults=False).as_dict()
    except ArgumentError as error:
        raise ArgumentError(None, _explained(parser, error)) from error
    options.pop("config", None)
    if training is not None:
        options["changes"] = {option: options.pop(option) for option in sorted(options.keys() - own)}
    return options


def refuse_unused(config: Any, arguments: Sequence[str]) -> None:
    """Refuse what is given on a command line and not used, as each class of the configuration says in ``USED_BY``.

    Raises:
        ArgumentError: Naming the option and what it is for.
    """
    given = {word.partition("=")[0].replace("--no-", "--") for word in arguments}
    declared = [use for one in type(config).__mro__ for use in vars(one).get("USED_BY", {}).items()]
    for option, choices in declared:
        for choice, values in choices.items():
            chosen, name = getattr(config, choice, None), option.replace("_", "-")
            if f"--{name}" in given and isinstance(chosen, str) and chosen not in values:
                by = choice.replace("_", "-")
                raise ArgumentError(
                    None,
                    f"--{name} is for {by} {', '.join(values)}, and {by} is {chosen}; leave it out, or change --{by}",
                )


def option_parser(config_type: type, *, name: str) -> _Parser:
    """The parser of a command; see :func:`parse`."""
    parser = _Parser(
        prog=f"python -m {name}", description=first_line(config_type), exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action=_ConfigFile, help="A config.yaml to read options from.")
    parser.add_class_arguments(config_type, as_group=False)
    return parser


def first_line(config_type: type) -> str:
    """What a command does, in one line."""
    return (config_type.__doc__ or "").strip().split("\n")[0]


class _Parser(ArgumentParser):
    """Options with dashes, switches without a value, what is required by position: ``bam1 --seeds 10 --resume``."""

    given: Collection[str] = ()  # words of the command line

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


class _ConfigFile(ActionConfigFile):
    """Reads a file of plain YAML; its errors name the file."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        path = Path(values)
        try:
            found = read_yaml(path, "mend it, or name another file")
            _check_names(found, parser)
            _check_places(found, path, parser)
            self.apply_config(parser, cfg, self.dest, read_text(path, "name another file"))
        except DamagedFileError as error:  # it names the file
            raise ArgumentError(None, f"--config: {error}") from error
        except (ArgumentError, TypeError, KeyError) as error:
            raise ArgumentError(None, f"--config {path}: {_explained(parser, error)}") from error


def _check_names(found: Mapping[str, Any], parser: ArgumentParser) -> None:
    """One file is read, not another one that it names."""
    names = {action.dest for action in parser._actions} - {"config", "help", "print_config"}
    unknown = next((name for name in found if name not in names), None)
    if unknown is not None:
        raise ArgumentError(None, f"there is no option {unknown}{did_you_mean(names, unknown)}")


def _check_places(found: Mapping[str, Any], path: Path, parser: _Parser) -> None:
    """What is removed or written elsewhere is said on the command line: the file may be a stranger's."""
    if found.get("overwrite"):
        raise ArgumentError(None, "overwrite is not read from a file; pass --overwrite, or remove the line")
    homes = Path.cwd().resolve(), path.resolve().parent
    for name in _WRITTEN:
        value = found.get(name)
        if not isinstance(value, str) or f"--{name}" in parser.given:
            continue
        try:
            place = Path(value).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte, links in a circle
            raise ArgumentError(None, f"{path}: {name} is {value!r} ({error}), expected the name of a place") from error
        if not any(place.is_relative_to(home) for home in homes):
            raise ArgumentError(
                None,
                f"{name} is {value}, expected a place inside of {homes[0]} or of {homes[1]}, where the file is; pass "
                f"--{name} if this is where to write",
            )


def _explained(parser: ArgumentParser, error: Exception) -> str:
    """The parser's error in one line, with what was probably meant."""
    text = " ".join(str(error).split())
    if unknown := re.match(r"[Uu]nrecognized arguments: (.*)", text):
        return _unknown_option(parser, unknown[1].split())
    wrong = re.match(r'(?:Parser key "config": )?Parser key "(\w+)"[^:]*: (.*)', text)
    action = next((action for action in parser._actions if wrong and action.dest == wrong[1]), None)
    if wrong is None or action is None:
        return text
    name = (action.option_strings or [action.dest])[0]
    given = re.search(r".*(?:Got|Given) value: (.*)", text)
    choices = [str(choice) for choice in _choices(getattr(action, "_typehint", None))]
    if given is None or not choices:
        return f"{name}: {wrong[2]}"
    value = given[1].strip("'\"")
    if value in choices:  # a single word where there is to be a list of them
        return f"{name} {value}: expected a list, such as '[{value}]'"
    return f"{name} {value}: {expected_one_of(choices, value)}"


def _unknown_option(parser: ArgumentParser, words: Sequence[str]) -> str:
    name = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if name is None:
        return f"'{words[0]}' is one word too many; --help lists the options"
    names = [name for action in parser._actions for name in action.option_strings]
    return f"there is no option {name}{did_you_mean(names, name) or '; --help lists the options'}"


def _choices(hint: Any) -> list[Any]:
    """All values that the Literal types inside a type allow."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [choice for part in get_args(hint) for choice in _choices(part)]
