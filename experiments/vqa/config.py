"""Options of the scripts on visual question answering."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.names import PhotoQuestionsName, RegionOptions
from experiments.options import BatchOptions, Device, Dropout, StudyOptions
from guides.names import NormalizerName, SchemeName
from guides.options import AlignmentSchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class VQAConfig(BatchOptions, AlignmentSchemeOptions, RegionOptions):
    """Train a model that answers questions about photographs, and evaluate it on the test questions.

    Args:
        dataset: The questions; digits are about scenes of handwritten digits and need no file. vqa_v2 has the answers
            of ten people; scores of all its test questions, answers and samples are in memory at once, so that
            --test-questions 10000 is wise.
        blind: Blank all regions, so that answers come from the question alone.
        test_questions: Validate and test on so many questions each, the first; all when omitted.
        train_share: Share of the training questions to train on, drawn by the seed.
        answers: Number of answers to choose from, the most frequent ones of the training questions.
        model: mcan is modular co-attention, all of whose attention is latent; bottom_up has one latent alignment from
            question to region; multi_view brings several sets of regions together.
        guide: Inference scheme; mcan and multi_view take soft, weibull, lognormal and gamma, bottom_up all but
            dirichlet.
        normalizer: What makes weights of positive numbers, in mcan and multi_view.
        likelihood: Of the answers of ten people: single takes one of them, in every epoch another, drawn in proportion
            to the votes; scores takes a soft score of every answer, min(people / 3, 1).
        hidden: Width of question, regions and attention.
        embedding: Width of a word vector; that of hidden when omitted.
        answer_embedding: Width of an answer's vector in the inference network of bottom_up; that of hidden when
            omitted.
        layers: Layers of MCAN over the question and over the regions; layers in which the regions of bottom_up see each
            other first.
        heads: Heads of the attention of MCAN.
        dropout: Dropout of attention weights, of what every layer adds, and ahead of the output.
        kl_weight: Weight of the KL, which is summed over all attention weights of a question.
        feature_noise: Standard deviation of Gaussian noise on the regions in training, in units of the features' own.
        test_noise: The same at test time; every one makes test scores of its own.
        patience: Epochs without a better validation loss before training stops.
        batch_size: Questions of a batch.
        gradient_clip: Largest norm of the gradient of the loss per question.
    """

    dataset: Literal["digits", PhotoQuestionsName, "vqa_v2"] = "digits"
    blind: bool = False
    test_questions: PositiveInt | None = None
    train_share: ClosedUnitInterval = 1.0
    answers: PositiveInt = 3000
    model: Literal["mcan", "bottom_up", "multi_view"] = "mcan"
    guide: SchemeName = "weibull"
    normalizer: NormalizerName = "softmax"
    likelihood: Literal["single", "scores"] = "single"
    hidden: PositiveInt = 64
    embedding: PositiveInt | None = None
    answer_embedding: PositiveInt | None = None
    layers: NonNegativeInt = 1
    heads: PositiveInt = 4
    dropout: Dropout = 0.1
    kl_weight: NonNegativeFloat = 1e-5
    feature_noise: NonNegativeFloat = 0.0
    test_noise: tuple[NonNegativeFloat, ...] = (0.0, 0.5)
    patience: PositiveInt = 5
    batch_size: PositiveInt = 128
    gradient_clip: PositiveFloat = 5.0
    max_epochs: PositiveInt = 10

    USED_BY: ClassVar[UsedBy] = {
        "normalizer": {"model": ("mcan", "multi_view")},
        "likelihood": {"dataset": ("vqa_v2",)},
        "answer_embedding": {"model": ("bottom_up",)},
    }
    PAPER_SIZES: ClassVar[Sequence[str]] = ("mcan", "bottom_up", "multi_view")


@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """Ask the network of a finished run one question, and draw where it looks.

    Args:
        run: Folder of the run.
        question: The question, as one text.
        place: Photograph or scene of the test part that the question is about, counted from 0.
        photo: A photograph of one's own that the question is about instead, after a training on easy_vqa or daquar,
            whose encoder makes its regions.
        num_samples: Posterior samples of random attention.
        out: The picture; asked.png among the figures of the run when omitted.
        device: Where to compute.
    """

    run: Path
    question: str
    place: NonNegativeInt = 0
    photo: Path | None = None
    num_samples: PositiveInt = 200
    out: Path | None = None
    device: Device = "auto"


COMMANDS = {
    "train": Command(VQAConfig, "experiments.vqa.task:train"),
    "ask": Command(AskConfig, "experiments.vqa.task:ask"),
    "table": Command(StudyOptions, "experiments.vqa.studies:table", training=VQAConfig),
    "search": Command(StudyOptions, "experiments.vqa.studies:search", training=VQAConfig),
}
