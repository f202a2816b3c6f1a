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

from experiments.harness.words import expected_one_of

__all__ = ["Command", "command_line", "launch", "run_commands", "run_script", "user_error"]


@dataclass(frozen=True)
class Command:
    """A script: a dataclass whose fields are its options, and its function; each may be ``"module:name"`` of it.

    The docstring of the dataclass is the help; fields without a default are positional. A script that makes many
    trainings takes the options of a ``training`` too.
    """

    config: type | str
    run: Callable[[Any], object] | str
    training: type | str | None = None


def run_script(
    config: type | str, run: Callable[[Any], object] | str, *, name: str, arguments: Sequence[str] | None = None
) -> int:
    """Read the configuration from the command line, ``sys.argv`` when omitted, and run a script: its exit code.

    ``config`` and ``run`` are those of :class:`Command`; the name is that of the module, for the help. The code is 2
    after a wrong command line, 1 after another error of the user's (both one line on stderr), 130 after Ctrl-C, else 0.
    """
    return _interruptible(lambda: _run(Command(config, run), _given(arguments), name))


def launch(name: str, config: str, run: str) -> None:
    """Run a script as :func:`run_script`, and end the process with its exit code."""
    sys.exit(run_script(config, run, name=name))


def run_commands(commands: Mapping[str, Command] | str, *, name: str, arguments: Sequence[str] | None = None) -> int:
    """:func:`run_script` for several scripts of a module; the first word of the command line chooses one of them."""
    return _interruptible(lambda: _choose(_resolved(commands), _given(arguments), name))


def command_line(script: str, config: Any, *, always: Sequence[str] = ()) -> str:
    """The command that repeats a run: the options that say what is computed, where they are not the script's defaults.

    ``script`` is the module with what is given by position; the options in ``always`` are named in any case. Of a file
    or folder that is among them the name is shown; the others say where something is, not what is computed.
    """
    from experiments.harness.options import SweepOptions

    parts = [f"python -m {script}"]
    how = {field.name for field in fields(SweepOptions)}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is MISSING or field.name in how or (isinstance(value, Path) and field.name not in always):
            continue
        if (field.name in always and value is not None) or value != field.default:
            option = field.name.replace("_", "-")
            if isinstance(value, bool):  # a switch, without a value
                parts.append(f"--{option}" if value else f"--no-{option}")
                continue
            if isinstance(value, Path):
                value = value.name
            value = f"'{json.dumps(value)}'" if isinstance(value, tuple) else "null" if value is None else value
            parts.append(f"--{option} {value}")
    return " ".join(parts)


def user_error(error: object, *, code: int) -> int:
    """Print an error of the user's in one line and hand back the exit code."""
    line = " ".join(str(error).split())
    # a file may hold signs that move the cursor of the terminal or change its title
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    print(f"error: {shown}", file=sys.stderr)
    return code


def _given(arguments: Sequence[str] | None) -> list[str]:
    return list(sys.argv[1:] if arguments is None else arguments)


def _resolved(target: Any) -> Any:
    return resolve_name(target) if isinstance(target, str) else target


def _choose(commands: Mapping[str, Command], given: list[str], name: str) -> int:
    from experiments.harness.option_parser import first_line

    chosen = given[0] if given else ""
    if chosen in commands:
        return _run(commands[chosen], given[1:], f"{name} {chosen}")
    if chosen in ("-h", "--help"):
        print(f"usage: python -m {name} COMMAND [options]; --help after a command lists its options\n")
        print("\n".join(f"  {word:<10} {first_line(_resolved(commands[word].config))}" for word in commands))
        return 0
    unknown = f"{chosen} is no command" if chosen else "no command is given"
    return user_error(f"{unknown}, {expected_one_of(commands, chosen)}", code=2)


def _run(command: Command, given: list[str], name: str) -> int:
    from experiments.files import UserError
    from experiments.harness.option_parser import parse, refuse_unused

    config_type = _resolved(command.config)
    try:
        config = config_type(**parse(config_type, given, name=name, training=_resolved(command.training)))
        refuse_unused(config, given)
    except (ArgumentError, UserError) as error:
        return user_error(error, code=2)
    try:
        run = _resolved(command.run)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("experiments", "guides", "models", "pyro_attention"):
            raise  # a mistake of ours
        return user_error(f"{error.name} is not installed; pip install -e '.[experiments,transformers]' has it", code=1)
    try:
        run(config)
    except UserError as error:
        return user_error(error, code=1)
    except KeyboardInterrupt as stop:
        resumable = "; the same command with --resume continues" if hasattr(config, "resume") else ""
        return _interrupted(str(stop) or f"interrupted{resumable}")
    return 0


def _interruptible(run: Callable[[], int]) -> int:
    if not sys.stderr.isatty():  # read by tqdm when it is imported: a log file gets a line a minute of every bar
        for name in ("TQDM_MININTERVAL", "TQDM_MAXINTERVAL"):
            os.environ.setdefault(name, "60")
    try:
        return run()
    except KeyboardInterrupt:  # while something is imported
        return _interrupted()


def _interrupted(text: str = "interrupted") -> int:
    print(f"\n{text}", file=sys.stderr)
    return 130
