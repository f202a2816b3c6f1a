"""The embedded corpus: the same everywhere, with links that say which words mean the same."""

from collections import Counter, defaultdict
from hashlib import sha256

import pytest

from experiments.datasets.text.toy_translation import toy_translation

CORPUS = toy_translation(0, train=3000, val=300, test=300)
# Words that may be in no link: they have no counterpart of their own.
LOOSE = {"de": {",", "sich", "der", "die", "das", "den", "an"}, "en": {"does", "do", "is", "are", "going", "to", "'s"}}


def rows(text):
    for source, target, alignment in zip(text.source, text.target, text.alignments, strict=True):
        yield source.split(), target.split(), alignment.links


def test_corpus_is_the_same_everywhere():
    """Results of different machines and releases of Python are about the same sentences."""
    content = "".join(f"{words} {sorted(links)}" for text in CORPUS.values() for *words, links in rows(text))
    assert sha256(content.encode()).hexdigest()[:16] == "fa280319a8dae0a4"


@pytest.mark.parametrize("side", ["source", "target"])
def test_splits_share_no_sentence(side):
    sentences = [sentence for text in CORPUS.values() for sentence in getattr(text, side)]
    assert len(set(sentences)) == len(sentences) == 3600


def test_every_content_word_has_a_link():
    for source, target, links in (row for text in CORPUS.values() for row in rows(text)):
        assert 4 <= min(len(source), len(target)) <= max(len(source), len(target)) <= 20
        assert source[-1] == target[-1]
        free = {source[i] for i in set(range(len(source))) - {i for i, _ in links}}
        assert free <= LOOSE["de"]
        free = {target[j] for j in set(range(len(target))) - {j for _, j in links}}
        assert free <= LOOSE["en"]


def several(side):
    return lambda _source, _target, links: max(Counter(link[side] for link in links).values()) > 1


@pytest.mark.parametrize(
    ("holds", "least"),
    [
        (lambda _source, _target, links: any(i < k and j > m for i, j in links for k, m in links), 0.3),
        (several(0), 0.3),  # one German word, several English ones
        (several(1), 0.2),
        (lambda source, _, links: len({i for i, _ in links}) < len(source), 0.3),
        (lambda _, target, links: len({j for _, j in links}) < len(target), 0.3),
    ],
    ids=["crossing", "several targets", "several sources", "source words without links", "target words without links"],
)
def test_alignment_matters(holds, least):
    values = [bool(holds(*row)) for row in rows(CORPUS["train"])]
    assert sum(values) / len(values) > least


def test_translations_of_a_word():
    found = defaultdict(set)
    for source, target, links in rows(CORPUS["train"]):
        for i, j in links:
            found[source[i]].add(target[j])
            found[f"en {target[j]}"].add(source[i])
    assert found["sie"] == {"she", "her", "they", "them"}
    assert found["Bank"] == {"bench", "bank"}
    assert found["sich"] == set()
    assert found["en small"] == {"kleine", "kleinen", "kleiner", "kleines"}
