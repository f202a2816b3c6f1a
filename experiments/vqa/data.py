"""Questions as batches of ids, regions and answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.questions.data import Questions, Regions
from experiments.datasets.questions.digit_questions import digit_questions
from experiments.datasets.questions.load import PhotographOptions, load_photo_questions, regions_of
from experiments.datasets.text.masked_text import EpochSampler
from experiments.files import UserError, read_json, user_errors, write_atomic
from experiments.harness.ranks import is_first
from experiments.harness.training import resolve_device
from experiments.vqa.accuracy import consensus, most_frequent, soft_scores
from experiments.vqa.config import LikelihoodName, VQAConfig

__all__ = ["Answered", "QuestionBatch", "Words", "load_questions", "load_words", "own_photograph"]

_UNKNOWN = 1  # 0 is the padding


class QuestionBatch(NamedTuple):
    """Arguments of an :class:`AnswerModel`, and the place of every question."""

    question: Tensor
    question_mask: Tensor
    regions: Tensor
    region_mask: Tensor
    answer: Tensor
    places: Tensor


class Words:
    """The words of the training questions and their most frequent answers.

    Args:
        words: Words, from id 2 on; 0 is the padding and 1 an unknown word.
        answers: Answers, by class.
    """

    def __init__(self, words: Sequence[str], answers: Sequence[str]) -> None:
        self.words, self.answers = list(words), list(answers)
        self.word_ids = {word: place for place, word in enumerate(self.words, start=_UNKNOWN + 1)}
        self.answer_ids = {answer: place for place, answer in enumerate(self.answers)}

    @classmethod
    def of(cls, data: Questions, *, answers: int) -> Words:
        """Those of training questions; of answers that are as frequent, the first in the alphabet."""
        counts: Counter[str] = Counter()
        for votes in data.answers:
            counts.update(consensus(votes))
        words = {word for question in data.questions for word in question}
        return cls(sorted(words), most_frequent(counts, answers))

    def __len__(self) -> int:
        return len(self.words) + _UNKNOWN + 1

    def ids(self, question: Sequence[str]) -> list[int]:
        """Ids of a question's words."""
        return [self.word_ids.get(word, _UNKNOWN) for word in question]


def load_words(folder: Path, data: Questions | None = None, *, answers: int = 1) -> Words:
    """The words in the folder of a run; those of training questions when there are none, which are then put there.

    Raises:
        UserError: vocabulary.json is missing or damaged.
    """
    path = folder / "vocabulary.json"
    if data is not None and not path.is_file():
        made = Words.of(data, answers=answers)
        content = json.dumps({"words": made.words, "answers": made.answers}, ensure_ascii=False, indent=0)
        if is_first():
            write_atomic(path, lambda file: file.write(content.encode()))
        return made
    remedy = "put an intact copy there, or train again"
    found = read_json(path, remedy)
    lists = [found.get(name) if isinstance(found, dict) else None for name in ("words", "answers")]
    for entries in lists:
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
            raise UserError(f"{path} does not hold lists of words and of answers; {remedy}")
    return Words(*lists)  # type: ignore[arg-type]


class Answered(Dataset[QuestionBatch]):
    """Questions with their answers as targets; indexed by an epoch and a list of places.

    Of several answers one is drawn, in proportion to the votes; which one depends on seed, epoch and place alone.

    Args:
        data: The questions.
        words: Ids of words and classes of answers.
        likelihood: "single" or "scores".
        seed: Seed of the choice.
    """

    def __init__(self, data: Questions, words: Words, likelihood: LikelihoodName, *, seed: int = 0) -> None:
        self.data, self.words, self.likelihood, self.seed = data, words, likelihood, seed
        self.rows = [torch.tensor(words.ids(question)) for question in data.questions]
        self.known = [self._known(votes) for votes in data.answers]

    def _known(self, votes: Mapping[str, int]) -> dict[int, float]:
        """Votes, or soft scores, of the answers that have a class."""
        found = consensus(votes) if self.likelihood == "single" else soft_scores(votes)
        return {
            self.words.answer_ids[answer]: float(count)
            for answer, count in found.items()
            if answer in self.words.answer_ids
        }

    def answerable(self) -> Answered:
        """The questions with an answer that has a class."""
        kept = [place for place, votes in enumerate(self.known) if votes]
        return Answered(self.data.pick(kept), self.words, self.likelihood, seed=self.seed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> QuestionBatch:
        epoch, places = index
        question = torch.nn.utils.rnn.pad_sequence([self.rows[place] for place in places], batch_first=True)
        photographs = self.data.photographs[list(places)]
        regions, mask = self.data.regions.features[photographs].float(), self.data.regions.mask[photographs]
        answer = self._scores(places) if self.likelihood == "scores" else self._drawn(epoch, places)
        return QuestionBatch(question, question > 0, regions, mask, answer, torch.tensor(places))

    def loader(self, **options: Any) -> DataLoader[QuestionBatch]:
        """Batches of questions of similar length; options as of :class:`EpochSampler`."""
        return DataLoader(self, sampler=EpochSampler(self.rows, **options), batch_size=None)

    def batches(self, device: torch.device, size: int = 256) -> Iterator[QuestionBatch]:
        """All questions, on a device."""
        for batch in self.loader(sentences=size, shuffle=False):
            yield QuestionBatch(*(tensor.to(device) for tensor in batch))

    def _scores(self, places: Sequence[int]) -> Tensor:
        scores = torch.zeros(len(places), len(self.words.answers))
        for row, place in enumerate(places):
            for answer, score in self.known[place].items():
                scores[row, answer] = score
        return scores

    def _drawn(self, epoch: int, places: Sequence[int]) -> Tensor:
        answers = []
        for place in places:
            votes = self.known[place] or {0: 1.0}  # an answer without a class is never trained on
            draw = torch.rand((), generator=torch.Generator().manual_seed(hash((self.seed, epoch, place)) % 2**63))
            chosen, left = 0, draw.item() * sum(votes.values())
            for answer, count in votes.items():
                chosen, left = answer, left - count
                if left < 0:
                    break
            answers.append(chosen)
        return torch.tensor(answers)


def load_questions(config: VQAConfig, *, train_encoder: bool = True) -> dict[str, Questions]:
    """All parts of a data set; "absent" has questions about what is not there, where a data set has any.

    Without ``train_encoder``, the own encoder of photographs has to be in the cache.

    Raises:
        UserError: A model that the data set does not fit, or no torchvision for the encoder that needs it.
        FileNotFoundError: Files of the data set, or weights of the encoder, are missing.
        ValueError: Bad data.
    """
    if config.dataset == "digits":
        found = dict(_digits(3 if config.model == "multi_view" else 1))
    else:
        found = _about_photographs(config, train_encoder)
    if config.blind:
        found = {part: replace(data, regions=_blank(data.regions)) for part, data in found.items()}
    for part, data in found.items():
        most = config.questions if part == "train" else config.test_questions
        if most is not None:
            found[part] = data.pick(range(min(most, len(data))))
    if config.train_share < 1:
        generator = torch.Generator().manual_seed(config.seed)
        order = torch.randperm(len(found["train"]), generator=generator).tolist()
        kept = sorted(order[: max(1, round(config.train_share * len(order)))])
        found["train"] = found["train"].pick(kept)
    return found


@cache
def _digits(views: int) -> dict[str, Questions]:
    return digit_questions(views=views)


def own_photograph(image: Image.Image, config: VQAConfig, like: Regions) -> Regions:
    """Regions of a photograph of one's own, made as those of the run's photographs; blank where the run is blind.

    Raises:
        ValueError: As of :func:`regions_of`.
    """
    regions = regions_of(image, like, device=resolve_device(config.device))
    return _blank(regions) if config.blind else regions


def _about_photographs(config: VQAConfig, train_encoder: bool) -> dict[str, Questions]:
    if config.model == "multi_view":
        raise UserError(f"model is multi_view, but {config.dataset} has one view; take digits or another model")
    options = PhotographOptions(
        encoder=config.encoder, weights=config.encoder_weights, size=config.size, epochs=config.encoder_epochs,
        train=train_encoder, cache=config.cache, skip=config.skip_bad, device=resolve_device(config.device),
        progress=config.progress,
    )  # fmt: skip
    with user_errors(ImportError):
        return load_photo_questions(config.dataset, options, data_root=config.data_root)


def _blank(regions: Regions) -> Regions:
    """As many regions of blank photographs."""
    return replace(regions, features=torch.zeros(()).expand_as(regions.features))
