"""Multi30k's files: fetched where they are missing, and only with what was published."""

import gzip
import re
from hashlib import sha256

import pytest

from experiments.datasets.text.parallel import PARALLEL, load_parallel
from experiments.datasets.text.readers import multi30k
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


def test_rest_is_fetched_to_go_with_published_files_only(monkeypatch, server, tmp_path, write):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    write("multi30k/task1/val.de", "eins\n")
    assert len(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == 1
    (tmp_path / "data" / "multi30k" / "task1" / "val.en").unlink()
    write("multi30k/task1/val.de", "zwei\n")
    with pytest.raises(FileNotFoundError, match=r"val\.en missing; .* not fetched .* because .*val\.de differs"):
        load_parallel("multi30k", "val", data_root=tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"other"), "has the SHA-256 checksum .*; expected .*Nothing of it was kept.*intact copy"),
        (gzip.compress(b"eins\n" * 99)[:-9], "is no gzip archive .*Nothing of it was kept"),
        (b"<html>", "is no gzip archive"),
        (gzip.compress(b"eins")[:12] + b"\xff" * 9, "is no gzip archive"),
    ],
    ids=["other", "cut off", "page", "damaged"],
)
def test_damaged_download(monkeypatch, server, tmp_path, content, message):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    (server / "val.de.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_parallel("multi30k", "val", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_no_network(server, tmp_path):
    with pytest.raises(FileNotFoundError) as info:
        load_parallel("multi30k", "test", data_root=tmp_path / "data")
    for part in (str(tmp_path / "data"), "test_2016_flickr.de", server.as_uri(), "could not be fetched", "--data-root"):
        assert part in str(info.value)
    assert not (tmp_path / "data").exists()


def test_checksums_are_known_for_every_file():
    stems, languages = ("train", "val", "test_2016_flickr"), PARALLEL["multi30k"].languages
    assert multi30k.SHA256.keys() == {f"{stem}.{language}" for stem in stems for language in languages}
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in multi30k.SHA256.values())
