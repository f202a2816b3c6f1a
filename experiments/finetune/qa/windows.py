"""Questions with windows of their contexts, as tokens; long contexts have several windows, which overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments.datasets.text.squad import Question
from experiments.files import UserError
from experiments.finetune.config import QaConfig
from experiments.finetune.data import EncodedTexts

__all__ = ["Window", "WindowBatch", "Windows"]

_QUESTION = 64  # tokens of a question at most


class Window(NamedTuple):
    """A question with a part of its context, of T tokens.

    Attributes:
        question: Place of the question.
        inputs: What the tokenizer made, ``[T]`` each, int32, by the names of the network's arguments.
        spans: First character and the one behind the last of every token of the context ``[T, 2]``, and 0 elsewhere.
        first: Token where the answer begins; that of no answer where it is not in this window.
        last: Token where it ends.
        nothing: Token of no answer, [CLS].
    """

    question: int
    inputs: dict[str, Tensor]
    spans: Tensor
    first: int
    last: int
    nothing: int


class WindowBatch(NamedTuple):
    """B windows; see :class:`Window`.

    Attributes:
        inputs: Padded inputs ``[B, T]``.
        allowed: Whether an answer may be there ``[B, T]``: tokens of the context, and that of no answer.
        first: ``[B]``.
        last: ``[B]``.
        nothing: ``[B]``.
        places: Places of the windows ``[B]``.
    """

    inputs: dict[str, Tensor]
    allowed: Tensor
    first: Tensor
    last: Tensor
    nothing: Tensor
    places: Tensor


class Windows(EncodedTexts[WindowBatch]):
    """The windows of questions.

    Args:
        questions: The questions.
        tokenizer: Of the pretrained model.
        config: Length and stride.
        train: Leave out questions whose answer is in no window as a whole, or is no token: they would teach that there
            is none.

    Raises:
        UserError: The tokenizer cannot tell which characters a token is of, or has no token for no answer.
        ValueError: A context has no tokens.
    """

    def __init__(self, questions: Sequence[Question], tokenizer: Any, config: QaConfig, *, train: bool = False) -> None:
        if not tokenizer.is_fast or tokenizer.cls_token_id is None:
            lacks = "no classification token" if tokenizer.is_fast else "no places of its tokens in the text"
            raise UserError(
                f"model {config.model}: its tokenizer has {lacks}, expected that of an encoder such as BERT, with "
                f"tokenizer.json"
            )
        self.questions = list(questions)
        self.windows = list[Window]()
        self.left_out = 0
        limit = min(_QUESTION, config.length // 4)
        for place, question in enumerate(questions):
            windows = list(_windows(place, question, tokenizer, config, limit))
            found = not question.answers or any(window.first != window.nothing for window in windows)
            if found or not train:
                self.windows += windows
            else:
                self.left_out += 1
        if not self.windows:
            raise ValueError(f"no answer of {len(questions)} questions is in a window of {config.length} tokens")

        super().__init__([window.inputs for window in self.windows], tokenizer)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> WindowBatch:
        _, places = index
        chosen = [self.windows[place] for place in places]
        inputs = {name: tokens.long() for name, tokens in self.padded(places).items()}
        allowed = pad_sequence([window.spans[:, 1] > 0 for window in chosen], batch_first=True)
        first, last, nothing = (
            torch.tensor([getattr(window, name) for window in chosen]) for name in ("first", "last", "nothing")
        )
        allowed[torch.arange(len(chosen)), nothing] = True
        return WindowBatch(inputs, allowed, first, last, nothing, torch.tensor(places))


def _windows(place: int, question: Question, tokenizer: Any, config: QaConfig, limit: int) -> Iterator[Window]:
    """The windows of a question, of which at most ``limit`` tokens are kept."""
    asked = tokenizer(question.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    text = question.text[: asked[limit - 1][1]] if len(asked) > limit else question.text
    encoded = tokenizer(
        text, question.context, truncation="only_second", max_length=config.length, stride=config.stride,
        return_overflowing_tokens=True, return_offsets_mapping=True, padding=False,
    )  # fmt: skip
    names = [name for name in tokenizer.model_input_names if name in encoded]
    for number, offsets in enumerate(encoded["offset_mapping"]):
        inside = torch.tensor([one == 1 for one in encoded.sequence_ids(number)])
        spans = torch.tensor(offsets, dtype=torch.int32) * inside[:, None]
        if not spans[:, 1].any():
            raise ValueError(f"question {question.id!r}: its context has no tokens, expected a text")
        inputs = {name: torch.tensor(encoded[name][number], dtype=torch.int32) for name in names}
        nothing = encoded["input_ids"][number].index(tokenizer.cls_token_id)
        yield Window(place, inputs, spans, *_labels(question, spans, nothing), nothing)


def _labels(question: Question, spans: Tensor, nothing: int) -> tuple[int, int]:
    """Tokens where the first answer begins and ends; that of no answer where not all of it is in the window."""
    if not question.answers:
        return nothing, nothing
    text, start = question.answers[0]
    end = start + len(text)
    tokens = (spans[:, 1] > 0).nonzero()[:, 0]
    begins, ends = spans[tokens].T
    over = tokens[(ends > start) & (begins < end)]
    if not len(over) or begins[0] > start or ends[-1] < end:
        return nothing, nothing
    return int(over[0]), int(over[-1])
