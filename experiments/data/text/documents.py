"""Documents as lists of sentences, and pairs of their segments in the right order or swapped."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data.storage import SPLITS
from experiments.data.text.batches import BEGIN, END, Sentences, padded
from experiments.data.text.masked_text import hide_tokens
from experiments.data.text.parallel import toy_corpus
from experiments.data.text.squad import load_squad
from experiments.files import UserError, text_lines

DocumentsName = Literal["toy", "squad", "own"]
Document = list[str]  # sentences that follow one another

_HELD_OUT = 0.05  # share of the documents of one's own for validation, and for the test
_TOY_ORDER = ("first", "then", "later", "at last")
_BETWEEN_SENTENCES = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z0-9])""")


def load_documents(
    name: DocumentsName, *, text: Path | None = None, data_root: Path | str | None = None
) -> dict[str, list[Document]]:
    """Load documents by split, in small letters.

    `toy`: sentences of the embedded corpus, four of which are told with "first", "then", "later" and "at last".
    `squad`: paragraphs of the Wikipedia articles of SQuAD 1.1, with its splits, divided into sentences.
    `own`: a file in the format of BERT's create_pretraining_data.py, a sentence a line and an empty line between
    documents; a twentieth of them validates, and as many are for the test, the same ones every time.
    """
    if name == "toy":
        documents = {split: _toy_documents(toy_corpus()[split].target) for split in SPLITS}
    elif name == "squad":
        documents = {split: _paragraphs(data_root, split) for split in SPLITS}
    elif text is None:
        raise UserError("dataset own needs --text FILE, a sentence a line, and an empty line between documents")
    else:
        documents = _divided(read_documents(text), text)
    return {
        split: [[sentence.lower() for sentence in document] for document in of_split]
        for split, of_split in documents.items()
    }


def read_documents(path: Path) -> list[Document]:
    """Read a file with a sentence a line and an empty line between documents.

    Raises:
        ValueError: No document has two sentences, as in a file without line ends, or with an empty line after each.
    """
    documents: list[Document] = [[]]
    for line in text_lines(path, "name another file"):
        if sentence := line.strip():
            documents[-1].append(sentence)
        elif documents[-1]:
            documents.append([])
    documents = [document for document in documents if document]
    if not any(len(document) > 1 for document in documents):
        raise ValueError(
            f"{path}: {len(documents)} documents, none of which has two sentences; expected a sentence a line, and an "
            f"empty line between documents"
        )
    return documents


def split_sentences(text: str) -> Document:
    """Divide a text after full stops, question and exclamation marks ahead of a capital letter or a number.

    Example:
        >>> split_sentences("It was 3.5 km. Who came? Dr.")
        ['It was 3.5 km.', 'Who came?', 'Dr.']
    """
    return [sentence.strip() for sentence in _BETWEEN_SENTENCES.split(text) if sentence.strip()]


def _toy_documents(sentences: Sequence[str]) -> list[Document]:
    size = len(_TOY_ORDER)
    return [
        [f"{word} {sentence}" for word, sentence in zip(_TOY_ORDER, sentences[start : start + size], strict=True)]
        for start in range(0, len(sentences) - size + 1, size)
    ]


def _paragraphs(data_root: Path | str | None, split: str) -> list[Document]:
    contexts = dict.fromkeys(question.context for question in load_squad("1.1", data_root=data_root)[split])
    return [split_sentences(context) for context in contexts]


def _divided(documents: list[Document], path: Path) -> dict[str, list[Document]]:
    if len(documents) < len(SPLITS):
        raise ValueError(f"{path} has {len(documents)} documents, expected {len(SPLITS)} at least, one for each part")
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(0)).tolist()
    count = max(1, round(_HELD_OUT * len(documents)))
    indices = {"val": order[:count], "test": order[count : 2 * count], "train": order[2 * count :]}
    return {split: [documents[index] for index in sorted(indices[split])] for split in SPLITS}


class PairBatch(NamedTuple):
    """B pairs of segments; K tokens are hidden. In this order they are arguments of `MaskedLanguageModel`."""

    tokens: Tensor  # [B, N] int64, <s> A </s> B </s>, with something else at most hidden tokens
    mask: Tensor  # [B, N] bool, True at what is no padding
    hidden: Tensor  # [B, N] bool, True at hidden tokens
    target: Tensor  # [K] int64, ids of the hidden tokens, pair after pair
    order: Tensor  # [B] int64, 0 where B follows A in the text, 1 where they are swapped


class SegmentPairs(Sentences[PairBatch]):
    """Pairs of segments that follow one another in a document, half of them swapped, with some pieces hidden.

    Sentences of a document are taken together until they fill the length; such a chunk is parted between two of its
    sentences. Where it is parted, whether it is swapped and what is hidden depends on seed, epoch and places alone. A
    chunk that is too long loses pieces at the end of its longer segment. A sentence that is alone in its document, or
    is left over behind the last chunk, is not used.

    Args:
        documents: Documents, each a list of sentences, ids without <s> and </s>.
        length: Tokens of a pair at most, <s> and </s> among them; 5 at least.
        vocabulary_size: Number of tokens.
        share: Share of the tokens to hide.
        seed: Seed of what is drawn.

    Raises:
        ValueError: No document has two sentences, or the length is below 5.

    Source:
        Lan et al., ALBERT, 2020, section 3.1, and create_pretraining_data.py.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[Tensor]],
        *,
        length: int,
        vocabulary_size: int,
        share: float = 0.15,
        seed: int = 0,
    ) -> None:
        if length < 5:
            raise ValueError(f"length is {length}, expected 5 at least: <s>, a piece, </s>, a piece and </s>")
        self.room = length - 3
        self.chunks = [chunk for document in documents for chunk in _chunks(document, self.room)]
        if not self.chunks:
            raise ValueError(f"none of {len(documents)} documents has two sentences, whose order could be learned")
        super().__init__([torch.cat([*chunk])[: self.room] for chunk in self.chunks])
        self.vocabulary_size, self.share, self.seed = vocabulary_size, share, seed

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> PairBatch:
        epoch, indices = index
        generator = np.random.default_rng([self.seed, epoch, *indices])
        rows, order = [], []
        for number in indices:
            chunk, swapped = self.chunks[number], int(generator.integers(2))
            parted = int(generator.integers(1, len(chunk)))
            pair = [torch.cat([*chunk[:parted]]), torch.cat([*chunk[parted:]])]
            rows.append(joined(*_shortened(pair[0], pair[1], self.room)[:: -1 if swapped else 1]))
            order.append(swapped)
        tokens, mask = padded(rows)
        hidden = hide_tokens(tokens, mask, share=self.share, vocabulary_size=self.vocabulary_size, generator=generator)
        return PairBatch(*hidden, torch.tensor(order))


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Return <s> A </s> B </s>.

    Example:
        >>> joined(torch.tensor([7, 8]), torch.tensor([9])).tolist()
        [1, 7, 8, 2, 9, 2]
    """
    begin, end = torch.tensor([BEGIN]), torch.tensor([END])
    return torch.cat([begin, first, end, second, end])


def _chunks(document: Sequence[Tensor], room: int) -> Iterator[Sequence[Tensor]]:
    chunk: list[Tensor] = []
    for sentence in filter(len, document):
        chunk.append(sentence)
        if len(chunk) > 1 and sum(map(len, chunk)) >= room:
            yield chunk
            chunk = []
    if len(chunk) > 1:
        yield chunk


def _shortened(first: Tensor, second: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Cut the longer segment, and then both, so that they fit."""
    excess = max(0, len(first) + len(second) - room)
    uneven = min(excess, abs(len(first) - len(second)))
    rest = excess - uneven
    cuts = [uneven * (len(first) > len(second)) + rest // 2, uneven * (len(second) > len(first)) + rest - rest // 2]
    return first[: len(first) - cuts[0]], second[: len(second) - cuts[1]]
