"""From word pieces to words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_attention.analysis import merge_pieces, word_map
from tests.analysis.alignments.random_alignments import PROPERTY, weights_of

MAPS = st.lists(st.integers(0, 2) | st.none(), min_size=1, max_size=6).filter(
    lambda words: any(w is not None for w in words)
)


@pytest.mark.parametrize(
    ("pieces", "style", "words"),
    [
        ("re@@ vier@@ verhalten .", "@@", [0, 0, 0, 1]),
        ("das re@@", "@@", [0, 1]),  # cut off
        ("re@@ </s> vier", "@@", [0, None, 1]),  # a word ends before a special token
        ("<s> un ##aff ##able . </s>", "##", [None, 0, 0, 0, 1, None]),
        ("##able un", "##", [0, 1]),  # cut off in front
        ("▁Tür en ▁auf", "▁", [0, 0, 1]),
        ("▁ Tür <s> en", "▁", [0, 0, None, 1]),
        ("The Ġcat s", "Ġ", [0, 1, 1]),
        ("", "@@", []),
    ],
)
def test_word_map(pieces, style, words):
    assert word_map(pieces.split(), style=style, special={"<s>", "</s>"}) == words


def test_word_map_agrees_with_tokenizers():
    tokenizers = pytest.importorskip("tokenizers")
    text = "die revier verhalten der tiere der reviere"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=30, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    encoding = tokenizer.encode(text)
    assert len(encoding.tokens) > len(text.split())
    assert word_map(encoding.tokens, style="##") == encoding.word_ids


WEIGHTS = [[0.1, 0.2, 0.3, 0.4], [0.4, 0.2, 0.2, 0.2], [0.0, 0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("weights", "source", "target", "options", "expected"),
    [
        (WEIGHTS, [0, 1, 1, None], [0, 0, 1], {}, [[0.25, 0.45], [0.0, 1.0]]),
        (WEIGHTS, [0, 1, 1, None], [0, 0, 1], {"renormalise": True}, [[0.25 / 0.7, 0.45 / 0.7], [0.0, 1.0]]),
        (WEIGHTS, [None, 0, 0, 0], [None, 0, 1], {}, [[0.6], [1.0]]),
        # words that lost their pieces
        ([[1.0]], [1], [0], {"num_source": 3, "num_target": 2, "renormalise": True}, [[0.0, 1.0, 0.0], [0.0] * 3]),
    ],
)
def test_merge_by_hand(weights, source, target, options, expected):
    merged = merge_pieces(torch.tensor(weights), source=source, target=target, **options)
    torch.testing.assert_close(merged, torch.tensor(expected))


@PROPERTY
@given(MAPS, MAPS, st.integers(0, 1000))
def test_rows_stay_a_simplex_and_samples_are_merged_one_by_one(source, target, seed):
    samples = weights_of(4, len(target), len(source), seed=seed)
    merged = merge_pieces(samples, source=source, target=target, renormalise=True)
    present = torch.tensor([word in target for word in range(merged.size(1))])
    torch.testing.assert_close(merged.sum(-1), present.double().expand(4, -1))
    one_by_one = [merge_pieces(sample, source=source, target=target, renormalise=True) for sample in samples]
    torch.testing.assert_close(merged, torch.stack(one_by_one))
    if None not in source:
        torch.testing.assert_close(merge_pieces(samples, source=source, target=target), merged)


def test_one_piece_a_word_changes_nothing():
    weights = weights_of(3, 4, dtype=torch.float32)
    torch.testing.assert_close(merge_pieces(weights, source=range(4), target=range(3)), weights)


def test_gradients_and_half_precision():
    weights = weights_of(3, 4).requires_grad_()
    merge_pieces(weights, source=[0, 0, 1, None], target=[0, 0, 1], renormalise=True)[0, 0].backward()
    assert weights.grad[2].eq(0).all()
    assert weights.grad[0].ne(0).any()
    assert merge_pieces(weights_of(3, 4).half(), source=range(4), target=range(3)).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"source": [0, 1], "target": [0, 0]}, ValueError, "source maps 2 pieces, 2 of them to words; expected 3"),
        ({"source": [0, 1, 1], "target": [None, None]}, ValueError, "target maps 2 pieces, 0 of them .* at least one"),
        ({"source": [0, 1, "1"], "target": [0, 0]}, TypeError, r"source\[2\] is '1', expected the index of a word"),
        ({"source": [0, True, 1], "target": [0, 0]}, TypeError, r"source\[1\] is True"),
        ({"source": "0 1", "target": [0, 0]}, TypeError, "source is a str, expected a sequence"),
        (
            {"source": [0, -1, 1], "target": [0, 0]},
            ValueError,
            "source runs from -1 to 1, expected word indices from 0",
        ),
        ({"source": [0, 1, 2], "target": [0, 0], "num_source": 2}, ValueError, "from 0 to 2, expected .* from 0 to 1"),
    ],
)
def test_wrong_maps(options, error, message):
    with pytest.raises(error, match=message):
        merge_pieces(torch.ones(2, 3), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: merge_pieces(torch.ones(1, 1).long(), source=[0], target=[0]), TypeError, "have dtype torch.int64"),
        (lambda: merge_pieces(torch.ones(1), source=[0], target=[0]), ValueError,
         r"weights have shape \(1,\), expected \[..., M, N\]"),
        (lambda: merge_pieces(torch.tensor([[0.5, torch.nan]]), source=[0, 1], target=[0]), ValueError,
         "1 of 2 weights are NaN or infinite"),
        (lambda: word_map(["s", "</s>"], special="</s>"), TypeError,  # "s" is a part of it
         r"special is the string '</s>', expected a collection"),
        (lambda: word_map("a b"), TypeError, r"pieces is the string 'a b'.* split it before"),
        (lambda: word_map(["a"], style="bpe"), ValueError, "style is 'bpe', expected one of @@, ##, ▁, Ġ"),
    ],
    ids=["dtype", "shape", "nan", "special", "pieces", "style"],
)  # fmt: skip
def test_wrong_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
