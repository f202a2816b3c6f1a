"""TED talks put together from what there is of them."""

import gzip
import os

import pytest

from experiments.datasets.text.parallel import load_parallel
from tests.experiments.datasets.text.tiny_parallel import pairs


@pytest.fixture
def ted(write, tmp_path):
    """Nine held-out pairs, a sample of two pairs and further ones, one side of them packed."""
    for side in ("de", "en"):
        write(f"iwslt14-de-en/valid.{side}", "".join(f"{side} {i}{' a b c' * (i > 0)}\n" for i in range(9)))
        write(f"iwslt14-de-en/lowres_train_v1.bpe.{side}", f"{side} sam@@ ple\n{side} again\n")
        further = [
            f"{side} new",
            f"{side} again",
            f"{side} 8 a b c" if side == "en" else "de other",
            f"{side} 1 2 3 4 5",
        ]
        content = "".join(f"{line}\n" for line in further)
        if side == "en":
            write("ted-de-en-extra/train.en.gz", gzip.compress(content.encode()))
        else:
            write("ted-de-en-extra/train.de", content)
    return lambda split, **options: load_parallel("ted", split, data_root=tmp_path / "data", **options)


def test_training_text(ted):
    text = ted("train", max_words=4, skip=True)
    assert pairs(text) == [("de sample", "en sample"), ("de again", "en again"), ("de new", "en new")]
    assert (text.name, text.languages) == ("ted", ("de", "en"))
    assert text.skipped == {"repeated": 1, "long": 2}
    assert ted("train").skipped == {"repeated": 1, "held out": 1}
    assert pairs(ted("train", source="en", target="de"))[0] == ("en sample", "de sample")


def test_pairs_with_gaps_are_left_out(ted, write):
    """As in ted-de-en-extra, where half of the pairs have them; errors still name the line of the file."""
    lines = "{0} one\n<{1}_1> is\ntwo <{1}_0> three\n{0} four\n"
    write("ted-de-en-extra/train.de", lines.format("de", "S"))
    write("ted-de-en-extra/train.en.gz", gzip.compress(lines.format("en", "T").encode()))
    text = ted("train")
    assert pairs(text)[2:] == [("de one", "en one"), ("de four", "en four")]
    assert text.skipped == {"gaps": 2}
    write("ted-de-en-extra/train.de", lines.format("de", "S").replace("de four", " "))
    with pytest.raises(ValueError, match=r"train\.de: line 4 is empty"):
        ted("train")


def test_a_rule_for_training_pairs_does_not_free_held_out_ones(ted, write):
    write("iwslt14-de-en/valid.de", "de 0\nde new\n")
    write("iwslt14-de-en/valid.en", "en 0\nen that is too long\n")
    assert pairs(ted("train", max_words=4, skip=True)) == [("de sample", "en sample"), ("de again", "en again")]


def test_held_out_text(ted):
    assert ted("val").source == ["de 0", "de 4 a b c", "de 8 a b c"]
    assert ted("test").target == [f"en {i} a b c" for i in (1, 2, 3, 5, 6, 7)]


@pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
def test_real_ted():
    train, val, test = (load_parallel("ted", split) for split in ("train", "val", "test"))
    assert [len(train), len(val), len(test)] == [17266, 1821, 5461]
    assert train.skipped["gaps"] == 9840
    assert not any("<" in line for line in train.target)
    held_out = {*val.source, *val.target, *test.source, *test.target}
    assert not held_out & {*train.source, *train.target}
