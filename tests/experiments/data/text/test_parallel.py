"""Sentence pairs: what is read of two files and of every data set, gold links, and what is left out."""

import functools
import gzip
import re
from hashlib import sha256

import pytest

from experiments.data.storage import CHECKSUMS
from experiments.data.text import parallel
from experiments.data.text.parallel import NOVELS, load_parallel, read_parallel, toy_translation
from experiments.data.text.word_rules import divide, divide_words, join_words, plain
from pyro_attention.analysis import GoldAlignment
from tests.experiments.data.tiny_files import write as write_file

CORPUS = toy_translation()
# Words that may be in no link: they have no counterpart of their own.
LOOSE = {"de": {",", "sich", "der", "die", "das", "den", "an"}, "en": {"does", "do", "is", "are", "going", "to", "'s"}}


def rows(text):
    for source, target, alignment in zip(text.source, text.target, text.alignments, strict=True):
        yield source.split(), target.split(), alignment.links


def test_corpus_is_that_of_the_published_results():
    content = "".join(f"{words} {sorted(links)}" for text in CORPUS.values() for *words, links in rows(text))
    assert sha256(content.encode()).hexdigest()[:16] == "96e0d5d4573cc0b1"
    assert {split: len(text) for split, text in CORPUS.items()} == {"train": 4000, "val": 500, "test": 500}
    few = toy_translation(train=3, val=2, test=1)["val"]
    assert (few.source, few.alignments) == (CORPUS["val"].source[:2], CORPUS["val"].alignments[:2])


def test_splits_share_no_sentence():
    for side in ("source", "target"):
        sentences = [sentence for text in CORPUS.values() for sentence in getattr(text, side)]
        assert len(set(sentences)) == len(sentences)


def test_every_content_word_has_a_link():
    for source, target, links in (row for text in CORPUS.values() for row in rows(text)):
        free = {source[i] for i in set(range(len(source))) - {i for i, _ in links}}
        assert free <= LOOSE["de"]
        free = {target[j] for j in set(range(len(target))) - {j for _, j in links}}
        assert free <= LOOSE["en"]


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_long_pairs_of_the_corpus_are_left_out_with_their_links(source, target):
    short = load_parallel("toy", "val", source=source, target=target, max_words=8, skip=True, lowercase=True)
    chosen = [
        (*((german, english) if source == "de" else (english, german)), links)
        for german, english, links in rows(CORPUS["val"])
        if max(len(german), len(english)) <= 8
    ]
    assert 0 < len(short) < 500
    assert short.skipped == {"long": 500 - len(chosen)}
    assert [words.split() for words in short.source] == [[word.lower() for word in words] for words, *_ in chosen]
    turned = [alignment.links if source == "de" else alignment.transposed().links for alignment in short.alignments]
    assert turned == [links for *_, links in chosen]
    with pytest.raises(ValueError, match=r"toy\.\w\w: line \d+ has \d+ words; expected 8 at most .*; raise max_words"):
        load_parallel("toy", "val", source=source, target=target, max_words=8)
    with pytest.raises(ValueError, match="toy: no sentence pairs, 500 skipped"):
        load_parallel("toy", "val", source=source, target=target, max_words=1, skip=True)


def pairs(text):
    return list(zip(text.source, text.target, strict=True))


@pytest.fixture
def write(tmp_path):
    return lambda name, content: write_file(tmp_path / "data" / name, content)


@pytest.fixture
def load(tmp_path):
    return functools.partial(load_parallel, data_root=tmp_path / "data")


# words


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Die Union (EU), so hieß es: 3,5 %!", "de", "Die Union ( EU ) , so hieß es : 3,5 % !"),
        ("I don't, we'll, they've", "en", "I don 't , we 'll , they 've"),
        ("the 'polluter pays' rule of Mr. B. Smith.", "en", "the ' polluter pays ' rule of Mr. B. Smith ."),
        ("L'Etat d'aujourd'hui qu'il n'a", "fr", "L' Etat d' aujourd' hui qu' il n' a"),
        ("$1,000.50 in 1999.", "en", "$ 1,000.50 in 1999 ."),
    ],
)
def test_words_as_links_count_them(text, language, expected):
    assert divide(text, language) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("daß Maßnahmen", {}, "dass Massnahmen"),
        ("l’été « naïf » — œuvre", {"accents": False}, 'l\'ete " naif " - oeuvre'),
        ("a \u00ad b so\u00adft", {}, "a \u00ad b soft"),  # no word is lost
    ],
)
def test_spelling_keeps_the_number_of_words(text, options, expected):
    assert plain(text, **options) == expected


def test_words_of_nltk():
    assert divide_words("Er kam, sah und (z.B.) don't.", "nltk") == "Er kam , sah und ( z.B. ) do n't ."
    assert divide_words("Er  kam, sah.", "none") == "Er kam, sah."
    assert join_words("Er kam , sah .", "nltk") == "Er kam, sah."
    assert join_words("Er kam , sah .", "none") == "Er kam , sah ."


# two plain files


@pytest.fixture
def read(write):
    def read(source, target, **options):
        return read_parallel(write("a.de", source), write("a.en", target), languages=("de", "en"), **options)

    return read


@pytest.mark.parametrize(
    ("source", "target", "options", "expected"),
    [
        ("ÄRGER Straße\n", "Not OK\n", {"lowercase": True}, [("ärger straße", "not ok")]),
        ("\ufeffeins\r\nzwei drei", "one\ntwo three\r\n", {}, [("eins", "one"), ("zwei drei", "two three")]),
        ("a\u2028b\x85c\x0bd\u00a0 e\n", " a b c d\te\n", {}, [("a b c d e", "a b c d e")]),
    ],
    ids=["lowercase", "ends of lines and byte order mark", "white space"],
)
def test_reading(read, source, target, options, expected):
    assert pairs(read(source, target, **options)) == expected


BAD_LINES = {
    "undecodable": (b"eins\nzw\xe4i\n", "one\ntwo\n", "a.de: line 2 is not UTF-8, its byte 3 is 0xe4; expected UTF-8"),
    "empty": ("eins\nzwei\n\n", "one\ntwo\n2.5\n", "a.de: line 3 is empty; expected a sentence"),
    "long": ("eins\nzwei\n", "a b c d e\ntwo\n", "a.en: line 1 has 5 words; expected 3 at most (max_words)"),
}


@pytest.mark.parametrize(("reason", "source", "target", "message"), [(key, *row) for key, row in BAD_LINES.items()])
def test_bad_lines_are_told_or_counted(read, reason, source, target, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}.*correct this line"):
        read(source, target, max_words=3)
    assert read(source, target, max_words=3, skip=True).skipped == {reason: 1}


def test_files_that_do_not_go_together(read):
    with pytest.raises(ValueError, match=r"a\.de: 1 lines, but 3 in .*a\.en; expected as many"):
        read("eins\n", "one\ntwo\nthree\n", skip=True)


# data sets


def test_multi30k_is_fetched(load, tmp_path, monkeypatch):
    for name, content in (("val.de", b"eins\n"), ("val.en", b"one\n")):
        write_file(tmp_path / "server" / f"{name}.gz", gzip.compress(content))
        monkeypatch.setitem(CHECKSUMS, name, sha256(content).hexdigest())
    monkeypatch.setattr(parallel, "ADDRESS", (tmp_path / "server").as_uri())
    assert pairs(load("multi30k", "val")) == [("eins", "one")]


def test_iwslt14_samples(load, write):
    samples = {
        "v1": [("a@@ a", "A"), ("held", "B"), ("c", "held out"), ("d", "D"), ("d", "D")],
        "v2": [("aa", "A"), ("e", "E"), ("tested", "F"), ("d", "D again")],
    }
    for side, language in enumerate(("de", "en")):
        for name, content in samples.items():
            lines = "".join(f"{pair[side]}\n" for pair in content)
            write(f"iwslt14-de-en/lowres_train_{name}.bpe.{language}", lines)
        write(f"iwslt14-de-en/valid.{language}", ("held\n", "held out\n")[side])
        write(f"iwslt14-de-en/test.{language}", ("tes@@ ted\n", "tests\n")[side])
    text = load("iwslt14", "train")
    assert pairs(text) == [("aa", "A"), ("d", "D"), ("e", "E"), ("d", "D again")]
    assert (text.name, text.skipped) == ("iwslt14-lowres", {"held out": 3, "repeated": 2})
    assert load("iwslt14", "test").source == ["tested"]
    write("iwslt14-de-en/train.de", "whole\n")
    write("iwslt14-de-en/train.en", "whole\n")
    assert (load("iwslt14", "train").source, load("iwslt14", "train").name) == (["whole"], "iwslt14")


def test_ted(load, write):
    for side in ("de", "en"):
        write(f"iwslt14-de-en/valid.{side}", "".join(f"{side} {i}{' a b c' * (i > 0)}\n" for i in range(9)))
        write(f"iwslt14-de-en/lowres_train_v1.bpe.{side}", f"{side} sam@@ ple\n{side} again\n")
    further = "{0} new\n{0} again\n{1}\n<{2}_1> gap\ngap <{2}_0>\n{0} 1 2 3 4 5\n"
    write("ted-de-en-extra/train.de", further.format("de", "de other", "S"))
    write("ted-de-en-extra/train.en.gz", gzip.compress(further.format("en", "en 8 a b c", "T").encode()))
    # what leaves out long training pairs does not free a held-out one
    text = load("ted", "train", max_words=4, skip=True)
    assert pairs(text) == [("de sample", "en sample"), ("de again", "en again"), ("de new", "en new")]
    assert text.skipped == {"repeated": 1, "long": 2, "gaps": 2}
    assert load("ted", "train").skipped == {"repeated": 1, "held out": 1, "gaps": 2}
    assert load("ted", "val").source == ["de 0", "de 4 a b c", "de 8 a b c"]
    assert load("ted", "test").target == [f"en {i} a b c" for i in (1, 2, 3, 5, 6, 7)]


def test_tatoeba(load, write):
    """Every third English sentence has two translations, every fourth German one two originals but for punctuation."""
    rows = []
    for i in range(200):
        rows.append((f"English {i} .", f"Deutsch {i}"))
        if i % 3 == 0:
            rows.append((f"english {i}!", f"Deutsch {i} anders"))
        if i % 4 == 0:
            rows.append((f"Some other English {i}", f"deutsch {i} ?"))

    def written(rows, split, **options):
        write("tatoeba-deu-eng/deu.txt", "".join("\t".join(row) + "\n" for row in rows))
        return load("tatoeba", split, **options)

    texts = {split: written(rows, split) for split in ("train", "val", "test")}
    assert sorted(pair for text in texts.values() for pair in zip(text.target, text.source, strict=True)) == sorted(
        rows
    )
    size = len(rows) // 10
    assert all(size <= len(texts[split]) < size + 3 for split in ("val", "test"))
    for side in ("source", "target"):
        keys = [{" ".join(re.findall(r"\w+", line.lower())) for line in getattr(text, side)} for text in texts.values()]
        assert sum(map(len, keys)) == len(set.union(*keys))
    # which split a line is in depends on the lines alone: not on further columns, order, direction and options
    turned = written([(*row, "CC-BY") for row in rows], "val", source="en", target="de")
    assert (turned.source, turned.target) == (texts["val"].target, texts["val"].source)
    assert set(pairs(written(rows[::-1], "val"))) == set(pairs(texts["val"]))
    short = written(rows, "val", max_words=3, skip=True)
    assert set(pairs(short)) <= set(pairs(texts["val"]))
    assert len(short) + short.skipped["long"] == len(texts["val"])
    with pytest.raises(ValueError, match=r"deu\.txt: line 2 has no tab"):
        written([rows[0], ("no tab",)], "val")


# gold links


@pytest.fixture
def europarl(write):
    def europarl(**changes):
        count = 1003
        files = {f"train.{side}": "".join(f"Wort {side} {i}.\n" for i in range(count)) for side in ("de", "en")}
        files |= {"gold/test.de": "daß ist\nja !\n", "gold/test.en": "that is so\nyes !\n"}
        for name, content in (files | {"gold/de-en.wa": "0-0 1-1 \n0-0 1-1\n"} | changes).items():
            write(f"europarl-de-en/{name}", content)

    return europarl


def test_europarl(europarl, load):
    europarl()
    train, val = (load("europarl_de_en", split) for split in ("train", "val"))
    assert pairs(train) == [(f"Wort de {i} .", f"Wort en {i} .") for i in range(503)]
    assert (len(val), val.source[0], val.alignments) == (500, "Wort de 503 .", None)
    text = load("europarl_de_en", "test", lowercase=True)
    assert pairs(text) == [("dass ist", "that is so"), ("ja !", "yes !")]
    assert [str(links) for links in text.alignments] == ["0-0 1-1", "0-0 1-1"]


def test_bad_gold_links(europarl, load):
    europarl(**{"gold/de-en.wa": "0-0\n0-2\n"})
    with pytest.raises(ValueError, match=r"de-en\.wa, sentence 1: link \(0, 2\) lies outside of \(2, 2\) words"):
        load("europarl_de_en", "test")


def test_hansards(load, write):
    for stem in ("train", "dev"):
        for language in ("fr", "en"):
            write(f"hansards-fr-en/{stem}.{language}", f"L'{stem}, don't.\n")
    for novel, (french, english) in NOVELS.items():
        folder = f"word-alignment/alibi-fr-en/{novel}"
        write(f"{folder}/{french}_sents.txt", "0\tl’ été\n")
        write(f"{folder}/{english}_sents.txt", "0\tsummer\n")
        write(f"{folder}/ali_w2w_{novel}.txt", "0\t0p0 1-0 \n")
    train, val, test = (load("hansards_fr_en", split, source="fr") for split in ("train", "val", "test"))
    assert pairs(train) == [("L' train , don' t .", "L ' train , don 't .")]
    assert pairs(val)[0][0] == "L' dev , don' t ."
    assert pairs(test) == [("l' ete", "summer")] * len(NOVELS)
    assert test.gold == [GoldAlignment(frozenset({(1, 0)}), frozenset({(0, 0), (1, 0)}))] * len(NOVELS)
    assert test.first(2).gold == test.gold[:2]
    turned = load("hansards_fr_en", "test", source="en", target="fr")
    assert (turned.languages, turned.source[0]) == (("en", "fr"), "summer")
    assert turned.gold == [links.transposed() for links in test.gold]
