from collections import Counter, defaultdict
from hashlib import sha256

import pytest

from experiments.datasets.text.toy_translation import toy_translation

CORPUS = toy_translation(0, train=3000, val=300, test=300)
TRAIN = CORPUS["train"]
# Words that may be in no link: they have no counterpart of their own.
LOOSE = {"de": {",", "sich", "der", "die", "das", "den", "an"}, "en": {"does", "do", "is", "are", "going", "to", "'s"}}


def rows(text):
    for source, target, alignment in zip(text.source, text.target, text.alignments, strict=True):
        yield source.split(), target.split(), alignment.links


def linked(source, target, links):
    """Links as words."""
    return {(source[i], target[j]) for i, j in links}


def share(holds):
    values = [bool(holds(*row)) for row in rows(TRAIN)]
    return sum(values) / len(values)


def crossing(_source, _target, links):
    return any(i < k and j > m for i, j in links for k, m in links)


@pytest.mark.parametrize("side", ["source", "target"])
def test_splits_share_no_sentence(side):
    sentences = [sentence for text in CORPUS.values() for sentence in getattr(text, side)]
    assert len(set(sentences)) == len(sentences) == 3600


def test_corpus_is_the_same_everywhere():
    """Results of different machines and releases of Python are about the same sentences."""
    content = "".join(f"{words} {sorted(links)}" for text in CORPUS.values() for *words, links in rows(text))
    assert sha256(content.encode()).hexdigest()[:16] == "fa280319a8dae0a4"


@pytest.mark.parametrize("split", CORPUS)
def test_every_content_word_has_a_link(split):
    for source, target, links in rows(CORPUS[split]):
        assert 4 <= len(source) <= 20
        assert 4 <= len(target) <= 20
        assert source[-1] == target[-1]
        assert source[-1] in {".", "?"}
        assert all(0 <= i < len(source) and 0 <= j < len(target) for i, j in links)
        free = {source[i] for i in set(range(len(source))) - {i for i, _ in links}}
        assert free <= LOOSE["de"]
        free = {target[j] for j in set(range(len(target))) - {j for _, j in links}}
        assert free <= LOOSE["en"]


def several(side):
    return lambda _source, _target, links: max(Counter(link[side] for link in links).values()) > 1


@pytest.mark.parametrize(
    ("holds", "least"),
    [
        (crossing, 0.3),
        (several(0), 0.3),  # one German word, several English ones
        (several(1), 0.2),
        (lambda source, _, links: len({i for i, _ in links}) < len(source), 0.3),
        (lambda _, target, links: len({j for _, j in links}) < len(target), 0.3),
    ],
    ids=["crossing", "several targets", "several sources", "source words without links", "target words without links"],
)
def test_alignment_matters(holds, least):
    assert share(holds) > least


@pytest.fixture(scope="module")
def translations():
    """All that a word is linked with, by language and word."""
    found = {"de": defaultdict(set), "en": defaultdict(set)}
    for source, target, links in rows(TRAIN):
        for first, second in linked(source, target, links):
            found["de"][first].add(second)
            found["en"][second].add(first)
    return found


@pytest.mark.parametrize(
    ("language", "word", "expected"),
    [
        ("de", "sie", {"she", "her", "they", "them"}),
        ("de", "Bank", {"bench", "bank"}),
        ("de", "sich", set()),
        ("en", "small", {"kleine", "kleinen", "kleiner", "kleines"}),
    ],
)
def test_translations_of_a_word(translations, language, word, expected):
    assert translations[language].get(word, set()) == expected
