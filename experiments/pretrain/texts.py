"""Texts to pretrain on, and their batches with hidden pieces and, as an option, the order of two segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from experiments.data.storage import SPLITS
from experiments.data.text.batches import Sentences, Vocabulary
from experiments.data.text.documents import Document, PairBatch, SegmentPairs, load_documents
from experiments.data.text.masked_text import MaskedBatch, MaskedText, encode_sentences, load_english
from experiments.files import UserError, user_errors
from experiments.pretrain.config import PretrainConfig

HiddenBatch = MaskedBatch | PairBatch
Texts = Mapping[str, Sequence[Document]]  # documents by split; a sentence that stands alone is a document


def load_texts(config: PretrainConfig, *, limit: int | None = None) -> Texts:
    """Load the texts of a pretraining.

    Args:
        config: Options of the pretraining.
        limit: Largest number of training sentences, from whole documents; all when omitted.

    Raises:
        UserError: Sentences that do not belong together have no order, a part has no document of two sentences, or
            there is no --text.
    """
    if config.dataset == "english" and config.sentence_order:
        raise UserError(
            "the sentences of english do not follow one another; expected --dataset toy, squad or own, or no "
            "--sentence-order"
        )
    if config.dataset == "english" or (config.dataset == "toy" and not config.sentence_order):
        sentences = load_english(config.dataset, limit=limit, data_root=config.data_root)
        return {split: [[sentence] for sentence in sentences[split]] for split in SPLITS}
    documents = load_documents(config.dataset, text=config.text, data_root=config.data_root)
    if limit is not None:
        documents |= {"train": _first_sentences(documents["train"], limit)}
    for split, of_split in documents.items():  # here, as the test text is otherwise read after the training
        if config.sentence_order and not any(len(document) > 1 for document in of_split):
            raise UserError(
                f"{split}: none of its {len(of_split)} documents has two sentences, whose order could be learned; "
                f"expected one at least; give --text a file of more documents, or leave --sentence-order out"
            )
    return documents


def _first_sentences(documents: Sequence[Document], limit: int) -> list[Document]:
    """Return the first documents in a fixed random order, with at most ``limit`` sentences; at least one document."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(0)).tolist()
    chosen, count = list[Document](), 0
    for index in order:
        count += len(documents[index])
        if count > limit and chosen:
            break
        chosen.append(documents[index])
    return chosen


def hidden_pieces(
    config: PretrainConfig, vocabulary: Vocabulary, documents: Sequence[Document], *, seed: int
) -> Sentences[Any]:
    """Return the documents as sentences, or pairs of segments, with hidden pieces.

    Raises:
        UserError: The length is too small, or no document has two sentences.
    """
    hiding = {"vocabulary_size": len(vocabulary), "share": config.masked, "seed": seed}
    if config.sentence_order:
        encoded = [
            [torch.tensor(vocabulary.encode(sentence), dtype=torch.int64) for sentence in document]
            for document in documents
        ]
        with user_errors(ValueError):
            return SegmentPairs(encoded, length=config.length, **hiding)
    sentences = [sentence for document in documents for sentence in document]
    return MaskedText(encode_sentences(sentences, vocabulary, length=config.length), **hiding)
