"""Planetoid's original files: fetched where they are missing, and only with what was published."""

import io
import os
import re
import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest

from experiments.datasets.graphs import planetoid_files
from experiments.datasets.graphs.load import load_graph
from experiments.files import UserError
from tests.experiments.datasets.graphs.tiny_planetoid import PARTS, check_tiny

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


@pytest.mark.parametrize(
    "there", [(), tuple(part for part in PARTS if part not in ("graph", "ty"))], ids=["none", "some"]
)
def test_missing_files_are_fetched(published, write, tmp_path, there):
    root = write({part: None for part in PARTS if part not in there}) if there else tmp_path / "data"
    check_tiny(load_graph("pubmed", data_root=root))
    fetched = root / "planetoid" / "raw"
    assert sorted(path.name for path in fetched.iterdir()) == sorted(f"ind.pubmed.{part}" for part in PARTS)
    for path in published.iterdir():
        path.unlink()
    check_tiny(load_graph("pubmed", data_root=root))


@pytest.mark.parametrize("part", PARTS)
def test_rest_is_not_fetched_to_go_with_other_files(published, write, part):
    other = {"x" if part != "x" else "y": b"another"}
    root = write({part: None} | other)
    with pytest.raises(FileNotFoundError) as info:
        load_graph("pubmed", data_root=root)
    message = str(info.value)
    assert f"ind.pubmed.{part} missing; expected all of ind.pubmed.x, " in message
    assert f"because ind.pubmed.{next(iter(other))} differs" in message
    assert "--data-root" in message
    assert not (root / "planetoid" / "raw" / f"ind.pubmed.{part}").exists()


def test_wrong_checksum(published, tmp_path):
    (published / "ind.pubmed.tx").write_bytes(b"changed")
    with pytest.raises(ValueError, match="has the SHA-256 checksum") as info:
        load_graph("pubmed", data_root=tmp_path / "data")
    message = str(info.value)
    expected, found = planetoid_files.SHA256["ind.pubmed.tx"], sha256(b"changed").hexdigest()
    for part in (str(tmp_path / "data"), published.as_uri(), expected, found, "Nothing of it was kept", "intact copy"):
        assert part in message
    left = sorted(path.name for path in (tmp_path / "data" / "planetoid" / "raw").iterdir())
    assert left == ["ind.pubmed.x", "ind.pubmed.y"]


def test_no_network(tmp_path, server):
    with pytest.raises(FileNotFoundError) as info:
        load_graph("citeseer", data_root=tmp_path / "data")
    places = [str(tmp_path / "data" / place) for place in ("citeseer.npz", "planetoid/raw", "raw")]
    files = [f"ind.citeseer.{part}" for part in PARTS]
    for part in [*places, *files, server.as_uri(), "could not be fetched", "x_indptr", "--data-root"]:
        assert part in str(info.value)
    assert not (tmp_path / "data").exists()


def test_folder_that_cannot_be_made(published, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        load_graph("pubmed", data_root=tmp_path / "data")


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), KeyboardInterrupt()])
def test_interrupted_download_leaves_nothing(published, tmp_path, monkeypatch, error):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise error

    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Broken(b"x" * 100))
    with pytest.raises((FileNotFoundError, KeyboardInterrupt)):
        load_graph("pubmed", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_checksums_are_known_for_every_file():
    names = {f"ind.{name}.{part}" for name in ("cora", "citeseer", "pubmed") for part in PARTS}
    assert planetoid_files.SHA256.keys() == names
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in planetoid_files.SHA256.values())


@needs_data
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_checksums_are_those_of_the_real_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(planetoid_files, "ADDRESS", (Path(REAL) / "planetoid" / "raw").resolve().as_uri())
    assert load_graph(name, data_root=tmp_path).num_nodes == load_graph(name).num_nodes
