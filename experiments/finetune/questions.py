"""Extractive question answering: the answer is a span of a paragraph, or the paragraph has no answer."""

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
MAX_ANSWER = 30  # largest number of tokens of an answer, as in the usual evaluations of SQuAD
_QUESTION = 64  # largest number of tokens of a question


# windows: a long context has several, which overlap


class Window(NamedTuple):
    """A question with a part of its context, T tokens; ``first`` and ``last`` are ``nothing`` without the answer."""

    question: int  # index of the question
    inputs: dict[str, Tensor]  # outputs of the tokenizer [T], int32, by the names of the network's arguments
    spans: Tensor  # start and end (exclusive) in characters of every token of the context [T, 2]; 0 elsewhere
    first: int  # first token of the answer
    last: int  # last token of the answer
    nothing: int  # token that stands for no answer, [CLS]


class WindowBatch(NamedTuple):
    """B windows; see :class:`Window`."""

    inputs: dict[str, Tensor]  # [B, T], padded
    allowed: Tensor  # bool [B, T], True at tokens of the context and at the token of no answer
    first: Tensor  # [B]
    last: Tensor  # [B]
    nothing: Tensor  # [B]
    indices: Tensor  # indices of the windows [B]


class Windows(EncodedTexts[WindowBatch]):
    """Windows of questions.

    For training, questions are left out whose whole answer is in no window: they would teach that there is no answer.
    """

    def __init__(self, questions: Sequence[Question], tokenizer: Any, config: QaConfig, *, train: bool = False) -> None:
        if not tokenizer.is_fast or tokenizer.cls_token_id is None:
            raise UserError(
                f"the tokenizer of {config.model} has no classification token, or does not map tokens to characters; "
                f"expected the tokenizer of an encoder such as BERT, with tokenizer.json"
            )
        self.questions, self.windows, self.left_out = list(questions), list[Window](), 0
        for index, question in enumerate(questions):
            windows = list(_windows(index, question, tokenizer, config))
            if train and question.answers and all(window.first == window.nothing for window in windows):
                self.left_out += 1
            else:
                self.windows += windows
        super().__init__([window.inputs for window in self.windows], tokenizer)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> WindowBatch:
        _, indices = index
        chosen = [self.windows[number] for number in indices]
        allowed = pad_sequence([window.spans[:, 1] > 0 for window in chosen], batch_first=True)
        first, last, nothing = torch.tensor([(window.first, window.last, window.nothing) for window in chosen]).T
        allowed[torch.arange(len(chosen)), nothing] = True
        return WindowBatch(self.padded(indices), allowed, first, last, nothing, torch.tensor(indices))


def _windows(index: int, question: Question, tokenizer: Any, config: QaConfig) -> Iterator[Window]:
    """Yield the windows of a question, which is cut off at a quarter of the length."""
    limit = min(_QUESTION, config.length // 4)
    tokens = tokenizer(question.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    text = question.text[: tokens[limit - 1][1]] if len(tokens) > limit else question.text
    encoded = tokenizer(
        text, question.context, truncation="only_second", max_length=config.length, stride=config.stride,
        return_overflowing_tokens=True, return_offsets_mapping=True, padding=False,
    )  # fmt: skip
    names = [name for name in tokenizer.model_input_names if name in encoded]
    for number, offsets in enumerate(encoded["offset_mapping"]):
        in_context = torch.tensor([part == 1 for part in encoded.sequence_ids(number)])
        spans = torch.tensor(offsets, dtype=torch.int32) * in_context[:, None]
        inputs = {name: torch.tensor(encoded[name][number], dtype=torch.int32) for name in names}
        nothing = encoded["input_ids"][number].index(tokenizer.cls_token_id)
        yield Window(index, inputs, spans, *_labels(question, spans, nothing), nothing)


def _labels(question: Question, spans: Tensor, nothing: int) -> tuple[int, int]:
    """Return the first and the last token of the first answer, or ``nothing`` twice where a part of it is missing."""
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
    """Training of a :class:`SpanModel`; it takes the arguments of :class:`FineTuning`."""

    validation: Windows  # the validation part, to be set before training

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.version = parts[-1].version
        self._spans: list[BestSpans] = []

    def arguments(self, batch: WindowBatch) -> tuple[Any, ...]:
        return batch.inputs, batch.allowed, batch.first, batch.last

    def observations(self, batch: WindowBatch) -> int:
        return len(batch.allowed)

    def validation_step(self, batch: WindowBatch, batch_idx: int) -> None:  # noqa: ARG002
        logits = self.outputs(batch.inputs, batch.allowed)
        truth = torch.stack([batch.first, batch.last], 1)
        loss = 2 * nn.functional.cross_entropy(logits[0].mT, truth)
        self.log("val_loss", loss, on_step=False, on_epoch=True, batch_size=len(truth), sync_dist=True)
        self._spans.append(best_spans(logits, batch))

    def on_validation_epoch_end(self) -> None:
        """Log the mean F1 of the validation questions; SQuAD 2.0 has the best threshold of giving no answer."""
        questions, answered = self.validation.questions, best_answers(self.validation, gathered(self._spans))
        self._spans.clear()
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

    indices: Tensor  # indices of the windows [B]
    score: Tensor  # log of the product of the probabilities of the first and the last token [B]
    first: Tensor  # first token [B]
    last: Tensor  # last token [B]
    nothing: Tensor  # score of no answer [B]
    entropy: Tensor  # entropy of the first token plus that of the last, nats [B]
    mutual_information: Tensor  # mutual information of either token with the noise, summed, nats [B]


class Answered(NamedTuple):
    """Best answers to Q questions, also to questions that have none."""

    texts: list[str]
    score: Tensor  # log probability of the answer [Q]
    nothing: Tensor  # log probability of no answer, the smallest of all windows [Q]
    entropy: Tensor  # entropy in the window of the best answer, nats [Q]
    mutual_information: Tensor  # mutual information in that window, nats [Q]

    @property
    def no_answer(self) -> Tensor:
        """Log probability of no answer, less that of the best answer ``[Q]``."""
        return self.nothing - self.score


def best_spans(logits: Tensor, batch: WindowBatch, *, longest: int = MAX_ANSWER) -> BestSpans:
    """Return the best span of the context in every window, by the mean probabilities over samples.

    Logits of the first and the last token are ``[S, B, 2, T]``; a span has at most ``longest`` tokens.
    """
    samples = logits.softmax(-1)
    mean = samples.mean(0)
    entropy = torch.special.entr(mean).sum((-2, -1))
    expected = torch.special.entr(samples).sum((-2, -1)).mean(0)
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
    # every allowed token but that of no answer is a token of the context
    rows, width = torch.arange(len(mean), device=mean.device), mean.size(-1)
    context = batch.allowed.clone()
    context[rows, batch.nothing] = False
    position = torch.arange(width, device=mean.device)
    length = position[None, :] - position[:, None] + 1
    possible = context[:, :, None] & context[:, None, :] & (length > 0) & (length <= longest)
    scores = (log_mean[:, 0, :, None] + log_mean[:, 1, None, :]).masked_fill(~possible, -torch.inf)
    score, best = scores.flatten(1).max(1)
    nothing = log_mean[rows, :, batch.nothing].sum(-1)
    uncertainties = entropy, (entropy - expected).clamp_min(0)
    fields = batch.indices, score, best // width, best % width, nothing, *uncertainties
    return BestSpans(*(tensor.cpu() for tensor in fields))


def best_answers(data: Windows, batches: Sequence[BestSpans]) -> Answered:
    """Return the best answer to every question, from the best spans of all its windows."""
    spans = BestSpans(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    spans = BestSpans(*(part[spans.indices.argsort()] for part in spans))
    counts = torch.bincount(torch.tensor([window.question for window in data.windows]))
    windows_of = torch.arange(len(data)).split(counts.tolist())  # the windows of a question follow each other
    chosen = torch.stack([windows[spans.score[windows].argmax()] for windows in windows_of])
    texts = []
    for index in chosen.tolist():
        window = data.windows[index]
        begin, end = window.spans[spans.first[index], 0], window.spans[spans.last[index], 1]
        texts.append(data.questions[window.question].context[int(begin) : int(end)])
    nothing = torch.stack([spans.nothing[windows].min() for windows in windows_of])
    return Answered(texts, spans.score[chosen], nothing, spans.entropy[chosen], spans.mutual_information[chosen])


def answers_of(trained: QaTuned, data: Windows, kind: str) -> Answered:
    """Return the best answers to all questions by a kind of prediction."""
    config, noise = trained.config, KINDS[kind]
    samples = 1 if noise == "none" else config.num_samples
    spans = []
    with seeded(config.seed):
        for batch in data.batches(trained.device, sentences=64):
            logits = trained.module.outputs(batch.inputs, batch.allowed, num_samples=samples, noise=noise)
            spans.append(best_spans(logits, batch))
    return best_answers(data, spans)


# scores


def question_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of words by the official evaluation of SQuAD 1.1, the largest values over all answers.

    Example:
        >>> question_scores("the Norman conquest", ["Norman", "Norman conquest of 1066"])
        (0.0, 0.666...)
    """
    truth: Any = {"id": "", "answers": {"text": list(answers), "answer_start": [0] * len(answers)}}
    scores = squad({"id": "", "prediction_text": predicted}, truth)  # in percent
    return scores["exact_match"].item() / 100, scores["f1"].item() / 100


def all_scores(
    predicted: Sequence[str], questions: Sequence[Question], version: SquadVersion = "1.1"
) -> tuple[Array, Array]:
    """Return exact match and F1 of every question ``[questions]`` by the official evaluation of a version."""
    score = question_scores if version == "1.1" else no_answer.question_scores
    scores = [
        score(text, [answer.text for answer in question.answers])
        for text, question in zip(predicted, questions, strict=True)
    ]
    exact, f1 = np.array(scores).T
    return exact, f1


class QaTask(FineTuneTask[QaConfig, Windows]):
    """Fine-tuning for answers to questions as spans of a text."""

    config = QaConfig
    head, training = AutoModelForQuestionAnswering, SpanTraining

    def folder_name(self, config: QaConfig) -> str:
        return "squad" if config.version == "1.1" else f"squad-{config.version}"

    def main_metrics(self, config: QaConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        parts = ("test_mean_has_answer_f1", "test_mean_no_answer_accuracy")  # of SQuAD 2.0
        return ("test_mean_f1", "test_mean_exact", *parts, "val_score")

    def wrap(self, config: QaConfig, network: Any) -> SpanModel:  # noqa: ARG002
        return SpanModel(network)

    def output(self, config: QaConfig) -> dict[str, Any]:  # noqa: ARG002
        return {"num_labels": 2}

    def load(self, config: QaConfig) -> dict[str, Windows]:
        questions = load_squad(
            config.version, data_root=config.data_root, train_file=config.train_file, test_file=config.test_file
        )
        picked = share_of(len(questions["train"]), config.train_share, seed=config.seed)
        questions["train"] = [questions["train"][index] for index in picked.tolist()]
        tokenizer = load_tokenizer(config.pretrained)
        return {part: Windows(asked, tokenizer, config, train=part == "train") for part, asked in questions.items()}

    def fit(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> Fitted:
        module: Any = trained.module
        module.validation = data["val"]
        return super().fit(trained, data, folder)

    def scores(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> dict[str, float]:
        """Return the scores of the test part, and write answers and scores of every question into predictions.npz.

        The threshold of giving no answer is the best one on the validation part.
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
                is_answered = answered.no_answer.double().numpy() <= threshold
                texts = [text if answered_here else "" for text, answered_here in zip(texts, is_answered, strict=True)]
            exact, f1 = all_scores(texts, questions, version)
            columns = {"answers": np.array(texts), "exact": exact, "f1": f1} | numbers
            arrays |= {f"{kind}_{name}": column for name, column in columns.items()}
            scores = no_answer.mean_scores(exact, f1, questions)
            if 0 < exact.mean() < 1:
                measures = DOUBTS[:1] if kind == "mean" else DOUBTS
                scores |= {f"auroc_{name}": float(roc_auc_score(exact == 0, numbers[name])) for name in measures}
            metrics |= {f"test_{kind}_{name}": value for name, value in scores.items()}
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
