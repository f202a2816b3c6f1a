"""List the commands: ``python -m experiments``."""

import ast
import sys
from pathlib import Path

from experiments.cli import user_error
from experiments.files import expected_one_of
from experiments.report.terminal import listed, wrapped


def commands() -> dict[str, str]:
    """Return the first docstring line of every command ``python -m experiments.NAME`` by name, without an import."""
    folder, lines = Path(__file__).parent, {}
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")]):
        text = path.read_text()
        if path != Path(__file__) and '\nif __name__ == "__main__":' in text:
            name = path.parent.name if path.stem == "__main__" else path.stem
            lines[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return lines


def main(arguments: list[str]) -> int:
    """Print the list of the commands, and return the exit code."""
    if unknown := [word for word in arguments if word not in ("-h", "--help")]:
        known = expected_one_of(commands(), unknown[0])
        return user_error(f"{unknown[0]} is no option; commands are python -m experiments.NAME, {known}", code=2)
    print(wrapped("usage: python -m experiments.COMMAND [options]; --help after a command lists its options"))
    print(f"\n{listed(dict(sorted(commands().items())))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
