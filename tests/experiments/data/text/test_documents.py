"""Documents, and pairs of their segments: which ones, in which order, what is cut, and what is refused."""

import json

import pytest
import torch

from experiments.data.text.batches import BEGIN, END, SPECIAL
from experiments.data.text.documents import (
    SegmentPairs,
    _shortened,
    load_documents,
    read_documents,
    split_sentences,
)
from experiments.files import UserError

SIZE = 300


def sentences(*lengths, start=4):
    """Sentences of these lengths, whose tokens are numbered through; the first that is no special one is 4."""
    numbers = torch.arange(start, start + sum(lengths))
    return list(numbers.split(lengths))


def original(data, batch):
    """Tokens of the pairs ahead of the hiding: the hidden ones are the target."""
    tokens = batch.tokens.clone()
    tokens[batch.hidden] = batch.target
    return [row[mask].tolist() for row, mask in zip(tokens, batch.mask, strict=True)]


def parts(row):
    """The two segments of <s> A </s> B </s>."""
    assert (row[0], row[-1], row.count(END)) == (BEGIN, END, 2)
    middle = row.index(END)
    return row[1:middle], row[middle + 1 : -1]


def test_a_pair_is_a_chunk_parted_between_two_sentences_and_its_label_says_whether_it_is_swapped():
    document = sentences(3, 2, 4)
    data = SegmentPairs([document], length=40, vocabulary_size=SIZE)
    whole, ends = torch.cat(document).tolist(), {3, 5}
    seen = set()
    for epoch in range(40):
        batch = data[epoch, [0]]
        first, second = parts(*original(data, batch))
        swapped = bool(batch.order.item())
        before, after = (second, first) if swapped else (first, second)
        assert before + after == whole
        assert len(before) in ends
        seen.add((len(before), swapped))
    assert seen == {(3, False), (3, True), (5, False), (5, True)}


def test_half_of_the_pairs_are_swapped_and_half_parted_here_or_there():
    data = SegmentPairs([sentences(2, 2, 2)] * 400, length=40, vocabulary_size=SIZE)
    batch = data[0, range(400)]
    assert batch.order.double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / 20)
    assert batch.order.dtype == torch.int64


def test_chunks_fill_the_length_and_do_not_cross_documents():
    documents = [sentences(4, 4, 4, 4, 4, start=10), sentences(5, start=100), sentences(2, 2, start=200)]
    data = SegmentPairs(documents, length=11, vocabulary_size=SIZE)
    # two sentences fill the room of 8; the last one of the first document and the lonely document are left out
    assert [torch.cat([*chunk]).tolist() for chunk in data.chunks] == [
        list(range(10, 18)), list(range(18, 26)), list(range(200, 204)),
    ]  # fmt: skip
    assert len(data) == 3
    rows = original(data, data[0, [0, 1, 2]])
    assert [len(row) for row in rows] == [11, 11, 7]


def test_the_longer_segment_is_cut_first():
    first, second = torch.arange(10), torch.arange(4)
    assert [part.tolist() for part in _shortened(first, second, 9)] == [list(range(5)), list(range(4))]
    assert [len(part) for part in _shortened(first, second, 6)] == [3, 3]
    assert [len(part) for part in _shortened(second, first, 6)] == [3, 3]
    assert [len(part) for part in _shortened(first, second, 14)] == [10, 4]
    assert [len(part) for part in _shortened(first, first, 2)] == [1, 1]
    data = SegmentPairs([sentences(30, 2)], length=12, vocabulary_size=SIZE)
    (row,) = original(data, data[0, [0]])
    assert len(row) == 12


def test_pairs_depend_on_seed_epoch_and_places_alone():
    documents = [sentences(3, 2, 4), sentences(2, 6), sentences(5, 5)]
    first, again, other, seed = (
        SegmentPairs(documents, length=20, vocabulary_size=SIZE, seed=seed)[epoch, [2, 0, 1]]
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    for changed in (other, seed):
        assert not (first.tokens.shape == changed.tokens.shape and first.tokens.equal(changed.tokens))
    for batch in (first, other, seed):  # no border between segments is hidden
        assert (batch.target >= len(SPECIAL)).all()


def test_sentences_of_a_text():
    text = 'He came. "Why?" She asked (in 1990). It cost 3.5 pounds! 7 people.'
    assert split_sentences(text) == ["He came.", '"Why?"', "She asked (in 1990).", "It cost 3.5 pounds!", "7 people."]


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "text.txt"
    documents = [[f"Document {number}.", "It goes on."] for number in range(40)]
    path.write_text("\n\n\n".join("\n".join(document) for document in documents) + "\n")
    assert read_documents(path) == documents
    found = load_documents("own", text=path)
    assert {split: len(part) for split, part in found.items()} == {"train": 36, "val": 2, "test": 2}
    together = sorted(document[0] for part in found.values() for document in part)
    assert together == sorted(document[0].lower() for document in documents)
    assert load_documents("own", text=path) == found


def test_paragraphs_of_squad(tmp_path):
    def article(title, count):
        paragraphs = [
            {
                "context": f"{title} is number {place}. It goes on.",
                "qas": [
                    {
                        "id": f"{title}{place}{number}",
                        "question": "Which?",
                        "answers": [{"text": title, "answer_start": 0}],
                    }
                    for number in range(2)
                ],
            }
            for place in range(count)
        ]
        return {"title": title, "paragraphs": paragraphs}

    for name, titles in {"train-v1.1": "ABCDEFGHIJKL", "dev-v1.1": "YZ"}.items():
        (tmp_path / "squad").mkdir(exist_ok=True)
        content = {"data": [article(title, 2) for title in titles]}
        (tmp_path / "squad" / f"{name}.json").write_text(json.dumps(content))
    found = load_documents("squad", data_root=tmp_path)
    assert found["test"] == [
        [f"{title} is number {place}.", "it goes on."] for title in "yz" for place in range(2)
    ]  # once, though two questions are asked
    assert (len(found["train"]), len(found["val"])) == (22, 2)


def test_toy_documents_are_told_in_order():
    for documents in load_documents("toy").values():
        assert [sentence.split()[0] for sentence in documents[0]] == ["first", "then", "later", "at"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 documents, none of which has two sentences"),
        ("one\n\ntwo\n", "2 documents, none of which has two sentences"),
        ("one\ntwo\n", "has 1 documents, expected 3 at least"),
        (b"\xff\xfe\n", "text in UTF-8"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ValueError, UserError), match=message) as caught:
        load_documents("own", text=path)
    assert str(path) in str(caught.value)


def test_what_else_is_refused():
    with pytest.raises(UserError, match="--text FILE"):
        load_documents("own")
    with pytest.raises(ValueError, match="length is 4, expected 5 at least"):
        SegmentPairs([sentences(2, 2)], length=4, vocabulary_size=SIZE)
    with pytest.raises(ValueError, match="none of 2 documents has two sentences"):
        SegmentPairs([sentences(2), sentences(3)], length=9, vocabulary_size=SIZE)
