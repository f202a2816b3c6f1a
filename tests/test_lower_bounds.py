"""The lower bounds that pyproject.toml declares are those that `make test-lowest` installs."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> dict[str, set[str]]:
    """The bounds of every package, of those that have one; the site's tools are not of a user's environment."""
    extras = PROJECT["optional-dependencies"]
    bounds: dict[str, set[str]] = {}
    for lines in (PROJECT["dependencies"], *(lines for extra, lines in extras.items() if extra != "docs")):
        for requirement in map(Requirement, lines):
            for bound in requirement.specifier:
                bounds.setdefault(canonicalize_name(requirement.name), set()).add(str(bound))
    return bounds


def test_constraints_are_the_lower_bounds():
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert declared() == {canonicalize_name(name): {f">={version}"} for name, version in pinned.items()}
