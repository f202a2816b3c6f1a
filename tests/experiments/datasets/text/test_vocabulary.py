import pickle
import random
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.datasets.text.toy_translation import toy_translation
from experiments.datasets.text.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary, train_tokenizer

TOY = toy_translation(0, train=300, val=1, test=1)["train"]
TEXTS = TOY.source + TOY.target
VOCABULARY = train_tokenizer(TEXTS, size=500)
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def plain(text):
    return " ".join(text.split())


def test_same_text_same_vocabulary():
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert train_tokenizer(iter(shuffled), size=500) == VOCABULARY
    assert train_tokenizer([f"  {text.replace(' ', '  ')}\n" for text in TEXTS], size=500) == VOCABULARY
    assert train_tokenizer(TOY.source, size=500).fingerprint != VOCABULARY.fingerprint


@PROPERTY
@given(st.text())
def test_round_trip_of_any_text(text):
    ids = VOCABULARY.encode(text)
    assert VOCABULARY.decode(ids) == plain(text)
    assert not {PAD, BEGIN, END, UNKNOWN} & set(ids)
    assert all(0 <= token < len(VOCABULARY) for token in ids)


@PROPERTY
@given(st.text())
def test_every_word_has_pieces(text):
    ids = VOCABULARY.encode(text)
    words = VOCABULARY.words(ids)
    assert sorted(set(words)) == list(range(len(text.split())))
    assert words == sorted(words)
    # the pieces of a word are the word
    for number, word in enumerate(text.split()):
        assert VOCABULARY.decode([token for token, place in zip(ids, words, strict=True) if place == number]) == word


@pytest.mark.parametrize(
    "text", ["<s> a </s>", "<pad><unk>", "a<s>b", "▁ Ġ @@ ##", "\U0001f600\u200b\ufeff", "it's 'm"]
)
def test_text_that_looks_special(text):
    assert VOCABULARY.decode(VOCABULARY.encode(text)) == text
    assert min(VOCABULARY.encode(text)) > UNKNOWN


HUND, SMILE = VOCABULARY.encode("der Hund"), VOCABULARY.encode("a \U0001f600")


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([BEGIN, *HUND, END, *HUND, PAD], "der Hund"),
        ([PAD, *HUND, PAD], "der Hund"),
        ([END], ""),
        ([], ""),
        (SMILE[:-1], "a \ufffd"),  # part of a character
    ],
    ids=["begin and end", "padding", "end", "nothing", "part of a character"],
)
def test_decoding_what_a_model_says(ids, text):
    assert VOCABULARY.decode(ids) == text


# files


def test_saving(tmp_path):
    path = tmp_path / "run" / "vocabulary.json"
    VOCABULARY.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == VOCABULARY
    assert loaded.fingerprint == VOCABULARY.fingerprint == sha256(path.read_bytes()).hexdigest()
    loaded.require(VOCABULARY.fingerprint, "x.ckpt")
    with pytest.raises(ValueError, match=r"x\.ckpt: trained with another vocabulary"):
        loaded.require("0" * 64, "x.ckpt")


def test_pickling():
    copy = pickle.loads(pickle.dumps(VOCABULARY))
    assert copy == VOCABULARY
    assert copy.decode(copy.encode("<s> Hund")) == "<s> Hund"
    assert repr(copy) == f"Vocabulary(500 pieces, {VOCABULARY.fingerprint[:12]})"


@pytest.mark.parametrize("change", [('"<s>": 1', '"<t>": 1'), ('"type": "ByteLevel"', '"type": "Fuse"')])
def test_another_tokenizer(tmp_path, change):
    path = tmp_path / "vocabulary.json"
    path.write_text(VOCABULARY.text.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocabulary\.json cannot be read .*train the tokenizer again"):
        Vocabulary.load(path)
