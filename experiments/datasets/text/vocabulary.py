"""Word pieces of a text: byte-level BPE with the same special tokens in every vocabulary."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from experiments.files import reading, write_text
from pyro_attention.analysis.alignments.weights import word_map

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BEGIN, END, UNKNOWN = range(len(SPECIAL))
_ALPHABET = sorted(ByteLevel.alphabet())  # the library's order changes from call to call


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that turns every text into ids and back, up to its white space.

    Pieces are runs of bytes (byte-level BPE): every text has ids, and nothing becomes <unk>. The names of special
    tokens in a text, such as "<s>", are ordinary characters.
    """

    text: str  # JSON of the `tokenizers` library

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __reduce__(self) -> tuple[type["Vocabulary"], tuple[str]]:
        return Vocabulary, (self.text,)  # a pickled tokenizer would forget encode_special_tokens

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self.text)
        # Or "<s>" in a sentence would become the special token.
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence, without special tokens."""
        return self._tokenizer.encode(" ".join(text.split())).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first </s>, without special tokens; words with single blanks between."""
        ids = list(ids)
        said = ids[: ids.index(END)] if END in ids else ids
        return " ".join(self._tokenizer.decode(said, skip_special_tokens=True).split())

    def words(self, ids: Sequence[int]) -> list[int | None]:
        """Return the word of every id, counted from 0, or None for special tokens; what `merge_pieces` takes.

        Words are what blanks separate, also in ids that a model has made.
        """
        return word_map([self._tokenizer.id_to_token(token) or "" for token in ids], style="Ġ", special=SPECIAL)

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        write_text(path, self.text)

    @staticmethod
    def load(path: Path) -> "Vocabulary":
        """Read what `save` has written; DamagedFileError where the file is missing or damaged."""
        with reading(path, "a vocabulary as JSON", "replace it by an intact copy, or train the tokenizer again"):
            vocabulary = Vocabulary(path.read_bytes().decode())
            if [vocabulary._tokenizer.token_to_id(token) for token in SPECIAL] != [*range(len(SPECIAL))]:
                raise ValueError(f"it does not begin with {SPECIAL}")
            return vocabulary


def train_tokenizer(texts: Iterable[str], *, size: int = 4000) -> Vocabulary:
    """Learn pieces from training sentences: of both languages for a joint vocabulary, of one for a separate one.

    The same sentences give the same vocabulary, whatever their order. Of `size` pieces at most 4 are special tokens and
    256 are bytes; the others are merged from these. A small text has fewer: two pieces are merged that meet twice.

    Source:
        Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016; on bytes:
        Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    least = len(SPECIAL) + len(_ALPHABET)
    if size < least:
        raise ValueError(f"size is {size}; expected {least} at least, for special tokens and single bytes")
    sentences = [" ".join(text.split()) for text in texts]
    # Every merge makes the text shorter by a byte, so there are no more; the library takes memory for all it may make.
    size = min(size, least + sum(len(sentence.encode()) + 1 for sentence in sentences))
    tokenizer = Tokenizer(BPE(unk_token=SPECIAL[UNKNOWN]))
    # The blank in front of a word belongs to its first piece; the first word gets one, to be no other word than later.
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(SPECIAL), initial_alphabet=_ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return Vocabulary(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))
