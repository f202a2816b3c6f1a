"""Batches of questions, and the network that answers them with its guide and its training."""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments.data.images.regions import Regions
from experiments.data.questions.digit_questions import digit_questions
from experiments.data.questions.load import Questions, load_photo_questions
from experiments.data.questions.votes import consensus, soft_scores
from experiments.data.questions.vqa_v2 import read_vqa_v2
from experiments.data.storage import data_folder
from experiments.data.text.batches import Sentences
from experiments.files import UserError, read_json, user_errors, write_atomic
from experiments.training import ELBOTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.vqa.config import VQAConfig
from guides.inference_network import AnswerNetwork
from guides.schemes import build_normalizer
from models.vqa import MCAN, AnswerModel, BottomUp, MCANSizes, MultiView
from pyro_attention import AlignmentPrior, Soft, predict
from pyro_attention.posterior.predictive import Noise

_UNKNOWN = 1  # 0 is the padding


class QuestionBatch(NamedTuple):
    """Arguments of an :class:`AnswerModel`, and the index of every question."""

    question: Tensor
    question_mask: Tensor
    regions: Tensor
    region_mask: Tensor
    answer: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Words:
    """Words of the training questions, with ids from 2 on, and the most frequent answers, in the order of classes."""

    words: Sequence[str]
    answers: Sequence[str]

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Id of every word."""
        return {word: index for index, word in enumerate(self.words, start=_UNKNOWN + 1)}

    @cached_property
    def answer_ids(self) -> dict[str, int]:
        """Class of every answer."""
        return {answer: index for index, answer in enumerate(self.answers)}

    def __len__(self) -> int:
        return len(self.words) + _UNKNOWN + 1


def load_words(folder: Path, data: Questions | None = None, *, answers: int = 1) -> Words:
    """Read the words in the folder of a run, or write the words of the training questions into it."""
    path = folder / "vocabulary.json"
    if data is None or path.is_file():
        return Words(**read_json(path, "put an intact copy there, or train again"))
    counts = Counter(data.answers)
    if data.votes is not None:
        counts = Counter[str]()
        for votes in data.votes:
            counts.update(consensus(votes))
    frequent = sorted(counts, key=lambda answer: (-counts[answer], answer))
    words = Words(sorted({word for question in data.questions for word in question}), frequent[:answers])
    content = json.dumps(asdict(words), ensure_ascii=False, indent=0).encode()
    write_atomic(path, lambda file: file.write(content))
    return words


class Answered(Sentences[QuestionBatch]):
    """Questions with their answers as targets: classes, or with the likelihood "scores" a soft score of every answer.

    Where several people answered, a class is drawn in proportion to the votes; it depends on seed, epoch and index
    alone. With ``fixed`` it is the same in all epochs.
    """

    def __init__(
        self, data: Questions, words: Words, *, likelihood: str = "single", seed: int = 0, fixed: bool = False
    ) -> None:
        self.data, self.words, ids = data, words, words.word_ids
        self.likelihood, self.seed, self.fixed = likelihood, seed, fixed
        super().__init__([torch.tensor([ids.get(word, _UNKNOWN) for word in question]) for question in data.questions])
        classes = words.answer_ids

        def with_class(weights: Mapping[str, float]) -> dict[str, float]:
            return {answer: float(weight) for answer, weight in weights.items() if answer in classes}

        votes = [{answer: 1} for answer in data.answers] if data.votes is None else data.votes
        people = [with_class(consensus(of_question)) for of_question in votes]
        # the most frequent answer, of equal ones the first in the alphabet; None where no answer has a class
        self.labels = [
            classes[min(counts, key=lambda answer: (-counts[answer], answer))] if counts else None for counts in people
        ]
        has_scores = likelihood == "scores" and data.votes is not None
        self.targets = [with_class(soft_scores(of_question)) for of_question in votes] if has_scores else people

    def answerable(self) -> Answered:
        """Return the questions with an answer that has a class."""
        indices = [index for index, label in enumerate(self.labels) if label is not None]
        return Answered(
            self.data.pick(indices), self.words, likelihood=self.likelihood, seed=self.seed, fixed=self.fixed
        )

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> QuestionBatch:
        epoch, indices = index
        question = pad_sequence([self.rows[index] for index in indices], batch_first=True)
        photographs = self.data.photographs[list(indices)]
        regions, mask = self.data.regions.features[photographs].float(), self.data.regions.mask[photographs]
        if self.likelihood == "scores":
            answer = torch.zeros(len(indices), len(self.words.answers))
            for row, number in zip(answer, indices, strict=True):
                for text, value in self.targets[number].items():
                    row[self.words.answer_ids[text]] = value
        else:
            answer = torch.tensor([self._draw_class(0 if self.fixed else epoch, index) for index in indices])
        return QuestionBatch(question, question > 0, regions, mask, answer, torch.tensor(indices))

    def _draw_class(self, epoch: int, index: int) -> int:
        votes = self.targets[index]
        if len(votes) < 2:
            return self.labels[index] or 0  # an answer without a class is never trained on
        draw = np.random.default_rng([self.seed, epoch, index]).random() * sum(votes.values())
        number = bisect([*accumulate(votes.values())][:-1], draw)
        return self.words.answer_ids[list(votes)[number]]


def load_questions(config: VQAConfig) -> dict[str, Questions]:
    """Load all parts of a data set by name; the part "absent" of digits asks about digits that are not in the scene.

    Raises:
        FileNotFoundError: Files are missing; the message names them.
        ValueError: A file is damaged; the message names it.
        UserError: The data set does not suit the model.
    """
    where: dict[str, Any]
    views = 3 if config.model == "multi_view" else 1
    if config.dataset == "digits":
        parts = dict(_digits(views=views))
    elif config.dataset == "vqa_v2":
        where = {"cache": config.cache, "progress": config.progress}
        parts = read_vqa_v2(data_folder(config.data_root), blind=config.blind, views=views, **where)
    elif views > 1:
        raise UserError(
            f"model is multi_view, but {config.dataset} has one view; pass --dataset digits or vqa_v2, or "
            f"another --model"
        )
    else:
        where = {"device": resolve_device(config.device), "progress": config.progress}
        with user_errors(ImportError):
            parts = load_photo_questions(config.dataset, config, data_root=config.data_root, **where)
    for part, data in parts.items():
        count = len(data) if part == "train" else config.test_questions or len(data)
        questions = replace(data, regions=blank(data.regions)) if config.blind else data
        parts[part] = questions.pick(range(min(count, len(questions))))
    if config.train_share < 1:
        generator = torch.Generator().manual_seed(config.seed)
        order = torch.randperm(len(parts["train"]), generator=generator).tolist()
        parts["train"] = parts["train"].pick(sorted(order[: max(1, round(config.train_share * len(order)))]))
    return parts


_digits = cache(digit_questions)


def blank(regions: Regions) -> Regions:
    """Return the same number of regions with all features zero."""
    return replace(regions, features=torch.zeros(()).expand_as(regions.features))


class AnswerTraining(ELBOTraining):
    """Training on batches of questions, with Gaussian noise on the regions in units of the features' ``spread``."""

    def __init__(self, *parts: Any, noise: float = 0.0, spread: float = 1.0, **options: Any) -> None:
        super().__init__(*parts, plateau=1, **options)
        self.noise, self.spread = noise, spread

    @property
    def sums_out(self) -> bool:
        """Whether test predictions sum over an alignment of the model."""
        model: AnswerModel = self.objective.model
        return isinstance(model, BottomUp) and isinstance(model.attention.prior, AlignmentPrior)

    def arguments(self, batch: QuestionBatch) -> Sequence[Tensor]:
        regions = batch.regions
        if self.noise and self.training:
            regions = regions + self.noise * self.spread * torch.randn_like(regions)
        return batch.question, batch.question_mask, regions, batch.region_mask, batch.answer

    def observations(self, batch: QuestionBatch) -> int:
        return len(batch.question)

    def outputs(
        self, batch: QuestionBatch, *, num_samples: int = 1, noise: Noise = "none", seed: int | None = None
    ) -> Tensor:
        """Return samples of the logits, or log probabilities, of all answers, ``[S, B, answers]``."""
        inputs = self.arguments(batch)[:4]
        if self.sums_out:
            model: BottomUp = self.objective.model
            with torch.no_grad():
                return model.mixture(*inputs).unsqueeze(0)
        options: dict[str, Any] = {"num_samples": num_samples, "noise": noise, "seed": seed, "keep_samples": True}
        if noise == "attention":  # dropout draws its masks pass by pass
            options["chunk_size"] = num_samples
        samples: Any = predict(self.objective.guide, *inputs, **options).samples
        return samples

    def evaluate(self, batch: QuestionBatch) -> dict[str, Tensor]:
        logits = self.outputs(batch)[0]
        if batch.answer.dim() == 1:
            loss = torch.nn.functional.cross_entropy(logits, batch.answer)
            return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.answer).float().mean()}
        if self.sums_out:  # log probabilities, whose sum over alignments may be rounded to more than 0
            p = logits.exp().clamp(max=1)
            loss = torch.nn.functional.binary_cross_entropy(p, batch.answer, reduction="none").sum(-1)
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.answer, reduction="none").sum(-1)
        return {"loss": loss.mean(), "accuracy": batch.answer.gather(-1, logits.argmax(-1, keepdim=True)).mean()}


@dataclass(frozen=True)
class TrainedAnswers(Trained[VQAConfig, AnswerModel]):
    """A network that answers questions, with its guide, the ids of words and the classes of answers."""

    words: Words
    module: AnswerTraining

    @property
    def is_random(self) -> bool:
        """Whether predictions average over samples of the attention."""
        return not self.module.sums_out and not isinstance(next(iter(self.guide.families)), Soft)

    def answered(self, data: Questions) -> Answered:
        """Return questions with their answers as targets, which change by epoch in the training part alone."""
        config, fixed = self.config, data.name != "train"
        likelihood = config.likelihood if data.votes is not None else "single"
        return Answered(data, self.words, likelihood=likelihood, seed=config.seed, fixed=fixed)


def build(config: VQAConfig, words: Words, data: Questions) -> TrainedAnswers:
    """Build the untrained network with its guide; raise UserError where the model cannot have the scheme."""
    is_alignment = config.guide not in ("soft", "weibull", "lognormal", "gamma")
    if is_alignment and config.model != "bottom_up":
        raise UserError(
            f"guide is {config.guide}, which infers one alignment of a question; {config.model} takes soft, weibull, "
            f"lognormal or gamma, and --model bottom_up takes all"
        )
    if config.guide == "dirichlet":
        raise UserError(
            "guide is dirichlet: its posterior is conditioned on the answer, so it cannot predict, and its prior "
            "cannot be summed out; expected another scheme, such as gumbel"
        )
    scheme = config.build_scheme(plates=1)
    features = data.regions.features.size(-1)
    model = seeded_build(lambda prior: _network(config, words, features, prior), scheme.prior, seed=config.seed)
    network = None
    if isinstance(model, BottomUp) and scheme.amortized:
        network = AnswerNetwork(
            model.region_features, len(words.answers), question=model.encode_question,
            regions=model.encode_regions, hidden=config.hidden,
            embedding=config.answer_embedding or config.hidden,
        )  # fmt: skip
    module = AnswerTraining(
        model, scheme.guide(model, network), scheme.objective(), noise=config.feature_noise,
        spread=data.regions.spread, learning_rate=config.learning_rate,
    )  # fmt: skip
    return TrainedAnswers(config, module.to(resolve_device(config.device)), words)


def _network(config: VQAConfig, words: Words, features: int, prior: PriorFactory) -> AnswerModel:
    sizes: tuple[int, int, int] = len(words), features, len(words.answers)
    width, normalizer = config.hidden, partial(build_normalizer, config.normalizer)
    embedding = config.embedding or width
    likelihood = config.likelihood if config.dataset == "vqa_v2" else "single"
    options: dict[str, Any] = {"dropout": config.dropout, "likelihood": likelihood}
    if config.model == "mcan":
        network = MCANSizes(embedding, width, config.heads, config.layers, 4 * width, 2 * width)
        return MCAN(*sizes, sizes=network, prior=prior, normalizer=normalizer, **options)
    options |= {"embedding": embedding, "hidden": width}
    if config.model == "multi_view":
        options |= {"merge": config.merge, "heads": config.view_heads}
        return MultiView(*sizes, prior=prior, normalizer=normalizer, **options)
    attention_prior = prior(width if config.layers else features, 1)
    return BottomUp(*sizes, context_layers=config.layers, heads=config.heads, prior=attention_prior, **options)
