import doctest
import math
from types import SimpleNamespace

import pytest
import sacrebleu
from nltk.translate.bleu_score import corpus_bleu as nltk_bleu

from experiments.captioning import scores as module
from experiments.captioning.scores import DEFINITIONS, cider_d, corpus_bleu, rouge_l, score_captions

CAPTIONS = ["a dog runs on the grass", "two men on a bench", "the the dog the dog"]
REFERENCES = [
    ["a brown dog runs on grass", "the dog is running"],
    ["two men sit on a bench", "a man and a man sit"],
    ["a dog on the beach", "the dog the dog", "dog"],
]
CIDER = [1.9545020604877996, 2.250427168172112, 2.873495336620815]
ROUGE = [0.8333333333333334, 0.8944281524926685, 0.9070631970260222]


def words(texts):
    return [text.split() if isinstance(text, str) else words(text) for text in texts]


@pytest.fixture(autouse=True)
def no_wordnet(monkeypatch):
    """As where no WordNet was downloaded, wherever the tests run."""

    def synsets(word):
        raise LookupError(word)

    monkeypatch.setattr(module, "wordnet", SimpleNamespace(synsets=synsets))


@pytest.fixture
def empty_wordnet(monkeypatch):
    """A WordNet that knows no synonyms."""
    monkeypatch.setattr(module, "wordnet", SimpleNamespace(synsets=lambda word: []))


# BLEU


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # 5 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; 5 words where 6 were expected
        (["the cat sat on mat"], [["the cat sat on the mat"]],
         [math.exp(-1 / 5) * share for share in (1, (3 / 4) ** (1 / 2), (1 / 2) ** (1 / 3), (1 / 4) ** (1 / 4))]),
        # over all images, matches are 2 of 4 and 1 of 1 words, not 75 % on average; "the" counts as in a reference
        (["the the the dog", "cat"], [["the dog", "a dog in a"], ["cat", "a tiger"]], [3 / 5, (1 / 5) ** 0.5, 0, 0]),
        # a caption of fewer than n words has no n-gram that could be wrong:
        # 6 of 6 words, 4 of 4 pairs, 3 of 3 triples, 2 of 2 quadruples: a single word has no pair
        (["a dog runs on grass", "dog"], [["a dog runs on grass"], ["dog"]], [1, 1, 1, 1]),
        # 3 of 4 words, 1 of 2 pairs, 0 of 1 triples; 4 words where 4 were expected
        (["a dog ran", "cat"], [["a dog runs"], ["cat"]], [3 / 4, (3 / 8) ** 0.5, 0, 0]),
        # no caption has a pair
        (["dog", "cat"], [["dog"], ["cat", "a cat"]], [1, 0, 0, 0]),
        # nothing was said of one image: 2 of 2 words and 1 of 1 pairs, but 2 words where 3 were expected
        (["", "a dog"], [["cat"], ["a dog"]], [math.exp(-1 / 2), math.exp(-1 / 2), 0, 0]),
        ([""], [["cat"]], [0, 0, 0, 0]),
        # of references as near in length the shorter one counts; one without words is none
        (["a b"], [["a b c", "a", "."]], [1, 1, 0, 0]),
        # nothing in common but a word
        (["x y z", "u"], [["a b c"], ["u v"]], [math.exp(1 - 5 / 4) / 4, 0, 0, 0]),
        (["x"], [["a"]], [0, 0, 0, 0]),
        (CAPTIONS, [[caption, "something else"] for caption in CAPTIONS], [1, 1, 1, 1]),
    ],
)  # fmt: skip
def test_bleu(captions, references, expected):
    scores = score_captions(captions, references)
    for order, value in enumerate(expected, 1):
        assert value is None or scores[f"bleu_{order}"] == pytest.approx(100 * value, abs=1e-9)


def test_bleu_is_that_of_other_implementations():
    """NLTK agrees where every caption has four words, sacrebleu's own score everywhere but for its logarithms."""
    captions, references = words([CAPTIONS, REFERENCES])
    weights = [(1 / order,) * order for order in range(1, 5)]
    assert corpus_bleu(captions, references) == pytest.approx(nltk_bleu(references, captions, weights))
    short = ["the dog", *CAPTIONS]
    columns = [["a dog on the beach"] * 4, ["the dog the dog", None, None, "dog"]]
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none")
    references = [[text for text in image if text] for image in zip(*columns, strict=True)]
    found = corpus_bleu(*words([short, references]))
    assert 100 * found[3] == pytest.approx(metric.corpus_score(short, columns).score)


# ROUGE-L


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # best precision 3 / 4 with the first reference, best recall 2 / 2 with the second
        (["a b c d"], [["a c d e f", "b d"]], (1 + 1.44) * 0.75 * 1 / (1 + 1.44 * 0.75)),
        (["a b", "x"], [["a b"], ["y"]], 0.5),  # the mean over images
        (["", "a dog"], [["a cat"], ["a dog"]], 0.5),
        (["x"], [["a"]], 0),
        (CAPTIONS, [[caption, "something else"] for caption in CAPTIONS], 1),
        (CAPTIONS, REFERENCES, sum(ROUGE) / 3),
    ],
)
def test_rouge(captions, references, expected):
    assert score_captions(captions, references)["rouge_l"] == pytest.approx(100 * expected)
    single = [rouge_l(*pair) for pair in zip(*words([captions, references]), strict=True)]
    assert sum(single) / len(single) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("caption", "reference", "common"),
    [("a b c", "c b a", 1), ("a b c b d a b", "b d c a b a", 4), ("a a a", "a", 1), ("a", "a b a", 1), ("x", "y", 0)],
)
def test_longest_common_subsequence(caption, reference, common):
    first, second = words([caption, reference])
    assert module._common_length(first, second) == module._common_length(second, first) == common


# CIDEr-D: two images, so that a word of one image's references weighs log 2, and a word of both, or n-gram of none, 0


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # the reference itself: the cosine is 1 for 1- to 3-grams; there are no 4-grams: 10 times 3 / 4
        (["a dog runs", "a cat sits"], [["a dog runs"], ["a cat sits"]], [7.5, 7.5]),
        # a shorter one: one of two words that weigh something (cosine 1 / sqrt 2); one pair of two; one pair less
        (["a dog runs", "a cat"], [["a dog runs"], ["a cat sits"]], [7.5, 5 / math.sqrt(2) * math.exp(-1 / 72)]),
        # counts are clipped: weights are 2 for the caption's "dog" and 1 for the reference's: the product is 1, not 2
        (["dog dog", "a cat"], [["dog runs"], ["a cat sits"]], [10 / 4 / (2 * math.sqrt(2)), None]),
        (["the", "the dog"], [["the cat", "the bird"], ["the dog"]], [0, 5]),  # words of all images say nothing
        (["a dog", "x"], [["a dog"], ["y"]], [5, 0]),
        (["a dog", "x"], [["a dog", "no match"], ["y"]], [2.5, 0]),  # the mean over references
        (["", "a"], [["b"], ["c"]], [0, 0]),
        (["x"], [["a"]], [0]),
        (["a b"], [["a b"]], [0]),  # a single image
        (CAPTIONS, REFERENCES, CIDER),
    ],
)
def test_cider(captions, references, expected):
    found = cider_d(*words([captions, references]))
    for value, known in zip(found, expected, strict=True):
        assert known is None or value == pytest.approx(known, abs=1e-12)
    assert score_captions(captions, references)["cider_d"] == pytest.approx(100 * sum(found) / len(found))


def test_reference_implementation():
    """Values of cider_scorer.py and rouge.py in pycocoevalcap of github.com/tylin/coco-caption, under Python 3."""
    assert cider_d(*words([CAPTIONS, REFERENCES])) == pytest.approx(CIDER, abs=1e-12)
    assert [rouge_l(*pair) for pair in zip(*words([CAPTIONS, REFERENCES]), strict=True)] == pytest.approx(ROUGE)


# METEOR


@pytest.mark.parametrize(
    "error", [LookupError("wordnet"), FileNotFoundError("index.sense")], ids=["none", "incomplete"]
)
def test_no_wordnet_no_meteor(monkeypatch, error):
    def synsets(word):
        raise error

    monkeypatch.setattr(module, "wordnet", SimpleNamespace(synsets=synsets))
    names = ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d"]
    assert list(score_captions(["a dog"], [["a dog"]])) == names
    assert "python -m nltk.downloader wordnet" in DEFINITIONS["nltk_meteor"]


def test_meteor(empty_wordnet):
    """Two of three words match, in one piece; then both by their stems; the better reference counts."""
    scores = score_captions(["a dog runs", "dogs running"], [["a dog ran", "x"], ["dog runs"]])
    expected = [2 / 3 * (1 - 0.5 * (1 / 2) ** 3), 1 - 0.5 * (1 / 2) ** 3]
    assert scores["nltk_meteor"] == pytest.approx(100 * sum(expected) / 2)
    assert list(scores) == list(DEFINITIONS)


# all of them


def test_letters_punctuation_and_white_space_are_no_difference():
    plain = score_captions(["a man's t-shirt , red", "two dogs"], [["a man 's t-shirt is red"], ["two dogs"]])
    other = score_captions(["A man's  T-shirt, red.", " Two dogs!"], [['"A man\'s T-shirt" is RED .'], ["two dogs ."]])
    assert plain == other


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ([], [], "0 captions and references of 0 images; expected as many, at least one"),
        (["a"], [["a"], ["b"]], "1 captions and references of 2 images; expected as many"),
        (["a", "b"], [["a"], []], "image 2 has no reference with a word; expected at least one"),
        (["a"], [["."]], "image 1 has no reference with a word"),
    ],
)
def test_bad_input(captions, references, message):
    with pytest.raises(ValueError, match=message):
        score_captions(captions, references)


@pytest.mark.parametrize("score", [corpus_bleu, cider_d])
@pytest.mark.parametrize("arguments", [([], []), ([["a"]], [[]]), ([["a"]], [[[]]]), ([["a"]], [])])
def test_bad_words(score, arguments):
    with pytest.raises(ValueError, match="; expected"):
        score(*arguments)
    if len(arguments[1]) == 1:
        with pytest.raises(ValueError, match="no reference with a word; expected at least one"):
            rouge_l(arguments[0][0], arguments[1][0])


@pytest.mark.parametrize(
    ("caption", "reference", "rouge"), [("", "a dog", 0), ("dog", "dog", 1), ("dog", "cat", 0), ("a", "", None)]
)
def test_edges_of_rouge_and_cider(caption, reference, rouge):
    """No words, and single words; an empty reference beside another one changes no best."""
    texts = words([reference or "a", *([] if reference else [""])])
    assert rouge_l(caption.split(), texts) == (1 if rouge is None else rouge)
    # single words have no pairs, triples or quadruples: a fourth of 10, or half of that beside an empty reference
    cider = {"dog": 2.5 if reference == "dog" else 0, "a": 1.25, "": 0}[caption]
    assert cider_d([caption.split(), ["x"]], [texts, [["x"]]])[0] == pytest.approx(cider)


def test_examples():
    assert doctest.testmod(module).failed == 0
