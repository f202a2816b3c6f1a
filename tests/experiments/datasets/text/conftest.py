"""Parallel text on disk, and a server to fetch it from."""

import pytest
from experiments.datasets.text.readers import multi30k


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Folder that the files are fetched from instead of the network; empty at first."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(multi30k, "ADDRESS", folder.as_uri())
    return folder


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
