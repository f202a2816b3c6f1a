"""The embedded corpus: the one of the published results, with links that say which words mean the same."""

from hashlib import sha256

from experiments.datasets.text.parallel import toy_translation

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
