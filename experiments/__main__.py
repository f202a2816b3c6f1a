"""List the commands: ``python -m experiments``."""

import ast
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path


def commands() -> dict[str, str]:
    """Return the first docstring line of every command ``python -m experiments.NAME`` by name, without an import."""
    folder, lines = Path(__file__).parent, {}
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/__main__.py")]):
        text = path.read_text()
        if path != Path(__file__) and '\nif __name__ == "__main__":' in text:
            name = path.parent.name if path.stem == "__main__" else path.stem
            lines[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return lines


if __name__ == "__main__":
    lines = "\n".join(f"  {name:<15} {line}" for name, line in sorted(commands().items()))
    usage = "python -m experiments.COMMAND [options]; --help after a command lists its options"
    parser = ArgumentParser(usage=usage, description=lines, formatter_class=RawDescriptionHelpFormatter)
    parser.parse_args(sys.argv[1:] or ["--help"])
