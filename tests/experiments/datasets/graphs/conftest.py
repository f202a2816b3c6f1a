"""A tiny graph in Planetoid's original format, on disk or on a server."""

from hashlib import sha256

import pytest

from experiments.datasets.graphs import planetoid_files
from tests.experiments.datasets.graphs.tiny_planetoid import python2, tiny_content


@pytest.fixture
def write(tmp_path):
    """Write the files of a graph; changes are by part: a value to store, bytes as they are, or None for no file."""

    def write(changes=(), *, name="pubmed", folder="planetoid/raw", dump=python2):
        target = tmp_path / folder
        target.mkdir(parents=True, exist_ok=True)
        for part, value in (tiny_content() | dict(changes)).items():
            if isinstance(value, str):
                value = value.encode()
            if value is not None:
                (target / f"ind.{name}.{part}").write_bytes(value if isinstance(value, bytes) else dump(value))
        return tmp_path

    return write


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Folder that the files are fetched from instead of the network; empty at first."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(planetoid_files, "ADDRESS", folder.as_uri())
    return folder


@pytest.fixture
def published(write, server, monkeypatch):
    """The tiny graph is what is published."""
    write(folder="server")
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in server.iterdir()}
    monkeypatch.setattr(planetoid_files, "SHA256", sums)
    return server
