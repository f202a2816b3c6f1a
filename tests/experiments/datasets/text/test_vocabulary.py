import json
import os
import pickle
import random
from hashlib import sha256

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.datasets.text.parallel import load_parallel
from experiments.datasets.text.toy_translation import toy_translation
from experiments.datasets.text.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary, train_tokenizer
from pyro_attention.analysis.alignments.weights import merge_pieces

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
TOY = toy_translation(0, train=300, val=1, test=1)["train"]
TEXTS = TOY.source + TOY.target
VOCABULARY = train_tokenizer(TEXTS, size=500)
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, database=None)


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


def test_words_for_merging():
    source, target = "der Küchentisch \U0001f600", "the kitchen table"
    ids = VOCABULARY.encode(source), VOCABULARY.encode(target)
    weights = torch.full((len(ids[1]) + 1, len(ids[0])), 1 / len(ids[0]))
    words = VOCABULARY.words(ids[0]), VOCABULARY.words([*ids[1], END])
    merged = merge_pieces(weights, source=words[0], target=words[1])
    assert merged.shape == (3, 3)
    torch.testing.assert_close(merged.sum(1), torch.ones(3))


# files


def test_saving(tmp_path):
    path = tmp_path / "run" / "vocabulary.json"
    VOCABULARY.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["vocabulary.json"]
    loaded = Vocabulary.load(path)
    assert loaded == VOCABULARY
    assert loaded.fingerprint == VOCABULARY.fingerprint == sha256(path.read_bytes()).hexdigest()
    assert loaded.encode("<s> Hund") == VOCABULARY.encode("<s> Hund")


def test_pickling():
    copy = pickle.loads(pickle.dumps(VOCABULARY))
    assert copy == VOCABULARY
    assert copy.decode(copy.encode("<s> Hund")) == "<s> Hund"
    assert repr(copy) == f"Vocabulary(500 pieces, {VOCABULARY.fingerprint[:12]})"


def changed(**parts):
    return json.dumps(json.loads(VOCABULARY.text) | parts)


BAD_FILES = {
    "no special tokens": changed(added_tokens=[]).replace('"<s>": 1', '"<t>": 1'),
    "another decoder": changed(decoder=None),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_damaged_file(tmp_path, content):
    path = tmp_path / "vocabulary.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocabulary\.json cannot be read .*train the tokenizer again"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["a"], 259, "size is 259; expected 260 at least"),
        ([], 4000, "0 texts without a word; expected sentences"),
        (["", " "], 4000, "2 texts without a word"),
    ],
)
def test_bad_training(texts, size, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, size=size)


@needs_data
@pytest.mark.parametrize("name", ["multi30k", "iwslt14"])
def test_real_text(name):
    text = load_parallel(name, "val")
    vocabulary = train_tokenizer(text.source + text.target)
    assert len(vocabulary) == 4000
    for sentence in text.source[:1000] + text.target[:1000]:
        assert vocabulary.decode(vocabulary.encode(sentence)) == sentence
