"""Scores of captions: BLEU, ROUGE-L, CIDEr-D and METEOR by hand and against others; doubt, and different captions."""

import math
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from nltk.translate.bleu_score import corpus_bleu as nltk_bleu

from experiments.captioning import wordnet
from experiments.captioning.evaluation import doubt_metrics
from experiments.captioning.scores import (
    cider_d,
    corpus_bleu,
    rouge_l,
    score_captions,
    set_scores,
    split_words,
)

CAPTIONS = ["a dog runs on the grass", "two men on a bench", "the the dog the dog"]
REFERENCES = [
    ["a brown dog runs on grass", "the dog is running"],
    ["two men sit on a bench", "a man and a man sit"],
    ["a dog on the beach", "the dog the dog", "dog"],
]
# values of cider_scorer.py and rouge.py in pycocoevalcap of github.com/tylin/coco-caption, under Python 3
CIDER = [1.9545020604877996, 2.250427168172112, 2.873495336620815]
ROUGE = [0.8333333333333334, 0.8944281524926685, 0.9070631970260222]


def words(texts):
    return [text.split() if isinstance(text, str) else words(text) for text in texts]


@pytest.fixture(autouse=True)
def empty_wordnet(monkeypatch):
    """A WordNet that knows no synonyms, wherever the tests run."""
    monkeypatch.setattr(wordnet, "wordnet", SimpleNamespace(synsets=lambda word: []))


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # 5 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; 5 words where 6 were expected
        (["the cat sat on mat"], [["the cat sat on the mat"]],
         [math.exp(-1 / 5) * share for share in (1, (3 / 4) ** (1 / 2), (1 / 2) ** (1 / 3), (1 / 4) ** (1 / 4))]),
        # over all images, matches are 2 of 4 and 1 of 1 words, not 75 % on average; "the" counts as in a reference
        (["the the the dog", "cat"], [["the dog", "a dog in a"], ["cat", "a tiger"]], [3 / 5, (1 / 5) ** 0.5, 0, 0]),
        # of references as near in length the shorter one counts; one without words is none
        (["a b"], [["a b c", "a", "."]], [1, 1, 0, 0]),
    ],
)  # fmt: skip
def test_bleu(captions, references, expected):
    scores = score_captions(captions, references)
    assert [scores[f"bleu_{order}"] for order in range(1, 5)] == pytest.approx([100 * one for one in expected])


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


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # best precision 3 / 4 with the first reference, best recall 2 / 2 with the second
        (["a b c d"], [["a c d e f", "b d"]], [(1 + 1.44) * 0.75 * 1 / (1 + 1.44 * 0.75)]),
        (["", "x"], [["a cat"], ["a", ""]], [0, 0]),
        (CAPTIONS, REFERENCES, ROUGE),
    ],
)
def test_rouge(captions, references, expected):
    assert [rouge_l(*pair) for pair in zip(*words([captions, references]), strict=True)] == pytest.approx(expected)
    assert score_captions(captions, references)["rouge_l"] == pytest.approx(100 * sum(expected) / len(expected))


@pytest.mark.parametrize(
    ("captions", "references", "expected"),
    [
        # two images, so that a word of one image's references weighs log 2, and a word of both, or n-gram of none, 0.
        # the reference itself: the cosine is 1 for 1- to 3-grams; there are no 4-grams: 10 times 3 / 4.
        # a shorter one: one of two words that weigh something (cosine 1 / sqrt 2); one pair of two; one pair less
        (["a dog runs", "a cat"], [["a dog runs"], ["a cat sits"]], [7.5, 5 / math.sqrt(2) * math.exp(-1 / 72)]),
        # counts are clipped: weights are 2 for the caption's "dog" and 1 for the reference's: the product is 1, not 2
        (["dog dog", "dog"], [["dog runs"], ["a cat"]], [10 / 4 / (2 * math.sqrt(2)), 0]),
        (["a dog", ""], [["a dog", "no match"], ["y"]], [2.5, 0]),  # the mean over references
        (CAPTIONS, REFERENCES, CIDER),
    ],
)
def test_cider(captions, references, expected):
    assert cider_d(*words([captions, references])) == pytest.approx(expected, abs=1e-12)
    assert score_captions(captions, references)["cider_d"] == pytest.approx(100 * sum(expected) / len(expected))


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        ([], [], "0 captions and references of 0 images; expected one caption for each image, and at least one image"),
        (["a dog"], [["a dog"], ["a cat"]], "1 captions and references of 2 images"),
        (["a dog", "a cat"], [["a dog"], []], "image 1 has no references"),
    ],
)
def test_captions_that_cannot_be_scored(captions, references, message):
    with pytest.raises(ValueError, match=message):
        score_captions(captions, references)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NLTK leaves files open
def test_meteor(monkeypatch, tmp_path):
    """Two of three words match, in one piece; then both by their stems; the better reference counts."""
    pairs = ["a dog runs", "dogs running"], [["a dog ran", "x"], ["dog runs"]]
    scores = score_captions(*pairs)
    expected = [2 / 3 * (1 - 0.5 * (1 / 2) ** 3), 1 - 0.5 * (1 / 2) ** 3]
    assert scores["nltk_meteor"] == pytest.approx(100 * sum(expected) / 2)
    assert list(scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d", "nltk_meteor"]

    def synsets(word):
        raise LookupError(word)

    monkeypatch.setattr(wordnet, "wordnet", SimpleNamespace(synsets=synsets))
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "nowhere")
    assert score_captions(*pairs).keys() == scores.keys() - {"nltk_meteor"}
    # in the format of Debian's package, with one synonym
    monkeypatch.setattr(wordnet, "DEBIAN", write_wordnet(tmp_path / "wordnet"))
    assert {lemma.name() for lemma in wordnet.find_wordnet().synsets("dog")[0].lemmas()} == {"dog", "hound"}
    synonyms = ["a hound runs"], [["a dog runs"]]
    assert score_captions(*synonyms)["nltk_meteor"] == pytest.approx(100 * (1 - 0.5 * (1 / 3) ** 3))


def write_wordnet(folder):
    """A WordNet of one noun, as Debian has it: without the files lexnames and index.sense."""
    folder.mkdir()
    for part in ("adj", "adv", "verb"):
        (folder / f"data.{part}").write_text("")
        (folder / f"index.{part}").write_text("")
    line = "{:08} 05 n 02 dog 0 hound 0 000 | a domestic animal  \n"
    head = "  1 a line of the licence  \n"
    (folder / "data.noun").write_text(head + line.format(len(head)))
    (folder / "index.noun").write_text(
        head + "".join(f"{word} n 1 0 1 0 {len(head):08}  \n" for word in ("dog", "hound"))
    )
    for part in ("adj", "adv", "noun", "verb"):
        (folder / f"{part}.exc").write_text("")
    return folder


# doubt, and several captions of an image

SURE = ["a dog runs on grass", "two men sit", "a red car stands", "a cat sleeps"]
TRUE = [["a dog runs on grass"], ["two men sit there"], ["a bicycle stands"], ["nothing of it"]]


@pytest.mark.parametrize(("doubt", "correlation"), [((1, 2, 3, 4), -1), ((4, 3, 2, 1), 1), ((0, 0, 0, 0), None)])
def test_doubt_ranks_captions(doubt, correlation):
    scores = cider_d(*split_words(SURE, TRUE))
    assert sorted(scores, reverse=True) == scores
    found = doubt_metrics({"spread": torch.tensor(doubt, dtype=torch.float)}, SURE, TRUE)
    assert found.get("test_rank_spread") == (correlation and pytest.approx(correlation))
    surest = scores[::-1] if correlation == 1 else scores
    assert found["test_cider_d_spread_50"] == pytest.approx(100 * sum(surest[:2]) / 2)
    assert found["test_cider_d_spread_25"] == pytest.approx(100 * surest[0])


@pytest.mark.parametrize(
    ("captions", "distinct", "bleu"),
    [
        ([["a red dog runs here"] * 3], (1 / 3, 1 / 3), 100),
        ([["a red dog runs here", "two men sit on chairs"]], (1, 1), 0),
        ([["", ""], ["a dog", ""]], (1, 1), 0),
    ],
)
def test_captions_that_are_different(captions, distinct, bleu):
    found = set_scores(captions, [["a dog"]] * len(captions))
    assert (found["distinct_1"], found["distinct_2"]) == pytest.approx(distinct)
    assert found["self_bleu"] == pytest.approx(bleu)
