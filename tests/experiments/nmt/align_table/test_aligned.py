"""Baselines of the table: both directions of the same pairs, and eflomal as another program."""

import pytest
import torch

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt.align_table.aligned import align_by_baseline
from experiments.nmt.align_table.em_aligners import train_em

TRAIN = ParallelText(["das haus", "das buch", "ein buch"], ["the house", "the book", "a book"], "train", ("de", "en"))
TEST = ParallelText(["ein haus", "das"], ["a new house", "the"], "test", ("de", "en"))


@pytest.mark.parametrize("with_test", [False, True])
def test_both_directions(with_test):
    found = align_by_baseline("ibm1", TRAIN, TEST, with_test=with_test)
    assert [(pair.source, pair.target) for pair in found.forward] == [
        (["ein", "haus"], ["a", "new", "house"]),
        (["das"], ["the"]),
    ]
    assert [pair.posterior.shape for pair in found.forward] == [(1, 3, 2), (1, 1, 1)]
    assert [pair.posterior.shape for pair in found.backward] == [(1, 2, 3), (1, 1, 1)]
    text = [*TRAIN.source, *TEST.source], [*TRAIN.target, *TEST.target]
    sides = text if with_test else (TRAIN.source, TRAIN.target)
    pairs = [(source.split(), target.split()) for source, target in zip(*sides, strict=True)]
    expected = train_em(pairs, model="ibm1").link_probabilities(["ein", "haus"], ["a", "new", "house"])
    torch.testing.assert_close(found.forward[0].posterior[0], expected)
    assert (expected[1].sum() > 0) == with_test  # a word never seen has no link
    assert found.weights("prior") is None
    combined = (found.forward[0].posterior + found.backward[0].posterior.mT) / 2
    torch.testing.assert_close(found.combined[0].posterior, combined)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a shell script in the place of eflomal-align."""

    def program(script):
        path = tmp_path / "eflomal-align"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return program


def test_eflomal(program):
    """It is given all sentences, and what it says of the last ones counts, in both directions source first."""
    program("sed 's/.*/0-0/' source > forward; sed '1,3s/.*//; 4s/.*/1-2/; 5s/.*//' target > backward")
    found = align_by_baseline("eflomal", TRAIN, TEST, with_test=True)
    assert found.forward[0].posterior.tolist() == [[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    assert found.backward[0].posterior.tolist() == [[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
    assert found.backward[1].posterior.tolist() == [[[0.0]]]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no memory >&2; exit 3", "eflomal-align failed: no memory; leave it out of --baselines"),
        ("sed 's/.*/0-0/' source > forward", "eflomal-align failed: it wrote no"),
        ("sed 's/.*/0-9/' source > forward; cp forward backward", "eflomal-align failed: .* outside"),
    ],
)
def test_eflomal_that_fails(program, script, message):
    program(script)
    with pytest.raises(UserError, match=message):
        align_by_baseline("eflomal", TRAIN, TEST, with_test=True)
