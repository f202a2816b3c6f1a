"""Extractive question answering: a span of a paragraph answers a question, or nothing in it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.functional.text import squad
from transformers import AutoModelForQuestionAnswering

from experiments.data.text.squad import Question, SquadVersion, load_squad
from experiments.files import UserError, write_atomic
from experiments.finetune import no_answer
from experiments.finetune.config import QaConfig
from experiments.finetune.model import EncodedTexts, FineTuneTask, FineTuning, Tuned, kinds, load_tokenizer, share_of
from experiments.folder import gathered
from experiments.report.statistics import KINDS
from experiments.run import show_run
from experiments.training import Fitted
from models.transformers import SpanModel
from pyro_attention.posterior.predictive import seeded

Array = NDArray[np.float64]
DOUBTS = ("entropy", "mutual_information")
_QUESTION = 64  # tokens of a question at most


# windows: long contexts have several, which overlap


class Window(NamedTuple):
    """A question with a part of its context, of T tokens; where the answer is not in it, the token is that of none."""

    question: int  # its place
    inputs: dict[str, Tensor]  # what the tokenizer made, [T] each, int32, by the names of the network's arguments
    spans: Tensor  # first character and the one behind the last of every token of the context [T, 2]; 0 elsewhere
    first: int  # token where the answer begins
    last: int  # token where it ends
    nothing: int  # token of no answer, [CLS]


class WindowBatch(NamedTuple):
    """B windows; see :class:`Window`."""

    inputs: dict[str, Tensor]  # [B, T], padded
    allowed: Tensor  # whether an answer may be there [B, T]: tokens of the context, and that of no answer
    first: Tensor  # [B]
    last: Tensor  # [B]
    nothing: Tensor  # [B]
    places: Tensor  # of the windows [B]


class Windows(EncodedTexts[WindowBatch]):
    """The windows of questions; to ``train``, without those whose answer is whole in no window, or is no token.

    They would teach that there is no answer.
    """

    def __init__(self, questions: Sequence[Question], tokenizer: Any, config: QaConfig, *, train: bool = False) -> None:
        if not tokenizer.is_fast or tokenizer.cls_token_id is None:
            raise UserError(
                f"the tokenizer of {config.model} has no classification token, or tells no places of its tokens in the "
                f"text, expected that of an encoder such as BERT, with tokenizer.json"
            )
        self.questions, self.windows, self.left_out = list(questions), list[Window](), 0
        for place, question in enumerate(questions):
            windows = list(_windows(place, question, tokenizer, config))
            if train and question.answers and all(window.first == window.nothing for window in windows):
                self.left_out += 1
            else:
                self.windows += windows
        super().__init__([window.inputs for window in self.windows], tokenizer)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> WindowBatch:
        _, places = index
        chosen = [self.windows[place] for place in places]
        allowed = pad_sequence([window.spans[:, 1] > 0 for window in chosen], batch_first=True)
        first, last, nothing = torch.tensor([(one.first, one.last, one.nothing) for one in chosen]).T
        allowed[torch.arange(len(chosen)), nothing] = True
        return WindowBatch(self.padded(places), allowed, first, last, nothing, torch.tensor(places))


def _windows(place: int, question: Question, tokenizer: Any, config: QaConfig) -> Iterator[Window]:
    """The windows of a question, of which a quarter of the length is kept at most."""
    limit = min(_QUESTION, config.length // 4)
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


# training


class SpanTraining(FineTuning):
    """Trains a :class:`SpanModel`; arguments as of :class:`FineTuning`."""

    validation: Windows  # to be set before training

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.version, self.longest = parts[-1].version, int(parts[-1].max_answer)
        self._found: list[BestSpans] = []

    def arguments(self, batch: WindowBatch) -> tuple[Any, ...]:
        return batch.inputs, batch.allowed, batch.first, batch.last

    def observations(self, batch: WindowBatch) -> int:
        return len(batch.allowed)

    def validation_step(self, batch: WindowBatch, batch_idx: int) -> None:  # noqa: ARG002
        logits = self.outputs(batch.inputs, batch.allowed)
        truth = torch.stack([batch.first, batch.last], 1)
        loss = 2 * nn.functional.cross_entropy(logits[0].mT, truth)
        self.log("val_loss", loss, on_step=False, on_epoch=True, batch_size=len(truth), sync_dist=True)
        self._found.append(best_spans(logits, batch, longest=self.longest))

    def on_validation_epoch_end(self) -> None:
        """Log the mean F1 of the questions, with the best threshold of giving no answer where some have none."""
        questions, answered = self.validation.questions, best_answers(self.validation, gathered(self._found))
        self._found.clear()
        _, f1 = all_scores(answered.texts, questions, self.version)
        best = (
            f1.mean()
            if self.version == "1.1"
            else no_answer.best_threshold(answered.no_answer.numpy(), f1, questions)[1]
        )
        self.log("val_score", float(best))


QaTuned: TypeAlias = Tuned[QaConfig, SpanModel]


# answers


class BestSpans(NamedTuple):
    """The best span of every window of a batch."""

    places: Tensor  # of the windows [B]
    score: Tensor  # log of the probability of the first token times that of the last [B]
    first: Tensor  # first token [B]
    last: Tensor  # last token [B]
    nothing: Tensor  # the score of no answer [B]
    entropy: Tensor  # of the first and the last token, sum of both, nats [B]
    mutual_information: Tensor  # of these two tokens and the noise, sum of both, nats [B]


class Answered(NamedTuple):
    """The best answer to each of Q questions, whether there is one or not."""

    texts: list[str]
    score: Tensor  # log of its probability [Q]
    nothing: Tensor  # log of the probability of no answer, the smallest one of all windows [Q]
    entropy: Tensor  # of the window that holds the best answer [Q]
    mutual_information: Tensor  # the same

    @property
    def no_answer(self) -> Tensor:
        """Log probability of no answer, less that of the best answer ``[Q]``."""
        return self.nothing - self.score


def best_spans(logits: Tensor, batch: WindowBatch, *, longest: int) -> BestSpans:
    """The best of all spans of the context in every window, by the mean of probabilities over samples.

    Logits are those of first and last token ``[S, B, 2, T]``; a span has ``longest`` tokens at most.
    """
    samples = logits.softmax(-1)
    mean = samples.mean(0)
    entropy = torch.special.entr(mean).sum((-2, -1))
    expected = torch.special.entr(samples).sum((-2, -1)).mean(0)
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
    # the token of no answer is the one that is allowed and no token of the context
    rows, width = torch.arange(len(mean), device=mean.device), mean.size(-1)
    context = batch.allowed.clone()
    context[rows, batch.nothing] = False
    place = torch.arange(width, device=mean.device)
    length = place[None, :] - place[:, None] + 1
    possible = context[:, :, None] & context[:, None, :] & (length > 0) & (length <= longest)
    scores = (log_mean[:, 0, :, None] + log_mean[:, 1, None, :]).masked_fill(~possible, -torch.inf)
    score, best = scores.flatten(1).max(1)
    nothing = log_mean[rows, :, batch.nothing].sum(-1)
    doubt = entropy, (entropy - expected).clamp_min(0)
    found = batch.places, score, best // width, best % width, nothing, *doubt
    return BestSpans(*(one.cpu() for one in found))


def best_answers(data: Windows, found: Sequence[BestSpans]) -> Answered:
    """The best answer to every question, out of the best spans of all its windows."""
    spans = BestSpans(*(torch.cat(parts) for parts in zip(*found, strict=True)))
    spans = BestSpans(*(part[spans.places.argsort()] for part in spans))
    counts = torch.bincount(torch.tensor([window.question for window in data.windows]))
    windows_of = torch.arange(len(data)).split(counts.tolist())  # the windows of a question follow each other
    chosen = torch.stack([windows[spans.score[windows].argmax()] for windows in windows_of])
    texts = []
    for place in chosen.tolist():
        window = data.windows[place]
        begin, end = window.spans[spans.first[place], 0], window.spans[spans.last[place], 1]
        texts.append(data.questions[window.question].context[int(begin) : int(end)])
    nothing = torch.stack([spans.nothing[windows].min() for windows in windows_of])
    return Answered(texts, spans.score[chosen], nothing, spans.entropy[chosen], spans.mutual_information[chosen])


def answers_of(trained: QaTuned, data: Windows, kind: str) -> Answered:
    """The best answers by one kind of prediction."""
    config, noise = trained.config, KINDS[kind]
    samples = 1 if noise == "none" else config.num_samples
    found = []
    with seeded(config.seed):
        for batch in data.batches(trained.device, sentences=64):
            logits = trained.module.outputs(batch.inputs, batch.allowed, num_samples=samples, noise=noise)
            found.append(best_spans(logits, batch, longest=config.max_answer))
    return best_answers(data, found)


# scores


def question_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of words by the official evaluation of SQuAD 1.1, the largest ones over all answers.

    Example:
        >>> question_scores("the Norman conquest", ["Norman", "Norman conquest of 1066"])
        (0.0, 0.666...)
    """
    truth: Any = {"id": "", "answers": {"text": list(answers), "answer_start": [0] * len(answers)}}
    found = squad({"id": "", "prediction_text": predicted}, truth)  # in per cent
    return found["exact_match"].item() / 100, found["f1"].item() / 100


def all_scores(
    predicted: Sequence[str], questions: Sequence[Question], version: SquadVersion = "1.1"
) -> tuple[Array, Array]:
    """Exact match and F1 of every question ``[questions]``, by the official evaluation of a version."""
    score = question_scores if version == "1.1" else no_answer.question_scores
    found = [
        score(text, [answer.text for answer in question.answers])
        for text, question in zip(predicted, questions, strict=True)
    ]
    exact, f1 = np.array(found).T
    return exact, f1


class QaTask(FineTuneTask[QaConfig, Windows]):
    """Answers to questions as spans of a text."""

    config = QaConfig
    head, training = AutoModelForQuestionAnswering, SpanTraining

    def called(self, config: QaConfig) -> str:
        return "squad" if config.version == "1.1" else f"squad-{config.version}"

    def wrap(self, config: QaConfig, network: Any) -> SpanModel:  # noqa: ARG002
        return SpanModel(network)

    def output(self, config: QaConfig) -> dict[str, Any]:  # noqa: ARG002
        return {"num_labels": 2}

    def load(self, config: QaConfig) -> dict[str, Windows]:
        questions = load_squad(
            config.version, data_root=config.data_root, train_file=config.train_file, test_file=config.test_file
        )
        chosen = share_of(len(questions["train"]), config.train_share, seed=config.seed)
        questions["train"] = [questions["train"][place] for place in chosen.tolist()]
        tokenizer = load_tokenizer(config.model)
        return {part: Windows(asked, tokenizer, config, train=part == "train") for part, asked in questions.items()}

    def fit(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> Fitted:
        module: Any = trained.module
        module.validation = data["val"]
        return super().fit(trained, data, folder)

    def scores(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> dict[str, float]:
        """Scores; predictions.npz gets answers and numbers of every kind.

        The threshold of giving no answer is that of the validation part.
        """
        questions, version = data["test"].questions, trained.config.version
        metrics, arrays = dict[str, float](), dict[str, Any](ids=np.array([question.id for question in questions]))
        for kind in kinds(trained.config.guide):
            answered = answers_of(trained, data["test"], kind)
            texts, numbers = answered.texts, {name: getattr(answered, name).numpy() for name in DOUBTS}
            if version == "2.0":
                val = answers_of(trained, data["val"], kind)
                _, val_f1 = all_scores(val.texts, data["val"].questions, version)
                threshold, _ = no_answer.best_threshold(val.no_answer.numpy(), val_f1, data["val"].questions)
                numbers["no_answer"], metrics[f"{kind}_threshold"] = answered.no_answer.numpy(), threshold
                given = answered.no_answer.double().numpy() <= threshold
                texts = [text if gives else "" for text, gives in zip(texts, given, strict=True)]
            exact, f1 = all_scores(texts, questions, version)
            columns = {"answers": np.array(texts), "exact": exact, "f1": f1} | numbers
            arrays |= {f"{kind}_{name}": column for name, column in columns.items()}
            found = no_answer.mean_scores(exact, f1, questions)
            if 0 < exact.mean() < 1:
                told = DOUBTS[:1] if kind == "mean" else DOUBTS
                found |= {f"auroc_{name}": float(roc_auc_score(exact == 0, numbers[name])) for name in told}
            metrics |= {f"test_{kind}_{name}": value for name, value in found.items()}
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        for part, windows in data.items():
            metrics[f"{part}_questions"] = len(windows.questions)
            if version == "2.0":
                metrics[f"{part}_without_answer"] = sum(not question.answers for question in windows.questions)
        return metrics | {"left_out": data["train"].left_out}


def train(config: QaConfig) -> None:
    """Run the command."""
    task = QaTask()
    show_run(task, config, task.run(config))
