"""Command lines out of dataclasses.

A command line is read before what the command needs is imported, so that ``--help`` and a typing error are answered at
once: this module imports the standard library alone, and scripts name their options and functions by where they are,
``module:name``.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Command:
    """Script of the command line: a dataclass whose fields are its options, and the function that takes it.

    Each may be given as ``"module:name"``, which is imported when it is needed. The docstring of the dataclass is the
    help; fields without a default are positional. A script that makes many trainings takes the options of a
    ``training`` too.
    """

    config: type | str
    run: Callable[[Any], object] | str
    training: type | str | None = None


def run_commands(
    commands: Mapping[str, Command] | Command | str, *, name: str, arguments: Sequence[str] | None = None
) -> int:
    """Read a configuration from the command line, run its script, and return the exit code.

    Args:
        commands: The scripts, of which the first word of the command line chooses one; or ``"module:name"`` of them.
        name: Name of the module, for the help.
        arguments: The command line; ``sys.argv`` when omitted.

    Returns:
        2 after a wrong command line, 1 after another error of the user's (both one line on stderr), 130 after Ctrl-C,
        else 0.
    """
    if not sys.stderr.isatty():  # read by tqdm when it is imported: a log file gets a line a minute of every bar
        for variable in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
            os.environ.setdefault(variable, "60")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        target = _resolved(commands)
        if isinstance(target, Command):
            return _run(target, given, name)
        word = given[0] if given else ""
        return _run(target[word], given[1:], f"{name} {word}") if word in target else _no_command(target, word, name)
    except KeyboardInterrupt as stop:  # of a run, or while something is imported
        print(f"\n{str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def command_line(script: str, config: Any, **changes: Any) -> str:
    """Return the command that repeats a run: options that change what is computed, except the script's defaults.

    ``script`` is the module with what is given by position; files and folders are left out. ``changes`` are further
    options, those of the trainings of a study.
    """
    from experiments.options import SweepOptions

    words, how = [f"python -m {script}"], {field.name for field in fields(SweepOptions)}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is not MISSING and field.name not in how and not isinstance(value, Path):
            words += [option_words(field.name, value)] * (value != field.default)
    return " ".join([*words, *(option_words(name, value) for name, value in changes.items())])


def option_words(name: str, value: Any) -> str:
    """Return an option with its value as on a command line; a file is written as its name."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, Path):
        return f"--{option} {value.name}"
    shown = f"'{json.dumps(value)}'" if isinstance(value, list | tuple | dict) else "null" if value is None else value
    return f"--{option} {shown}"


def user_error(error: object, *, code: int) -> int:
    """Print an error of the user's in one line, and return the exit code."""
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return code


def _resolved(target: Any) -> Any:
    return resolve_name(target) if isinstance(target, str) else target


def _no_command(commands: Mapping[str, Command], word: str, name: str) -> int:
    """Answer a command line that begins with no command: with their list, or with an error."""
    from experiments.files import expected_one_of
    from experiments.report.terminal import listed, wrapped

    if word in ("-h", "--help"):
        print(wrapped(f"usage: python -m {name} COMMAND [options]; --help after a command lists its options"))
        lines = {
            command: (_resolved(script.config).__doc__ or "").strip().split("\n")[0]
            for command, script in commands.items()
        }
        print(f"\n{listed(lines)}")
        return 0
    unknown = f"{word} is no command" if word else "no command is given"
    return user_error(f"{unknown}, {expected_one_of(commands, word)}", code=2)


def _run(command: Command, given: list[str], name: str) -> int:
    from experiments.files import UserError, check_inputs
    from experiments.options import parse, refuse_unused

    config_type = _resolved(command.config)
    try:
        config = config_type(**parse(config_type, given, name=name, training=_resolved(command.training)))
        refuse_unused(config, given)
    except (ArgumentError, UserError) as error:
        return user_error(error, code=2)
    try:
        check_inputs(config)
        _resolved(command.run)(config)
    except UserError as error:
        return user_error(error, code=1)
    except ModuleNotFoundError as error:
        if (error.name or "experiments").split(".")[0] in ("experiments", "guides", "models", "pyro_attention"):
            raise  # a mistake of ours
        extras = "experiments,transformers,dev"
        return user_error(f"{error.name} is not installed; pip install -e '.[{extras}]' has it", code=1)
    except KeyboardInterrupt as stop:
        resumable = "; the same command with --resume continues" if hasattr(config, "resume") else ""
        raise KeyboardInterrupt(str(stop) or f"interrupted{resumable}") from stop
    return 0
