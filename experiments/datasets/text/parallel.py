"""Sentence pairs to translate, by the name of their data set."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.places import check_split, data_folder
from experiments.datasets.text.parallel_text import PARALLEL, ParallelText, Rules, read_parallel
from experiments.datasets.text.word_rules import WordRule

__all__ = ["PARALLEL", "ParallelText", "load_parallel", "read_parallel"]

import_readers("experiments.datasets.text.readers")


def load_parallel(
    name: str,
    split: str,
    *,
    source: str = "de",
    target: str = "en",
    data_root: Path | str | None = None,
    lowercase: bool = False,
    max_words: int | None = None,
    skip: bool = False,
    words: WordRule = "none",
) -> ParallelText:
    """Load one split of a data set of sentence pairs.

    `toy`: the embedded corpus, from de to en, with gold alignments. `multi30k`: captions of photographs; fetched from its authors' repository when missing. The test split is that
    of 2016. `iwslt14`: TED talks, tokenised and lower-case, as fairseq's prepare-iwslt14.sh writes them; joints of
    word pieces ("@@ ") are undone. Where train.* is missing but the samples lowres_train_v1.bpe.* and
    lowres_train_v2.bpe.* are there, these are the training split and the name is `iwslt14-lowres`: without repeated
    pairs and without pairs that share a side with the other splits. `tatoeba`: short sentences, 2000 pairs (or the
    next few) to validate, as many to test. Sentences with a side in common, but for case and punctuation, are in one
    split, and the order is mixed, as the file is sorted by length.

    Args:
        name: "toy", "multi30k", "iwslt14" or "tatoeba".
        split: "train", "val" or "test".
        source: language to translate from: "de", "en" or, of multi30k, "fr".
        target: language to translate to.
        data_root: folder that holds multi30k/task1, iwslt14-de-en or tatoeba-deu-eng; by default
            $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention.
        lowercase: see `read_parallel`, as the following.
        max_words: most words of a sentence.
        skip: leave out bad pairs.
        words: how sentences are divided into words; "none" takes them as they are in the files.

    Returns:
        The pairs.

    Raises:
        FileNotFoundError: files are missing and cannot be fetched; the message says which to put where.
        ValueError: an unknown name, split or language, a bad line, or a fetched file of another checksum.

    Source:
        Elliott, Frank, Sima'an and Specia, Multi30K, 2016; Cettolo et al., Report on the 11th IWSLT Evaluation
        Campaign, 2014; https://tatoeba.org by way of https://www.manythings.org/anki.
    """
    reader = PARALLEL[name]
    check_split(split)
    unknown = [language for language in (source, target) if language not in reader.languages]
    if unknown or source == target:
        seen = f"no language is named {unknown[0]!r}" if unknown else f"source and target are both {source!r}"
        raise ValueError(f"{seen}; expected two different ones of those of {name}: {', '.join(reader.languages)}")
    return reader.read(data_folder(data_root), split, (source, target), Rules(lowercase, max_words, skip, words))
