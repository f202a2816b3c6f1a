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


def test_bleu():
    """5 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; 5 words where 6 were expected."""
    scores = score_captions(["the cat sat on mat"], [["the cat sat on the mat"]])
    penalty = math.exp(1 - 6 / 5)
    assert scores["bleu_1"] == pytest.approx(100 * penalty)
    assert scores["bleu_2"] == pytest.approx(100 * penalty * (3 / 4) ** (1 / 2))
    assert scores["bleu_3"] == pytest.approx(100 * penalty * (3 / 4 * 2 / 3) ** (1 / 3))
    assert scores["bleu_4"] == pytest.approx(100 * penalty * (3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4))


def test_bleu_counts_over_all_images():
    """Matches are 2 of 4 and 1 of 1 words, not 75 % on average; 'the' counts as often as in a reference."""
    scores = score_captions(["the the the dog", "cat"], [["the dog", "a dog in a"], ["cat", "a tiger"]])
    assert scores["bleu_1"] == pytest.approx(100 * 3 / 5)


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
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
    ],
)
def test_bleu_of_short_captions(captions, references, expected):
    """A caption of fewer than n words has no n-gram that could be wrong."""
    scores = score_captions(captions, references)
    found = [scores["bleu_1"], scores["bleu_2"], scores["bleu_3"], scores["bleu_4"]]
    assert found == pytest.approx([100 * score for score in expected])


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


def test_bleu_of_nothing_in_common():
    scores = score_captions(["x y z", "u"], [["a b c"], ["u v"]])
    assert scores["bleu_1"] == pytest.approx(100 * math.exp(1 - 5 / 4) / 4)
    assert scores["bleu_4"] == pytest.approx(0, abs=1e-50)
    scores = score_captions(["x"], [["a"]])
    assert (scores["bleu_1"], scores["bleu_4"], scores["rouge_l"], scores["cider_d"]) == (0, 0, 0, 0)


# ROUGE-L


def test_rouge():
    """Best precision 3 / 4 with the first reference, best recall 2 / 2 with the second."""
    expected = (1 + 1.44) * 0.75 * 1 / (1 + 1.44 * 0.75)
    assert rouge_l(*words(["a b c d", ["a c d e f", "b d"]])) == pytest.approx(expected)
    assert score_captions(["a b c d"], [["a c d e f", "b d"]])["rouge_l"] == pytest.approx(100 * expected)


@pytest.mark.parametrize(
    ("caption", "reference", "common"),
    [("a b c", "c b a", 1), ("a b c b d a b", "b d c a b a", 4), ("a a a", "a", 1), ("a", "a b a", 1), ("x", "y", 0)],
)
def test_longest_common_subsequence(caption, reference, common):
    first, second = words([caption, reference])
    assert module._common_length(first, second) == module._common_length(second, first) == common


def test_rouge_is_the_mean_over_images():
    scores = score_captions(["a b", "x"], [["a b"], ["y"]])
    assert scores["rouge_l"] == pytest.approx(50)


# CIDEr-D: two images, so that a word of one image's references weighs log 2, and a word of both, or n-gram of none, 0


def test_cider_of_the_reference_itself():
    """The cosine is 1 for 1- to 3-grams; there are no 4-grams: 10 times 3 / 4."""
    scores = cider_d(*words([["a dog runs", "a cat sits"], [["a dog runs"], ["a cat sits"]]]))
    assert scores == pytest.approx([7.5, 7.5])
    assert score_captions(["a dog runs", "a cat sits"], [["a dog runs"], ["a cat sits"]])["cider_d"] == pytest.approx(
        750
    )


def test_cider_of_a_shorter_caption():
    """One of two words that weigh something (cosine 1 / sqrt 2); one pair of two; no triple; one pair less."""
    scores = cider_d(*words([["a dog runs", "a cat"], [["a dog runs"], ["a cat sits"]]]))
    assert scores[1] == pytest.approx(10 / 4 * 2 / math.sqrt(2) * math.exp(-1 / 72))


def test_cider_clips_counts():
    """Weights are 2 for the caption's "dog" and 1 for the reference's: the product is 1 and not 2."""
    scores = cider_d(*words([["dog dog", "a cat"], [["dog runs"], ["a cat sits"]]]))
    assert scores[0] == pytest.approx(10 / 4 * 1 / (2 * math.sqrt(2)))


def test_cider_ignores_words_of_all_images():
    scores = cider_d(*words([["the", "the dog"], [["the cat", "the bird"], ["the dog"]]]))
    assert scores[0] == 0
    assert scores[1] == pytest.approx(10 / 4 * 2)


def test_cider_is_the_mean_over_references():
    both = cider_d(*words([["a dog", "x"], [["a dog", "no match"], ["y"]]]))
    one = cider_d(*words([["a dog", "x"], [["a dog"], ["y"]]]))
    assert both[0] == pytest.approx(one[0] / 2)
    assert one[0] == pytest.approx(10 / 4 * 2)


def test_cider_of_an_empty_caption_and_of_one_image():
    assert cider_d(*words([["", "a"], [["b"], ["c"]]])) == [0, 0]
    assert cider_d(*words([["a b"], [["a b"]]])) == [0]


def test_reference_implementation():
    """Values of cider_scorer.py and rouge.py in pycocoevalcap of github.com/tylin/coco-caption, under Python 3."""
    assert cider_d(*words([CAPTIONS, REFERENCES])) == pytest.approx(CIDER, abs=1e-12)
    assert [rouge_l(*pair) for pair in zip(*words([CAPTIONS, REFERENCES]), strict=True)] == pytest.approx(ROUGE)
    scores = score_captions(CAPTIONS, REFERENCES)
    assert scores["cider_d"] == pytest.approx(100 * sum(CIDER) / 3)
    assert scores["rouge_l"] == pytest.approx(100 * sum(ROUGE) / 3)


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


def test_tokens():
    """Letters, punctuation and white space are no difference."""
    plain = score_captions(["a man's t-shirt , red", "two dogs"], [["a man 's t-shirt is red"], ["two dogs"]])
    other = score_captions(["A man's  T-shirt, red.", " Two dogs!"], [['"A man\'s T-shirt" is RED .'], ["two dogs ."]])
    assert plain == other
    assert plain["bleu_1"] == pytest.approx(100 * math.exp(1 - 8 / 7))


def test_perfect_captions():
    scores = score_captions(CAPTIONS, [[caption, "something else"] for caption in CAPTIONS])
    assert [scores["bleu_1"], scores["bleu_2"], scores["bleu_3"], scores["bleu_4"], scores["rouge_l"]] == pytest.approx(
        [100] * 5
    )


def test_order_of_images_and_references_is_of_no_account():
    turned = score_captions(CAPTIONS[::-1], [texts[::-1] for texts in REFERENCES[::-1]])
    assert turned == pytest.approx(score_captions(CAPTIONS, REFERENCES))


def test_empty_caption():
    scores = score_captions(["", "a dog"], [["a cat"], ["a dog"]])
    assert scores["rouge_l"] == pytest.approx(50)


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
