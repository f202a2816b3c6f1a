"""Multiple choice: every option of a question is read with its passage, and one output scores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from experiments.data.text.race import Choice, load_race
from experiments.files import UserError, write_atomic
from experiments.finetune.config import RaceConfig
from experiments.finetune.glue import class_scores, outputs_of
from experiments.finetune.model import ClassTraining, EncodedTexts, FineTuneTask, Tuned, kinds, load_tokenizer, share_of
from experiments.run import show_run
from models.transformers import ChoiceModel

_ASKED = 128  # largest number of tokens of a question with an option


class ChoiceBatch(NamedTuple):
    """B questions with T options together; the first three fields are the arguments of a :class:`ChoiceModel`."""

    inputs: dict[str, Tensor]  # outputs of the tokenizer [T, N], by the names of the network's arguments
    options: Tensor  # bool [B, C], True at the options of a question
    answers: Tensor  # index of the right option [B]
    indices: Tensor  # indices of the questions [B]


class EncodedChoices(EncodedTexts[ChoiceBatch]):
    """Questions as tokens: the passage, cut off where it is too long, and the question with each of its options.

    A question with an option has at most 128 tokens, and half of the length; the last ones are kept.
    """

    def __init__(self, choices: Sequence[Choice], tokenizer: Any, *, length: int) -> None:
        texts = [_encoded(choice, option, tokenizer, length) for choice in choices for option in choice.options]
        super().__init__(texts, tokenizer)
        self.choices, counts = list(choices), [len(choice.options) for choice in choices]
        self.texts = torch.arange(len(texts)).split(counts)  # indices of the texts of every question
        self.options = torch.arange(max(counts)) < torch.tensor(counts)[:, None]  # True at options [questions, C]
        self.answers = torch.tensor([-1 if choice.answer is None else choice.answer for choice in choices])
        # questions of similar lengths lie in a batch: the longest text of a question decides
        self.token_pairs = [sum(len(self.rows[text]) ** 2 for text in of_question) for of_question in self.texts]
        self.rows = [max((self.rows[text] for text in of_question), key=len) for of_question in self.texts]

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> ChoiceBatch:
        _, indices = index
        texts = torch.cat([self.texts[question] for question in indices]).tolist()
        chosen = list(indices)
        return ChoiceBatch(self.padded(texts), self.options[chosen], self.answers[chosen], torch.tensor(chosen))


def joined(question: str, option: str) -> str:
    """Return a question with an option: in the place of its underscores, or behind it.

    Example:
        >>> joined("Tom likes _ .", "tea"), joined("What does Tom like?", "Tea.")
        ('Tom likes tea .', 'What does Tom like? Tea.')

    Source: the usual programs for RACE since Yang et al. (2019), XLNet.
    """
    return question.replace("_", option) if "_" in question else f"{question} {option}"


def _encoded(choice: Choice, option: str, tokenizer: Any, length: int) -> dict[str, Tensor]:
    """Return the outputs of the tokenizer for a passage and a question with an option."""
    limit, asked = min(_ASKED, length // 2), joined(choice.question, option)
    offsets = tokenizer(asked, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if len(offsets) > limit:
        asked = asked[offsets[-limit][0] :]
    encoded = tokenizer(choice.passage, asked, truncation="only_first", max_length=length, padding=False)
    return {name: torch.tensor(encoded[name]) for name in tokenizer.model_input_names if name in encoded}


class ChoiceTraining(ClassTraining):
    """Training of a :class:`ChoiceModel`; it takes the arguments of :class:`FineTuning`."""

    def arguments(self, batch: ChoiceBatch) -> Sequence[Any]:
        return batch[:3]

    def on_validation_epoch_end(self) -> None:
        """Log accuracy and loss over all validation questions."""
        logits, answers = self.validated()
        self.log("val_loss", nn.functional.cross_entropy(logits, answers))
        self.log("val_score", (logits.argmax(-1) == answers).double().mean())


RaceTuned: TypeAlias = Tuned[RaceConfig, ChoiceModel]


def choice_scores(logits: Tensor, choices: Sequence[Choice]) -> dict[str, float]:
    """Return the share of questions whose most probable option is right, over all and by the level of the passage.

    Args:
        logits: Scores of the options ``[S, questions, C]``; probabilities are means over the S samples.
        choices: The questions, with their answers.
    """
    answers = torch.tensor([choice.answer for choice in choices])
    right = (logits.softmax(-1).mean(0).argmax(-1) == answers).double()
    levels = dict.fromkeys(choice.level for choice in choices)
    of_level = {level: [choice.level == level for choice in choices] for level in levels}
    return {"accuracy": right.mean().item()} | {
        f"accuracy_{level}": right[torch.tensor(is_in)].mean().item() for level, is_in in of_level.items()
    }


class RaceTask(FineTuneTask[RaceConfig, EncodedChoices]):
    """Fine-tuning for the choice of one of several options."""

    config = RaceConfig
    head, training = AutoModelForSequenceClassification, ChoiceTraining

    def folder_name(self, config: RaceConfig) -> str:
        return "race" if config.level is None else f"race-{config.level}"

    def main_metrics(self, config: RaceConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        accuracies = [f"test_mean_{name}" for name in ("accuracy", "accuracy_middle", "accuracy_high")]
        return (*accuracies, "test_mean_nll", "test_mean_ece", "val_score")

    def wrap(self, config: RaceConfig, network: Any) -> ChoiceModel:  # noqa: ARG002
        return ChoiceModel(network)

    def output(self, config: RaceConfig) -> dict[str, Any]:  # noqa: ARG002
        return {"num_labels": 1}

    def load(self, config: RaceConfig) -> dict[str, EncodedChoices]:
        levels = () if config.level is None else (config.level,)
        choices, tokenizer = load_race(*levels, data_root=config.data_root), load_tokenizer(config.pretrained)
        if not tokenizer.is_fast:
            raise UserError(
                f"the tokenizer of {config.model} does not map tokens to characters; expected one with tokenizer.json"
            )
        picked = share_of(len(choices["train"]), config.train_share, seed=config.seed)
        choices["train"] = [choices["train"][index] for index in picked.tolist()]
        return {part: EncodedChoices(asked, tokenizer, length=config.length) for part, asked in choices.items()}

    def scores(self, trained: RaceTuned, data: Mapping[str, EncodedChoices], folder: Path) -> dict[str, float]:
        """Return the scores of the test part; the temperature is fitted to the validation part.

        predictions.npz gets scores ``KIND_PART`` and answers ``labels_PART``, in the order of the files.
        """
        labels = {part: data[part].answers for part in ("val", "test")}
        arrays: dict[str, Any] = {f"labels_{part}": values.numpy() for part, values in labels.items()}
        metrics: dict[str, float] = {f"{part}_questions": len(choices) for part, choices in data.items()}
        for kind in kinds(trained.config.guide):
            parts = {
                part: outputs_of(trained, data[part], kind, num_samples=trained.config.num_samples) for part in labels
            }
            arrays |= {f"{kind}_{part}": outputs.float().numpy() for part, outputs in parts.items()}
            scores, metrics[f"{kind}_temperature"] = class_scores(parts, labels)
            scores |= choice_scores(parts["test"], data["test"].choices)
            metrics |= {f"test_{kind}_{name}": value for name, value in scores.items()}
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        return metrics


def train(config: RaceConfig) -> None:
    """Run the command."""
    task = RaceTask()
    show_run(task, config, task.run(config))
