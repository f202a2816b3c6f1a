"""Files that were whole and are damaged: the error of their reader, or what is still there, and nothing else."""

import pytest

from experiments.files import UserError
from tests.experiments.datasets.test_hostile_files import write
from tests.experiments.hostile.formats import FORMATS
from tests.experiments.hostile.mutations import mutations
from tests.experiments.hostile.sealed import sealed


def error_of(read, path):
    """What the reader says of a bad file; None where it reads it."""
    try:
        read(path)
    except (UserError, ValueError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_file(name, tmp_path, monkeypatch):
    kind = FORMATS[name]
    path, whole = tmp_path / kind.file, kind.make()
    write(tmp_path, kind.others | {kind.file: whole})
    kind.read(path)
    refused = 0
    for what, content in mutations(whole):
        path.write_bytes(content)
        with sealed(tmp_path, monkeypatch):
            message = error_of(kind.read, path)
        if message is not None:
            assert str(path) in message, what
            refused += 1
    # a flip may leave a file as good as before; most of what is cut off does not
    assert refused >= 8


def test_as_many_as_are_told():
    assert len(FORMATS) * len(list(mutations(b"12345678"))) > 700
