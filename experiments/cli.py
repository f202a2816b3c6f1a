"""Command lines out of dataclasses."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ActionYesNo, ArgumentParser

from experiments.results import SweepOptions, UserError

__all__ = ["Command", "command_line", "run_commands", "run_script"]

Config = TypeVar("Config")


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


def run_script(
    config_type: type[Config], run: Callable[[Config], object], *, name: str, arguments: Sequence[str] | None = None
) -> int:
    """Read the configuration from the command line and run a script.

    Args:
        config_type: Dataclass whose fields are the options and whose docstring is the help; fields without a default
            are positional.
        run: The script.
        name: Its module, for the help.
        arguments: The command line; ``sys.argv`` when omitted.

    Returns:
        Exit code: 0, 2 after an error of the user's (one line on stderr), 130 after Ctrl-C.
    """
    parser = _Parser(prog=f"python -m {name}", description=_first_line(config_type), exit_on_error=False)
    parser.add_argument("--config", action="config", help="A config.yaml to read options from.")
    parser.add_class_arguments(config_type, as_group=False)
    try:
        options = parser.parse_args(arguments).as_dict()
        del options["config"]
        run(config_type(**options))
    except (ArgumentError, UserError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        # trainings say which checkpoint there is
        print(f"\n{str(stop) or 'interrupted; the same command with --resume continues'}", file=sys.stderr)
        return 130
    return 0


@dataclass(frozen=True)
class Command:
    """A script of its own: a dataclass of options, and what to do with them."""

    config: type
    run: Callable[[Any], object]


def run_commands(commands: Mapping[str, Command], *, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run one of several scripts of a module, chosen by the first word of the command line.

    Args:
        commands: Scripts by that word.
        name: The module, for the help.
        arguments: The command line; ``sys.argv`` when omitted.

    Returns:
        As :func:`run_script`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = given[0] if given else ""
    if chosen in commands:
        command = commands[chosen]
        return run_script(command.config, command.run, name=f"{name} {chosen}", arguments=given[1:])
    wanted = chosen in ("-h", "--help")
    lines = [f"usage: python -m {name} COMMAND [options]; --help after a command lists its options", ""]
    lines += [f"  {word:<10} {_first_line(command.config)}" for word, command in commands.items()]
    if not wanted:
        lines.insert(0, f"error: {chosen or 'nothing'} is no command")
    print("\n".join(lines), file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def command_line(script: str, config: Any, *, always: Sequence[str] = ()) -> str:
    """The command that repeats a run: the options that say what is computed, where they are not the script's defaults.

    Args:
        script: The module, with what is given by position.
        config: Configuration of the run, a dataclass.
        always: Options to name even where they have their default.
    """
    parts = [f"python -m {script}"]
    how = {field.name for field in fields(SweepOptions)}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is MISSING or field.name in how or isinstance(value, Path):
            continue
        if field.name in always or value != field.default:
            option = field.name.replace("_", "-")
            if isinstance(value, bool):  # a switch, without a value
                parts.append(f"--{option}" if value else f"--no-{option}")
                continue
            value = f"'{json.dumps(value)}'" if isinstance(value, tuple) else value
            parts.append(f"--{option} {value}")
    return " ".join(parts)


def _first_line(config_type: type) -> str:
    return (config_type.__doc__ or "").strip().split("\n")[0]
