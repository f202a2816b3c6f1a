"""Links of the baselines on disk: read again under the same key, made again under another, and damaged files."""

import numpy as np
import pytest
import torch

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt.align_table.aligned import align_by_baseline
from experiments.nmt.align_table.kept import fingerprint, kept
from tests.experiments.nmt.align_table.test_aligned import TEST, TRAIN


def make():
    return align_by_baseline("ibm1", TRAIN, TEST, with_test=True)


def never():
    raise AssertionError("trained again")


def test_they_are_read_as_they_were_made(tmp_path):
    path = tmp_path / "baselines" / "ibm1.npz"
    first = kept(path, "key", TEST, make)
    again = kept(path, "key", TEST, never)
    for side in ("forward", "backward"):
        for one, other in zip(getattr(first, side), getattr(again, side), strict=True):
            assert (one.source, one.target, one.prior) == (other.source, other.target, other.prior)
            assert one.posterior.dtype == other.posterior.dtype
            assert torch.equal(one.posterior, other.posterior)
    assert [file.name for file in path.parent.iterdir()] == ["ibm1.npz"]


def test_another_key_makes_them_again(tmp_path):
    path, made = tmp_path / "ibm1.npz", []
    for key in ("one", "one", "other", "other", "one"):
        kept(path, key, TEST, lambda key=key: made.append(key) or make())
    assert made == ["one", "other", "one"]


def test_a_key_knows_all_that_links_depend_on():
    other = ParallelText(TRAIN.source, [*TRAIN.target[:-1], "one book"], "train", ("de", "en"))
    keys = [
        fingerprint("ibm1", TRAIN, TEST, with_test=True),
        fingerprint("ibm2", TRAIN, TEST, with_test=True),
        fingerprint("ibm1", TRAIN, TEST, with_test=False),
        fingerprint("ibm1", other, TEST, with_test=True),
        fingerprint("ibm1", TRAIN, TRAIN, with_test=True),
    ]
    assert len(set(keys)) == len(keys)
    assert fingerprint("ibm1", TRAIN, TEST, with_test=True) == keys[0]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def lose(side):
    def write(path):
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        arrays[side] = arrays[side][:-1]
        np.savez(path, **arrays)

    return write


@pytest.mark.parametrize(
    "damage",
    [lose("backward"), lambda path: np.savez(path, key=np.array("key"))],
    ids=["backward", "no links"],
)
def test_a_damaged_file(tmp_path, damage):
    path = tmp_path / "ibm1.npz"
    kept(path, "key", TEST, make)
    damage(path)
    with pytest.raises(UserError, match=r"ibm1\.npz cannot be read .* expected the links of a baseline; remove it"):
        kept(path, "key", TEST, never)
