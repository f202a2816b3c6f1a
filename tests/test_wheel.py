"""The wheel holds the library alone, and the library needs no extra."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pyro_attention

ROOT = Path(__file__).parents[1]

# Runs outside of the repository: argv holds the modules to block.
IMPORT_ALL = """
import pkgutil
import sys


class Blocker:
    blocked = frozenset(sys.argv[1:])

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.blocked:
            raise ModuleNotFoundError(f"{name} belongs to an extra", name=name)


sys.meta_path.insert(0, Blocker)

import pyro_attention

for module in pkgutil.walk_packages(pyro_attention.__path__, "pyro_attention."):
    __import__(module.name)
print(pyro_attention.__file__)
"""


def run(*command: str | Path, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def modules_of_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = {canonicalize_name(Requirement(line).name) for extra in extras for line in extra}
    return {
        module
        for module, distributions in packages_distributions().items()
        if names.intersection(map(canonicalize_name, distributions))
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_only_the_library(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert "pyro_attention/__init__.py" in names
    assert "pyro_attention/py.typed" in names
    parts = ("page.html", "viewer.html", "viewer.css", "theme.js", "parts.js", "links.js", "viewer.js")
    assert {f"pyro_attention/viewer/{part}" for part in parts} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pyro_attention"}


def test_the_version_is_said_once_and_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert project["version"] == pyro_attention.__version__
    assert f"version: {project['version']}\n" in citation
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_a_package_index_would_take_wheel_and_source(wheel, tmp_path):
    pytest.importorskip("twine")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT)
    (source,) = tmp_path.glob("*.tar.gz")
    told = run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    assert told.count("PASSED") == 2


def test_wheel_imports_without_extras(wheel, tmp_path):
    blocked = modules_of_extras()
    assert {"lightning", "pytest", "sklearn", "torch_geometric"} <= blocked
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel)

    environment = os.environ | {"PYTHONPATH": str(target)}
    origin = run(sys.executable, "-c", IMPORT_ALL, *sorted(blocked), cwd=tmp_path, env=environment)

    assert Path(origin.strip()).is_relative_to(target)
