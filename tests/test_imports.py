"""Imports point one way: the core of the library knows nothing of blocked attention, nor of what is built on it."""

import ast
from pathlib import Path

import pytest

import pyro_attention

ROOT = Path(pyro_attention.__file__).parent
CORE = ["attention.py", "check.py", "guide.py", "layout.py", "normalizers.py", "likelihoods.py", "_guide_runs.py"]
CORE += ["families", "objectives", "posterior", "ops"]


def imported(path):
    """Modules of the library that a file names in an import, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def files(name):
    path = ROOT / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("name", CORE)
def test_the_core_does_not_know_of_blocked_attention(name):
    assert files(name)
    for path in files(name):
        assert not [
            module
            for module in imported(path)
            if module.startswith(("pyro_attention.blocked", "pyro_attention.layers"))
        ], path
        assert "BlockedPrior" not in path.read_text(), path


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_library_imports_nothing_of_ours(path):
    assert not [m for m in imported(path) if m.split(".")[0] in ("models", "guides", "experiments", "tests")]
