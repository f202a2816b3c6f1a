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
    """A script: a dataclass whose fields are its options, and its function; each may be ``"module:name"`` of it.

    The docstring of the dataclass is the help; fields without a default are positional. A script that makes many
    trainings takes the options of a ``training`` too.
    """

    config: type | str
    run: Callable[[Any], object] | str
    training: type | str | None = None


def run_commands(
    commands: Mapping[str, Command] | Command | str, *, name: str, arguments: Sequence[str] | None = None
) -> int:
    """Read the configuration from the command line, ``sys.argv`` when omitted, and run a script: its exit code.

    Of several scripts the first word of the command line chooses one. ``commands`` may be ``"module:name"`` of them;
    ``name`` is that of the module, for the help. The code is 2 after a wrong command line, 1 after another error of the
    user's (both one line on stderr), 130 after Ctrl-C, else 0.
    """
    if not sys.stderr.isatty():  # read by tqdm when it is imported: a log file gets a line a minute of every bar
        for variable in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
            os.environ.setdefault(variable, "60")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        found = _resolved(commands)
        return _run(found, given, name) if isinstance(found, Command) else _choose(found, given, name)
    except KeyboardInterrupt as stop:  # of a run, or while something is imported
        print(f"\n{str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def command_line(script: str, config: Any, **changes: Any) -> str:
    """The command that repeats a run: the options that say what is computed, where they are not the script's defaults.

    ``script`` is the module with what is given by position; a file or folder says where something is, and is left out.
    A study has ``changes`` besides, the options of its trainings.
    """
    from experiments.options import SweepOptions

    words, how = [f"python -m {script}"], {field.name for field in fields(SweepOptions)}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is not MISSING and field.name not in how and not isinstance(value, Path):
            words += [option_words(field.name, value)] * (value != field.default)
    return " ".join([*words, *(option_words(name, value) for name, value in changes.items())])


def option_words(name: str, value: Any) -> str:
    """An option with its value, as a command line has them; of a file its name."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, Path):
        return f"--{option} {value.name}"
    shown = f"'{json.dumps(value)}'" if isinstance(value, list | tuple | dict) else "null" if value is None else value
    return f"--{option} {shown}"


def user_error(error: object, *, code: int) -> int:
    """Print an error of the user's in one line and hand back the exit code."""
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    return code


def _resolved(target: Any) -> Any:
    return resolve_name(target) if isinstance(target, str) else target


def _choose(commands: Mapping[str, Command], given: list[str], name: str) -> int:
    from experiments.files import expected_one_of
    from experiments.report.terminal import listed, wrapped

    chosen = given[0] if given else ""
    if chosen in commands:
        return _run(commands[chosen], given[1:], f"{name} {chosen}")
    if chosen in ("-h", "--help"):
        print(wrapped(f"usage: python -m {name} COMMAND [options]; --help after a command lists its options"))
        lines = {word: (_resolved(one.config).__doc__ or "").strip().split("\n")[0] for word, one in commands.items()}
        print(f"\n{listed(lines)}")
        return 0
    unknown = f"{chosen} is no command" if chosen else "no command is given"
    return user_error(f"{unknown}, {expected_one_of(commands, chosen)}", code=2)


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
