"""Links of many sentence pairs: error rate, both directions made one, and files."""

from typing import get_args

import pytest
from hypothesis import given

from pyro_attention.analysis import (
    Alignment,
    GoldAlignment,
    alignment_error_rate,
    read_naacl,
    read_pharaoh,
    read_sentences,
    symmetrize,
)
from pyro_attention.analysis.alignments.links import SymmetrizeMethod
from tests.analysis.random_inputs import PROPERTY, SCORED, TWO, aligned


def gold(sure, possible=""):
    return GoldAlignment(aligned(sure, 99, 99).links, aligned(possible, 99, 99).links)


def test_error_rate_by_hand():
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


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        ("", gold("", "0-0"), (0.0, 1.0, 1.0, 1.0)),
        ("", gold("0-0"), (1.0, 1.0, 0.0, 0.0)),
        ("1-1", gold(""), (1.0, 0.0, 1.0, 0.0)),
    ],
)
def test_error_rate_of_no_links(predicted, truth, expected):
    scores = alignment_error_rate([aligned(predicted)], [truth])
    assert (scores.aer, scores.precision, scores.recall, scores.f1) == expected


@PROPERTY
@given(SCORED)
def test_error_rate_properties(scored):
    predicted, truth = scored
    scores = alignment_error_rate([predicted], [truth])
    for value in (scores.aer, scores.precision, scores.recall, scores.f1):
        assert 0 <= value <= 1
    assert (scores.aer == 0) == (truth.sure <= predicted.links <= truth.possible)
    assert alignment_error_rate([predicted.transposed()], [truth.transposed()]) == scores
    sure_only = alignment_error_rate([predicted], [GoldAlignment(truth.sure)])
    assert sure_only.f1 == pytest.approx(1 - sure_only.aer)


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
        (read_pharaoh, "\ufeff1\t0-0\n", {}, {"1": gold("0-0")}),
        (read_naacl, "0001 1 1 S\n0001 2 1 P\n\n  0002 3 2\n0002 1 2 S 0.75\n0002 2 2 1\n", {},
         {"0001": gold("0-0", "1-0"), "0002": gold("2-1 0-1 1-1")}),
        (read_naacl, "1 3 0 S\n", {"index": 0, "target_first": True}, {"1": gold("0-3")}),
        (read_sentences, "0\tÜber  uns\n1\t\n", {}, {"0": ["Über", "uns"], "1": []}),
        # a line separator of Unicode is no line break here
        (read_sentences, "a\u2028b\nc\n", {}, {"0": ["a", "b"], "1": ["c"]}),
    ],
)  # fmt: skip
def test_files(read, text, options, expected, tmp_path):
    assert read(write(tmp_path, text), **options) == expected


def test_links_as_text_are_read_again(tmp_path):
    links = [aligned("0-0 10-2", 11, 3), gold("1-0", "0-2"), aligned("")]
    read = read_pharaoh(write(tmp_path, "\n".join(map(str, links)) + "\n"))
    assert [str(found) for found in read.values()] == ["0-0 10-2", "0p2 1-0", ""]


METHODS = get_args(SymmetrizeMethod)


def pseudo_code(forward, backward, method):
    """Koehn et al. (2005) word by word, over the whole grid: e is the target word, f the source word."""
    neighboring = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    first, second = ({(e, f) for f, e in a.links} for a in (forward, backward))
    union, alignment = first | second, first & second
    english, foreign = range(forward.num_target), range(forward.num_source)

    def aligned_e(e):
        return any(point[0] == e for point in alignment)

    def aligned_f(f):
        return any(point[1] == f for point in alignment)

    added = True
    while added:
        added = False
        for e in english:
            for f in foreign:
                if (e, f) in alignment:
                    for step in neighboring:
                        new = (e + step[0], f + step[1])
                        if (not aligned_e(new[0]) or not aligned_f(new[1])) and new in union:
                            alignment.add(new)
                            added = True
    for links in (first, second) if method != "grow-diag" else ():
        for e in english:
            for f in foreign:
                free = (not aligned_e(e), not aligned_f(f))
                if (all(free) if method.endswith("and") else any(free)) and (e, f) in links:
                    alignment.add((e, f))
    return Alignment(frozenset((f, e) for e, f in alignment), forward.num_source, forward.num_target)


@pytest.mark.parametrize("method", ["grow-diag", "grow-diag-final", "grow-diag-final-and"])
@PROPERTY
@given(TWO)
def test_symmetrize_against_the_pseudo_code(method, two):
    assert symmetrize(*two, method=method) == pseudo_code(*two, method)


@PROPERTY
@given(TWO)
def test_symmetrize_properties(two):
    forward, backward = two
    links = {method: symmetrize(*two, method=method).links for method in METHODS}
    assert links["intersection"] == forward.links & backward.links
    assert links["union"] == forward.links | backward.links
    assert links["intersection"] <= links["grow-diag"] <= links["grow-diag-final"] <= links["union"]
    assert links["grow-diag"] <= links["grow-diag-final-and"] <= links["union"]


@pytest.mark.parametrize(
    ("read", "text", "options", "message"),
    [
        (read_pharaoh, "0-0\n0-0 1:1\n", {}, r"gold.txt, line 2: '1:1' is no link, expected i-j for a sure one or ipj"),
        (read_pharaoh, "3\t0-1\n", {"index": 1}, "line 1: a link has position 0 .* pass index=0"),
        (read_naacl, "1 1\n", {}, "line 1 is '1 1', expected the columns sentence, source, target, S or P, confidence"),
    ],
)  # fmt: skip
def test_wrong_files(read, text, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, text), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alignment_error_rate([aligned("")], {"0": gold("")}), "gold a dict of 1, expected sequences"),
        (lambda: alignment_error_rate([aligned("")], []), "of 1 sentence pairs and gold a list of 0"),
        (lambda: alignment_error_rate([aligned("", 4, 3)], [gold("", "0-3")]),
         r"sentence 0: gold link \(0, 3\) lies outside of the 4 source and 3 target"),
        (lambda: symmetrize(aligned("0-0", 3, 2), aligned("0-0", 2, 3), method="union"), "turn .* with .transposed"),
    ],
)  # fmt: skip
def test_links_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_id_of_two_lines_is_refused(tmp_path):
    """Links of one would take the place of the other's; by ids, and by the number of a line beside an id."""
    for text in ("7\t0-0\n7\t1-1\n", "1\t0-0\n0-1\n"):
        (tmp_path / "gold").write_text(text)
        with pytest.raises(ValueError, match=r"gold, line 2 has the id '[17]', as .*gold, line 1 has"):
            read_pharaoh(tmp_path / "gold")
