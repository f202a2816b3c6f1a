"""Texts by hand-aligned gold links: words as the links count them, and readers of Europarl and the Hansards."""

import gzip
import os
import re

import pytest
from experiments.datasets.text.plain_words import divide, plain
from experiments.datasets.text.readers.europarl_de_en import HELD_OUT
from experiments.datasets.text.readers.hansards_fr_en import NOVELS

from experiments.datasets.text.parallel import load_parallel
from pyro_attention.analysis import GoldAlignment
from tests.experiments.datasets.text.tiny_parallel import pairs

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


# words


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Die Union (EU), so hieß es: 3,5 %!", "de", "Die Union ( EU ) , so hieß es : 3,5 % !"),
        ('der "Millenium-Bug " kam.', "de", 'der " Millenium-Bug " kam .'),
        ("Mr Barnier's people's plan", "en", "Mr Barnier 's people 's plan"),
        ("I don't, we'll, they've", "en", "I don 't , we 'll , they 've"),
        ("the 'polluter pays' rule of Mr. B. Smith.", "en", "the ' polluter pays ' rule of Mr. B. Smith ."),
        ("L'Etat d'aujourd'hui qu'il n'a", "fr", "L' Etat d' aujourd' hui qu' il n' a"),
        ("$1,000.50 in 1999.", "en", "$ 1,000.50 in 1999 ."),
        ("a  b\u00a0c", "en", "a b c"),
    ],
)
def test_words(text, language, expected):
    assert divide(text, language) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("daß Maßnahmen", {}, "dass Massnahmen"),
        ("l’été « naïf » — œuvre", {"accents": False}, 'l\'ete " naif " - oeuvre'),
        ("l’été", {}, "l'été"),
        ("a \u00ad b so\u00adft", {}, "a \u00ad b soft"),  # no word is lost
    ],
)
def test_spelling_keeps_the_number_of_words(text, options, expected):
    assert plain(text, **options) == expected
    assert len(plain(text, **options).split()) == len(text.split())


# Europarl


@pytest.fixture
def europarl(write):
    """Write a tiny Europarl with some files replaced; None takes a file away."""
    lines = [(f"Satz {i}, daß.", f"Sentence {i}, it's.") for i in range(10)]
    files = {
        f"train.{language}": "".join(f"{pair[side]}\n" for pair in lines) for side, language in enumerate(("de", "en"))
    }
    files |= {
        "gold/test.de": "daß ist\nja !\n",
        "gold/test.en": "that is so\nyes !\n",
        "gold/de-en.wa": "0-0 1-1 \n0-0 1-1\n",
    }

    def europarl(changes):
        for name, content in (files | changes).items():
            if content is not None:
                write(f"europarl-de-en/{name}", content)

    return europarl


@pytest.mark.parametrize("packed", [False, True])
def test_europarl(europarl, tmp_path, packed):
    count = 2 * HELD_OUT + 3
    texts = {language: "".join(f"Wort {language} {i}.\n" for i in range(count)) for language in ("de", "en")}
    changes = {f"train.{language}": None if packed else text for language, text in texts.items()}
    if packed:
        changes |= {f"train.{language}.gz": gzip.compress(text.encode()) for language, text in texts.items()}
    europarl(changes)
    train, val = (load_parallel("europarl_de_en", split, data_root=tmp_path / "data") for split in ("train", "val"))
    assert pairs(train) == [(f"Wort de {i} .", f"Wort en {i} .") for i in range(count - HELD_OUT)]
    assert (len(val), val.source[0], val.alignments) == (HELD_OUT, f"Wort de {count - HELD_OUT} .", None)


def test_europarl_gold_in_both_directions(europarl, tmp_path):
    europarl({})
    text = load_parallel("europarl_de_en", "test", data_root=tmp_path / "data", lowercase=True)
    assert pairs(text) == [("dass ist", "that is so"), ("ja !", "yes !")]
    assert [str(links) for links in text.alignments] == ["0-0 1-1", "0-0 1-1"]
    turned = load_parallel("europarl_de_en", "test", source="en", target="de", data_root=tmp_path / "data")
    assert (turned.languages, turned.source[0], turned.alignments[0].num_source) == (("en", "de"), "that is so", 3)
    assert turned.gold == [links.transposed() for links in text.gold]


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"gold/de-en.wa": "0-0\n"}, "test", r"de-en\.wa has 1 sentences, .*test\.de has 2.*Replace"),
        ({"gold/test.en": "one\n"}, "test", r"test\.en has 1 sentences"),
        ({"gold/de-en.wa": "0-0\n0-2\n"}, "test", r"de-en\.wa, sentence 1: link 0-2 lies outside of 2 and 2 words"),
        ({"gold/de-en.wa": "0-0\n2-0\n"}, "test", r"sentence 1: link 2-0 lies outside"),
        ({"gold/test.en": "a b c\n\n"}, "test", r"test\.en: line 2 is empty; expected a sentence"),
        ({"train.de": "a\n\nb\n", "train.en": "a\nb\nc\n"}, "val", r"train\.de: line 2 is empty"),
        ({"train.de": b"\xff\n" * 10}, "train", r"train\.de: line 1 is not UTF-8"),
        ({"train.de": None}, "train", r"train\.de is missing; expected .*--data-root"),
    ],
)
def test_europarl_that_is_damaged(europarl, tmp_path, changes, split, message):
    europarl(changes)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_parallel("europarl_de_en", split, data_root=tmp_path / "data")


# Hansards and Alibi


@pytest.fixture
def hansards(write):
    """Write tiny Hansards and novels of one sentence each, with some files replaced."""

    def hansards(changes):
        files = {
            f"hansards-fr-en/{stem}.{language}": f"L'{stem}, don't.\n"
            for stem in ("train", "dev")
            for language in ("fr", "en")
        }
        for novel, (french, english) in NOVELS.items():
            folder = f"word-alignment/alibi-fr-en/{novel}"
            files |= {
                f"{folder}/{french}_sents.txt": "0\tl’ été\n", f"{folder}/{english}_sents.txt": "0\tsummer\n",
                f"{folder}/ali_w2w_{novel}.txt": "0\t0p0 1-0 \n",
            }  # fmt: skip
        for name, content in (files | changes).items():
            write(name, content)

    return hansards


def test_hansards(hansards, tmp_path):
    hansards({})
    train, val, test = (
        load_parallel("hansards_fr_en", split, source="fr", data_root=tmp_path / "data")
        for split in ("train", "val", "test")
    )
    assert pairs(train) == [("L' train , don' t .", "L ' train , don 't .")]
    assert pairs(val)[0][0] == "L' dev , don' t ."
    assert pairs(test) == [("l' ete", "summer")] * len(NOVELS)
    assert test.gold == [GoldAlignment(frozenset({(1, 0)}), frozenset({(0, 0), (1, 0)}))] * len(NOVELS)
    assert test.first(2).gold == test.gold[:2]
    turned = load_parallel("hansards_fr_en", "test", source="en", target="fr", data_root=tmp_path / "data")
    assert turned.gold == [links.transposed() for links in test.gold]


# real data


@needs_data
@pytest.mark.parametrize(
    ("name", "languages", "sizes", "links"),
    [
        ("europarl_de_en", ("de", "en"), (19263, 500, 100), (1232, 1232)),
        ("hansards_fr_en", ("fr", "en"), (140000, 2000, 522), (8452, 22599)),
    ],
)
def test_real_texts(name, languages, sizes, links):
    texts = [load_parallel(name, split, source=languages[0], target=languages[1]) for split in ("train", "val", "test")]
    assert tuple(map(len, texts)) == sizes
    assert tuple(sum(len(getattr(gold, part)) for gold in texts[2].gold) for part in ("sure", "possible")) == links
    # the test text is divided as the training text is
    known = {word.lower() for side in (texts[0].source, texts[0].target) for line in side for word in line.split()}
    words = [word.lower() for side in (texts[2].source, texts[2].target) for line in side for word in line.split()]
    assert sum(word not in known for word in words) / len(words) < 0.1
    assert not any(re.search("ß", line) for line in texts[0].source + texts[2].source)
