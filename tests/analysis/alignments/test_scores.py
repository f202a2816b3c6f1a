"""Alignment error rate, agreement, and gold links on disk."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given

from pyro_attention.analysis import (
    Alignment,
    GoldAlignment,
    agreement,
    alignment_error_rate,
    read_naacl,
    read_pharaoh,
    read_sentences,
    write_pharaoh,
)
from tests.analysis.alignments.random_alignments import PROPERTY, SCORED, TWO, aligned

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


def gold(sure, possible=""):
    return GoldAlignment(aligned(sure, 99, 99).links, aligned(possible, 99, 99).links)


# scores


def test_by_hand():
    """A = 4 links, S = 3, P = 5; A n S = 2, A n P = 3."""
    scores = alignment_error_rate([aligned("0-0 1-1 2-1 3-3")], [gold("0-0 1-1 2-2", "2-1 3-2")])
    assert (scores.num_predicted, scores.num_sure) == (4, 3)
    assert (scores.num_predicted_sure, scores.num_predicted_possible) == (2, 3)
    assert scores.aer == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert scores.precision == 3 / 4
    assert scores.recall == pytest.approx(2 / 3)
    assert scores.f1 == pytest.approx(2 * (3 / 4) * (2 / 3) / (3 / 4 + 2 / 3))


def test_counts_are_summed_before_the_division():
    predicted = [aligned("0-0"), aligned("0-1 1-0 2-2")]
    truth = [gold("0-0"), gold("0-0 1-0")]
    scores = alignment_error_rate(predicted, truth)
    assert scores.aer == pytest.approx(1 - (2 + 2) / (4 + 3))
    assert scores.num_sentences == 2
    parts = [alignment_error_rate([a], [g]) for a, g in zip(predicted, truth, strict=True)]
    assert parts[0] + parts[1] == scores
    assert scores.aer != pytest.approx((parts[0].aer + parts[1].aer) / 2)


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        ("", gold(""), (0.0, 1.0, 1.0, 1.0)),
        ("", gold("", "0-0"), (0.0, 1.0, 1.0, 1.0)),  # possible links may be missing
        ("", gold("0-0"), (1.0, 1.0, 0.0, 0.0)),
        ("1-1", gold(""), (1.0, 0.0, 1.0, 0.0)),
        ("0-0", gold("", "0-0"), (0.0, 1.0, 1.0, 1.0)),
        ("1-1", gold("0-0"), (1.0, 0.0, 0.0, 0.0)),
    ],
)
def test_empty_cases(predicted, truth, expected):
    scores = alignment_error_rate([aligned(predicted)], [truth])
    assert (scores.aer, scores.precision, scores.recall, scores.f1) == expected


@PROPERTY
@given(SCORED)
def test_properties(scored):
    predicted, truth = scored
    scores = alignment_error_rate([predicted], [truth])
    for value in (scores.aer, scores.precision, scores.recall, scores.f1):
        assert 0 <= value <= 1
    assert (scores.aer == 0) == (truth.sure <= predicted.links <= truth.possible)
    assert alignment_error_rate([predicted.transposed()], [truth.transposed()]) == scores
    sure_only = alignment_error_rate([predicted], [GoldAlignment(truth.sure)])
    assert sure_only.f1 == pytest.approx(1 - sure_only.aer)


@pytest.mark.parametrize(
    ("predicted", "truth"),
    [
        ({"a": aligned("0-0"), "b": aligned("1-1")}, {"b": gold("1-1"), "a": gold("0-0")}),
        ((aligned("0-0"), aligned("1-1")), [gold("0-0"), gold("1-1")]),
    ],
    ids=["by id", "in order"],
)
def test_sentences_are_paired(predicted, truth):
    assert alignment_error_rate(predicted, truth).aer == 0


@pytest.mark.parametrize(
    ("predicted", "truth", "error", "message"),
    [
        ({"a": aligned("0-0"), "b": aligned("1-1")}, {"a": gold("0-0")}, ValueError,
         r"got 2 and 1 sentences, expected the same ones .* 1 are in one .*: b"),
        ([aligned("")], [gold(""), gold("")], ValueError, "got 1 and 2 sentences"),
        ([], [], ValueError, r"got 0 and 0 sentences, expected .* at least one"),
        ({"a": aligned("0-0")}, [gold("")], TypeError, "got a dict and a list, expected two mappings"),
        (aligned(""), [gold("")], TypeError, "got a Alignment and a list, expected two mappings .* or two seq"),
        ([frozenset()], [gold("")], TypeError, "sentence 0 has a predicted frozenset and a gold GoldAlignment"),
        ({"7": aligned("", 4, 3)}, {"7": gold("", "0-3")}, ValueError,
         r"sentence 7: gold link \(0, 3\) lies outside of the 4 source and 3 target"),
    ],
    ids=["names", "numbers", "none", "mapping", "single", "type", "link"],
)  # fmt: skip
def test_wrong_sentences(predicted, truth, error, message):
    with pytest.raises(error, match=message):
        alignment_error_rate(predicted, truth)


def test_agreement():
    schemes = {
        "soft": [aligned("0-0 1-1"), aligned("2-2")],
        "hard": [aligned("0-0 1-2"), aligned("2-2 3-3")],
        "none": [aligned(""), aligned("")],
    }
    table = agreement(schemes)
    assert table[0].tolist() == pytest.approx([1, 2 * 2 / (3 + 4), 0])
    assert table.equal(table.mT)
    assert table.diagonal().tolist() == [1, 1, 1]
    assert agreement({"a": [aligned("")], "b": [aligned("")]}).equal(torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("schemes", "error", "message"),
    [
        ({"a": [aligned("")], "b": [aligned("", 2, 2)]}, ValueError,
         r"sentence 0 has \(2, 2\) .* in 'b', \(4, 4\) in 'a'; expected the same"),
        ({}, ValueError, "alignments is empty, expected the alignments of at least one scheme"),
        ({"a": [frozenset()]}, TypeError, "sentence 0 of 'a' has a frozenset, expected an Alignment"),
        ({"a": [aligned("")], "b": [aligned("")] * 2}, ValueError, "got 2 and 1 sentences"),
    ],
    ids=["lengths", "none", "type", "numbers"],
)  # fmt: skip
def test_wrong_schemes(schemes, error, message):
    with pytest.raises(error, match=message):
        agreement(schemes)


@pytest.mark.parametrize(
    ("links", "possible", "text"),
    [
        (gold("1-0", "0-2"), {(1, 0), (0, 2)}, "0p2 1-0"),
        (gold("1-0 0-10", "0-2 1-0"), {(1, 0), (0, 10), (0, 2)}, "0p2 0-10 1-0"),
    ],
)
def test_gold_alignment(links, possible, text):
    assert links.possible == possible
    assert str(links) == text


# agreement


@PROPERTY
@given(TWO)
def test_agreement_is_the_f1_of_sure_links(two):
    first, second = two
    assume(first.links or second.links)
    expected = alignment_error_rate([first], [GoldAlignment(second.links)]).f1
    assert agreement({"a": [first], "b": [second]})[0, 1].item() == pytest.approx(expected)


# files


def write(folder, text, **options):
    path = folder / "gold.txt"
    path.write_text(text, **({"encoding": "utf-8", "newline": ""} | options))
    return path


@pytest.mark.parametrize(
    ("read", "text", "options", "expected"),
    [
        (read_pharaoh, "4\t0-0 1p0 10-2 \n9\t\n", {}, {"4": gold("0-0 10-2", "1-0"), "9": gold("")}),
        (read_pharaoh, "4\t0-0 1p0 10-2 \n9\t\n", {"target_first": True},
         {"4": gold("0-0 10-2", "1-0").transposed(), "9": gold("")}),
        (read_pharaoh, "1-1 2p1\r\n\r\n2-1", {"index": 1}, {"0": gold("0-0", "1-0"), "1": gold(""), "2": gold("1-0")}),
        (read_pharaoh, "\ufeff1\t0-0\n", {"lengths": {"1": (1, 1)}}, {"1": gold("0-0")}),
        (read_pharaoh, "", {}, {}),
        (read_naacl, "0001 1 1 S\n0001 2 1 P\n\n  0002 3 2\n0002 1 2 S 0.75\n0002 2 2 1\n", {},
         {"0001": gold("0-0", "1-0"), "0002": gold("2-1 0-1 1-1")}),
        (read_naacl, "1 3 0 S\n", {"index": 0, "target_first": True}, {"1": gold("0-3")}),
        (read_naacl, "1 1 1 P\n", {"lengths": {"1": (2, 2), "2": (1, 1)}}, {"1": gold("", "0-0"), "2": gold("")}),
        (read_sentences, "0\tÜber  uns\n1\t\n", {}, {"0": ["Über", "uns"], "1": []}),
        # a line separator of Unicode is no line break here
        (read_sentences, "a\u2028b\nc\n", {}, {"0": ["a", "b"], "1": ["c"]}),
    ],
)  # fmt: skip
def test_files(read, text, options, expected, tmp_path):
    assert read(write(tmp_path, text), **options) == expected


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("named", [True, False])
def test_written_files_are_read_again(index, named, tmp_path):
    path = tmp_path / "links.txt"
    links = [aligned("0-0 10-2", 11, 3), gold("1-0", "0-2"), aligned("")]
    write_pharaoh(path, dict(zip("abc", links, strict=True)) if named else links, index=index)
    read = read_pharaoh(path, index=index)
    assert list(read) == (["a", "b", "c"] if named else ["0", "1", "2"])
    assert [str(found) for found in read.values()] == ["0-0 10-2", "0p2 1-0", ""]
    with pytest.raises(TypeError, match="sentence 0 has a str, expected an Alignment or GoldAlignment"):
        write_pharaoh(path, ["0-0"])


@pytest.mark.parametrize(
    ("read", "text", "options", "message"),
    [
        (read_pharaoh, "0-0\n0-0 1:1\n", {}, r"gold.txt, line 2: '1:1' is no link, expected i-j for a sure one or ipj"),
        (read_pharaoh, "0-0 -1-0", {}, "line 1: '-1-0' is no link"),
        (read_pharaoh, "3\t0-1\n", {"index": 1}, "line 1, sentence 3: a link has position 0 .* pass index=0"),
        (read_pharaoh, "3\t0-1\n3\t\n", {}, "line 2: the sentence id '3' occurs twice"),
        (read_pharaoh, "3\t0-1\n0-0\n", {}, "line 2 has no id and a tab before its text, unlike the first"),
        (read_pharaoh, "0-1\n1\t0-0\n", {}, "line 2 has an id"),
        (read_pharaoh, "3\t0-1\n", {"lengths": {}}, "line 1: sentence 3 has no entry in lengths"),
        (read_pharaoh, "3\t1-2\n", {"lengths": {"3": (2, 2)}},
         "line 1, sentence 3: link 1-2 lies outside of 2 source and 2 target words; look at index=0, target_first=F"),
        (read_pharaoh, "0-0", {"index": 2}, "index is 2, expected 0 or 1"),
        (read_naacl, "1 1 1 S\n1 0 1 S\n", {}, "line 2, sentence 1: a link has position 0 .* without links to NULL"),
        (read_naacl, "1 1\n", {}, "line 1 is '1 1', expected the columns sentence, source, target, S or P, confidence"),
        (read_naacl, "1 1 1 X\n", {}, "line 1 is '1 1 1 X', expected the columns"),
        (read_naacl, "1 1 1.5 S\n", {}, "expected the columns"),
        (read_naacl, "1 1 3 S\n", {"lengths": {"1": (3, 2)}}, "line 1, sentence 1: link 1-3 lies outside of 3 source"),
        (read_sentences, "1\ta\n1\tb\n", {}, "line 2: the sentence id '1' occurs twice"),
    ],
)  # fmt: skip
def test_wrong_files(read, text, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, text), **options)


# real gold links


@needs_data
def test_real_gold_links():
    """522 French-English sentence pairs: what README says, and that every link fits its sentences."""
    folders = sorted(Path(REAL, "word-alignment", "alibi-fr-en").glob("*_*"))
    pairs = sure = possible = 0
    for folder in folders:
        names = folder.name.split("_")
        french, english = (read_sentences(folder / f"{name}_sents.txt") for name in names)
        lengths = {name: (len(french[name]), len(english[name])) for name in french}
        links = read_pharaoh(folder / f"ali_w2w_{folder.name}.txt", lengths=lengths)
        assert links.keys() == french.keys() == english.keys()
        pairs += len(links)
        sure += sum(len(g.sure) for g in links.values())
        possible += sum(len(g.possible) for g in links.values())
        perfect = {name: Alignment(g.sure, *lengths[name]) for name, g in links.items()}
        assert alignment_error_rate(perfect, links).aer == 0
    assert (pairs, sure, possible - sure) == (522, 8452, 14147)


@needs_data
def test_real_german_gold_links(tmp_path):
    """English stands on the left of its links."""
    folder = Path(REAL, "word-alignment", "simalign")
    german, english = (read_sentences(folder / f"sample_{language}.txt") for language in ("deu", "eng"))
    lengths = {name: (len(german[name]), len(english[name])) for name in german}
    links = read_pharaoh(folder / "sample_eng_deu.gold", target_first=True, lengths=lengths)
    assert {(german["1"][s], english["1"][t]) for s, t in links["1"].sure} == {
        ("Das", "this"), ("stimmt", "is"), ("stimmt", "what"), ("stimmt", "happens"), ("nicht", "not"), ("!", "."),
    }  # fmt: skip
    with pytest.raises(ValueError, match="line 1, sentence 0: link 6-9 lies outside of 11 source and 9 target words"):
        read_pharaoh(folder / "sample_eng_deu.gold", lengths=lengths)
    write_pharaoh(tmp_path / "links.txt", links)
    assert read_pharaoh(tmp_path / "links.txt", lengths=lengths) == links
