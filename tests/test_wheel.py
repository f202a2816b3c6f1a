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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Runs outside of the repository: argv holds the modules to block.
IMPORT_ALL = """
import pkgutil
import sys


class Blocker:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"{name} belongs to an extra", name=name)


sys.meta_path.insert(0, Blocker)

import pyro_attention

for module in pkgutil.walk_packages(pyro_attention.__path__, "pyro_attention."):
    __import__(module.name)
print(pyro_attention.__file__)
"""


def run(*command: str | Path, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_version_is_said_once_and_the_same():
    assert PROJECT["version"] == pyro_attention.__version__
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_a_package_index_would_take_wheel_and_source(wheel, tmp_path):
    pytest.importorskip("twine")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT)
    (source,) = tmp_path.glob("*.tar.gz")
    told = run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    assert told.count("PASSED") == 2


def test_wheel_holds_only_the_library_and_imports_without_extras(wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    parts = ("page.html", "viewer.html", "viewer.css", "theme.js", "parts.js", "links.js", "viewer.js")
    assert {"pyro_attention/py.typed", *(f"pyro_attention/viewer/{part}" for part in parts)} <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pyro_attention"}

    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    needed = {canonicalize_name(Requirement(line).name) for line in extras}
    blocked = [one for one, of in packages_distributions().items() if needed.intersection(map(canonicalize_name, of))]
    assert {"lightning", "pytest", "sklearn", "torch_geometric"} <= set(blocked)
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel)
    environment = os.environ | {"PYTHONPATH": str(target)}
    origin = run(sys.executable, "-c", IMPORT_ALL, *blocked, cwd=tmp_path, env=environment)
    assert Path(origin.strip()).is_relative_to(target)
