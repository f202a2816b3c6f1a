"""One alignment out of two directions."""

from typing import get_args

import pytest
from hypothesis import given

from pyro_attention.analysis import Alignment, symmetrise
from pyro_attention.analysis.alignments.symmetrisation import SymmetriseMethod
from tests.analysis.alignments.random_alignments import PROPERTY, TWO, aligned

METHODS = get_args(SymmetriseMethod)


def pseudo_code(forward, backward, method):
    """Koehn et al. (2005) word by word, over the whole grid: e is the target word, f the source word."""
    neighbouring = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
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
                    for step in neighbouring:
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


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("intersection", "0-0"),
        ("union", "0-0 0-1 2-2 2-3 3-1"),
        ("grow-diag", "0-0 0-1"),  # 0-1 touches 0-0, and target word 1 is new
        ("grow-diag-final-and", "0-0 0-1 2-2"),  # 2-3 has a source word, 3-1 a target word with a link
        ("grow-diag-final", "0-0 0-1 2-2 2-3 3-1"),  # target word 3 is new, and so is source word 3
    ],
)
def test_by_hand(method, expected):
    assert symmetrise(aligned("0-0 0-1 2-2"), aligned("0-0 2-3 3-1"), method=method) == aligned(expected)


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        # 0-1 and 1-0 come before the diagonal 1-1, whose words then both have a link
        ("0-0 0-1 1-1", "0-0 1-0 1-1", "0-0 1-1"),  # 1-1 is in the intersection: both neighbours are taken
        ("0-0 0-1 1-1", "0-0 1-0", "0-0 0-1 1-0"),
        ("0-0 1-1 2-2 3-3", "0-0", "0-0 1-1 2-2 3-3"),  # along the diagonal, in one sweep
        ("3-3 2-2 1-1 0-0", "3-3", "0-0 1-1 2-2 3-3"),  # against it, in several
        ("0-0 2-0", "0-0", "0-0"),  # 2-0 does not touch 0-0
        ("0-1", "1-0", ""),  # nothing to grow from
    ],
)
def test_grow_diag_by_hand(forward, backward, expected):
    assert symmetrise(aligned(forward), aligned(backward), method="grow-diag") == aligned(expected)


@pytest.mark.parametrize(
    ("forward", "backward", "method", "expected"),
    [
        ("1-0", "0-0", "grow-diag-final-and", "1-0"),
        ("0-0", "1-0", "grow-diag-final-and", "0-0"),
        ("1-0", "0-0", "grow-diag-final", "0-0 1-0"),
    ],
)
def test_final_takes_forward_before_backward(forward, backward, method, expected):
    """1-0 and 0-0 compete for target word 0, whichever comes first."""
    assert symmetrise(aligned(forward), aligned(backward), method=method) == aligned(expected)


@pytest.mark.parametrize("method", ["grow-diag", "grow-diag-final", "grow-diag-final-and"])
@PROPERTY
@given(TWO)
def test_against_the_pseudo_code(method, two):
    assert symmetrise(*two, method=method) == pseudo_code(*two, method)


@PROPERTY
@given(TWO)
def test_properties(two):
    forward, backward = two
    links = {method: symmetrise(*two, method=method).links for method in METHODS}
    assert links["intersection"] == forward.links & backward.links
    assert links["union"] == forward.links | backward.links
    assert links["intersection"] <= links["grow-diag"] <= links["grow-diag-final"] <= links["union"]
    assert links["grow-diag"] <= links["grow-diag-final-and"] <= links["union"]
    # every word that has a link in either direction has one in the end
    for side in (0, 1):
        assert {link[side] for link in links["grow-diag-final"]} == {link[side] for link in links["union"]}
    for method in METHODS:
        assert symmetrise(forward, forward, method=method) == forward


@pytest.mark.parametrize(
    ("backward", "method", "error", "message"),
    [
        (aligned("0-0", 2, 3), "union", ValueError, r"backward 2 and 3; expected the same: turn .* with .transposed"),
        (frozenset({(0, 0)}), "union", TypeError, "backward is a frozenset, expected an Alignment"),
        (aligned("0-0", 3, 2), "gdfa", ValueError, "method is 'gdfa', expected one of intersection, union, grow-diag"),
    ],
    ids=["lengths", "type", "method"],
)
def test_wrong_input(backward, method, error, message):
    with pytest.raises(error, match=message):
        symmetrise(aligned("0-0", 3, 2), backward, method=method)
