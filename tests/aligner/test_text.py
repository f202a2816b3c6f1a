"""Words of lines in many scripts, and letters as evidence of links."""

import unicodedata

import numpy as np
import pytest
import torch

from pyro_attention.aligner.strings import CLASSES, SpelledText, Spelling, string_ratios
from pyro_attention.aligner.text import Preparation, lacks_blanks

regex = pytest.importorskip("regex")

SCRIPTS = {
    "German": ("Er kam, sah 3.5 km.", ["Er", "kam", ",", "sah", "3.5", "km", "."]),
    "apostrophes": ("l'eau, don’t", ["l", "'", "eau", ",", "don", "’", "t"]),
    "Hindi": ("हिन्दी में लिखा है।", ["हिन्दी", "में", "लिखा", "है", "।"]),
    "Tamil": ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
    "Bengali": ("বাংলা ভাষা।", ["বাংলা", "ভাষা", "।"]),
    "Arabic with marks": ("كِتَابٌ جَدِيدٌ،", ["كِتَابٌ", "جَدِيدٌ", "،"]),
    "Hebrew with marks": ('שָׁלוֹם עֲלֵיכֶם, צה"ל', ["שָׁלוֹם", "עֲלֵיכֶם", ",", 'צה"ל']),
    "Persian with a joiner": ("می\u200cخواهم بروم", ["می\u200cخواهم", "بروم"]),
    "Chinese": ("我们去北京吧。", ["我", "们", "去", "北", "京", "吧", "。"]),
    "Japanese": ("これはペンです", ["こ", "れ", "は", "ペン", "で", "す"]),
    "emoji": ("ok 👩\u200d👩\u200d👧!", ["ok", "👩\u200d👩\u200d👧", "!"]),
    "blanks of all kinds": ("a\u00a0b\u2028c\u0085d\x0be", ["a", "b", "c", "d", "e"]),
    "nothing": ("  ", []),
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_keep_their_marks(script, form):
    line, words = (unicodedata.normalize(form, text) for text in (SCRIPTS[script][0], "\n".join(SCRIPTS[script][1])))
    assert Preparation(tokenize=True).words(line) == (words.split("\n") if words else [])


@pytest.mark.parametrize("sign", ["\u00a0", "\u2028", "\u0085", "\u200c", "\u3000"], ids=ascii)
def test_only_blanks_of_ascii_divide_words_that_are_divided(sign):
    """So that the numbers of words are those of other tools."""
    assert Preparation().words(f" a{sign}b\tc\r d\x0b\x0ce ") == [f"a{sign}b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("style", "line"), [("@@", "Haus@@ tür@@ en auf"), ("##", "Haus ##tür ##en auf"), ("▁", "▁Haus tür en ▁auf")]
)
def test_pieces_become_words(style, line):
    assert Preparation(subwords=style).words(line) == ["Haustüren", "auf"]


def test_scripts_that_need_division_are_noticed():
    assert lacks_blanks([["我们去北京吧我们去北京吧。"]])
    assert lacks_blanks([["ภาษาไทยเขียนติดกัน"], ["ok"]])
    assert not lacks_blanks([["我们", "去", "北京", "吧"]])
    assert not lacks_blanks([["a"] * 20 + ["我们去北京吧我们去北京吧"]])
    assert not lacks_blanks([[], ["das", "Haus"]])


# Letters


def classes(first, second):
    one, two = Spelling.of(first), Spelling.of(second)
    return one.classes(np.arange(len(first)), two, np.arange(len(second))).tolist()


def test_classes_of_strings():
    """Numbers and marks by equality, words by their letters, accents counting for nothing."""
    first = ["1,000", "1999", ",", "«", "haus", "1", "président", "parlament", "parlament", "ja", "maison"]
    second = ["1000", "1998", ".", '"', "2", "a", "president", "parliament", "house", "yes", "kitchen"]
    found = classes(first, second)
    assert found[:6] == [0, 1, 3, 2, 4, 4]
    equal, near, far = found[6:9]
    assert equal > near > far
    assert classes(["président"], ["president"]) == classes(["parlament"], ["parlament"])
    assert max(found) < CLASSES


@pytest.mark.parametrize("zero", ["\u0660", "\u06f0", "\u0966", "\uff10"], ids=["Arabic", "Persian", "Hindi", "wide"])
def test_numbers_are_equal_in_the_digits_of_all_scripts(zero):
    number = "".join(chr(ord(zero) + digit) for digit in (2, 0, 1, 9))
    assert classes([number, number], ["2019", "2018"]) == [0, 1]


def test_ratios_are_those_of_the_classes_of_links():
    """Classes drawn for links and for other pairs of words: their ratio, and 1 where none is seen."""
    torch.manual_seed(0)
    linked, others = torch.rand(CLASSES), torch.rand(CLASSES)
    linked[-1] = others[-1] = 0
    linked, others = linked / linked.sum(), others / others.sum()
    ratios = string_ratios(1e6 * linked, 1e6 * linked + 1e7 * others)
    torch.testing.assert_close(ratios[:-1], (linked / others)[:-1], rtol=0.01, atol=0)
    assert ratios[-1] == pytest.approx(1)
    torch.testing.assert_close(string_ratios(torch.zeros(CLASSES), torch.zeros(CLASSES)), torch.ones(CLASSES))


def test_classes_of_pairs_of_sentences():
    source, target = [["haus", "7"], ["ja"]], [["the", "haus", "7"], ["yes"]]
    found = SpelledText(source, target).classes([1, 0])
    assert found.shape == (3, 2, 2)
    assert found[:, :, 1].tolist() == [classes(["haus", "7"], [word] * 2) for word in target[0]]
    assert found[0, 0, 0] == classes(["ja"], ["yes"])[0]
