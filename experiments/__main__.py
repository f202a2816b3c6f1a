"""List the commands: ``python -m experiments``."""

import ast
import sys
from pathlib import Path

from experiments.files import did_you_mean
from experiments.harness.cli import user_error


def commands() -> dict[str, str]:
    """What is run as ``python -m experiments.NAME``, by its name, and its first line; nothing is imported."""
    folder, found = Path(__file__).parent, {}
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")]):
        text = path.read_text()
        if path != Path(__file__) and '\nif __name__ == "__main__":' in text:
            name = path.parent.name if path.stem == "__main__" else path.stem
            found[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


def main() -> int:
    """Print the commands; no other word than --help is taken."""
    given = sys.argv[1:]
    if given and given[0] not in ("-h", "--help"):
        near = did_you_mean(
            [f"python -m experiments.{name}" for name in commands()], f"python -m experiments.{given[0]}"
        )
        return user_error(f"'{given[0]}' is one word too many; --help lists the commands{near}", code=2)
    print("usage: python -m experiments.COMMAND [options]; --help after a command lists its options\n")
    print("\n".join(f"  {name:<15} {line}" for name, line in sorted(commands().items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
