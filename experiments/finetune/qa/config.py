"""Options of question answering."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

from experiments.finetune.config import FineTuneOptions
from experiments.harness.options import OptionError

__all__ = ["QaConfig"]

_SHORTEST = 20  # a quarter for the question, then special tokens, and the rest for the context


@dataclass(frozen=True, kw_only=True)
class QaConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer to answer questions by spans of a paragraph, as in SQuAD 1.1 and 2.0.

    The test part is the development file; validation, which chooses the no-answer threshold, has whole
    articles of its own. Where v2 has no training file with unanswerable questions, the articles of the development file
    are divided: 3/8 are trained on, 1/8 are for validation, and the others are the test part.

    Args:
        task: v1, all questions have an answer in their paragraph; v2, some have none.
        length: Tokens of a window at most: of the question, a quarter of this and 64 at most, and of the context.
        stride: Tokens that a window of the context shares with the one before it.
        max_answer: Tokens of an answer at most.
        batch_size: Windows of a batch.
        train_file: File of one's own to train on; train-v1.1 or train-v2.0 in squad/ below the data root when omitted.
        test_file: File of one's own to test on; dev-v1.1 or dev-v2.0 there when omitted.

    Raises:
        OptionError: The length is below 20, or the stride more than half of it.
    """

    task: Literal["v1", "v2"]
    max_epochs: PositiveInt = 3
    length: PositiveInt = 256
    stride: PositiveInt = 128
    max_answer: PositiveInt = 30
    train_file: Path | None = None
    test_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < _SHORTEST or 2 * self.stride > self.length:
            raise OptionError(
                f"length is {self.length} and stride {self.stride}, expected a length of {_SHORTEST} at least and a "
                f"stride of half of it at most; pass --length 256 --stride 128"
            )
