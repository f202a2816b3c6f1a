"""Multi30k's files: fetched where they are missing, and only with what was published."""

import gzip
from hashlib import sha256

import pytest
from experiments.datasets.text.readers import multi30k

from experiments.datasets.text.parallel import load_parallel
from tests.experiments.datasets.text.tiny_parallel import pairs


def published(monkeypatch, server, **files):
    for name, content in files.items():
        file = name.replace("_", ".")
        (server / f"{file}.gz").write_bytes(gzip.compress(content.encode()))
        monkeypatch.setitem(multi30k.SHA256, file, sha256(content.encode()).hexdigest())


def test_missing_files_are_fetched(monkeypatch, server, tmp_path):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    assert pairs(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == [("eins", "one")]
    for path in server.iterdir():
        path.unlink()
    assert pairs(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == [("eins", "one")]
    left = sorted(path.name for path in (tmp_path / "data" / "multi30k" / "task1").iterdir())
    assert left == ["val.de", "val.en"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"other"), "has the SHA-256 checksum .*; expected .*Nothing of it was kept.*intact copy"),
        (gzip.compress(b"eins\n" * 99)[:-9], "is damaged.*Nothing of it was kept"),
        (b"<html>", "is damaged"),
    ],
    ids=["other", "cut off", "page"],
)
def test_damaged_download(monkeypatch, server, tmp_path, content, message):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    (server / "val.de.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_parallel("multi30k", "val", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()
