"""Word pieces: every text comes back, words keep their pieces, and the same text gives the same vocabulary."""

import pickle
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.data.text.batches import BEGIN, END, PAD, UNKNOWN, Vocabulary, train_tokenizer
from experiments.data.text.parallel import toy_translation

TOY = toy_translation(train=300, val=1, test=1)["train"]
TEXTS = TOY.source + TOY.target
VOCABULARY = train_tokenizer(TEXTS, size=500)


def test_same_text_same_vocabulary():
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert train_tokenizer(iter(shuffled), size=500) == VOCABULARY
    assert train_tokenizer([f"  {text.replace(' ', '  ')}\n" for text in TEXTS], size=500) == VOCABULARY


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=30))
@example("<s> a </s><pad>a<s>b ▁ Ġ @@ ## \U0001f600\u200b\ufeff it's 'm")
def test_any_text_comes_back_and_its_words_have_pieces(text):
    ids = VOCABULARY.encode(text)
    assert VOCABULARY.decode(ids) == " ".join(text.split())
    assert all(UNKNOWN < token < len(VOCABULARY) for token in ids)
    words = VOCABULARY.words(ids)
    assert words == sorted(words)
    for number, word in enumerate(text.split()):
        assert VOCABULARY.decode([token for token, place in zip(ids, words, strict=True) if place == number]) == word


def test_decoding_what_a_model_says():
    hund = VOCABULARY.encode("der Hund")
    assert VOCABULARY.decode([BEGIN, *hund, END, *hund, PAD]) == VOCABULARY.decode([PAD, *hund, PAD]) == "der Hund"
    assert VOCABULARY.decode([END]) == VOCABULARY.decode([]) == ""
    assert VOCABULARY.decode(VOCABULARY.encode("a \U0001f600")[:-1]) == "a \ufffd"  # part of a character
    assert VOCABULARY.words([BEGIN, *hund, END])[:: len(hund) + 1] == [None, None]


def test_files(tmp_path):
    path = tmp_path / "run" / "vocabulary.json"
    VOCABULARY.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == VOCABULARY
    copy = pickle.loads(pickle.dumps(VOCABULARY))
    assert copy.decode(copy.encode("<s> Hund")) == "<s> Hund"
    path.write_text(VOCABULARY.text.replace('"<s>": 1', '"<t>": 1').replace('"content": "<s>"', '"content": "<t>"'))
    with pytest.raises(ValueError, match=r"vocabulary\.json cannot be read .*train the tokenizer again"):
        Vocabulary.load(path)
