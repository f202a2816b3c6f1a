"""Options of the scripts on visual question answering."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.dataset_names import PhotoQuestionsName
from experiments.data.images.region_options import RegionOptions
from experiments.options import BatchOptions, Device, Dropout, StudyOptions
from guides.names import NormalizerName, SchemeName
from guides.options import AMORTIZED, AlignmentSchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class VQAConfig(BatchOptions, AlignmentSchemeOptions, RegionOptions):
    """Train a model that answers questions about photographs, and evaluate it on the test questions.

    Args:
        dataset: Set of questions. digits are about scenes of handwritten digits and need no file. vqa_v2 has the
            answers of ten people; the scores of all its test questions, answers and samples are in memory at once, so
            pass --test-questions 10000 too.
        blind: Blank all regions, so that answers come from the question alone.
        test_questions: Number of questions to validate on, and number to test on, from the beginning of each part; all
            when omitted.
        train_share: Share of the training questions to train on, drawn by the seed.
        answers: Number of answers to choose from, the most frequent ones of the training questions.
        model: Network. mcan is modular co-attention, all of whose attention is latent; bottom_up has one latent
            alignment from question to region; multi_view brings several sets of regions together.
        guide: Inference scheme. mcan and multi_view take soft, weibull, lognormal and gamma; bottom_up takes all but
            dirichlet.
        normalizer: Function that turns positive numbers into weights, in mcan and multi_view.
        merge: How multi_view brings the views together: by attention of the regions of the first view to those of the
            others, by concatenation of the regions of all views, or by the first view alone. Without attention between
            views that of the question to the regions is latent.
        view_heads: Number of heads of the attention of multi_view to another view; divides hidden.
        likelihood: Training target where ten people answered. single draws one answer anew in every epoch, in
            proportion to the votes; scores gives every answer a soft score, min(people / 3, 1).
        hidden: Width of question, regions and attention.
        embedding: Width of a word vector; that of hidden when omitted.
        answer_embedding: Width of an answer's vector in the inference network of bottom_up; that of hidden when
            omitted.
        layers: Number of layers of MCAN over the question and over the regions; in bottom_up, number of layers in which
            the regions attend to each other first.
        heads: Number of heads of MCAN's attention, and of the layers of bottom_up in which regions attend to each
            other.
        dropout: Dropout probability of attention weights, of the output of every layer, and ahead of the answers.
        kl_weight: Weight of the KL, which is summed over all attention weights of a question.
        feature_noise: Standard deviation of Gaussian noise on the regions in training, in units of the standard
            deviation of the features.
        test_noise: Standard deviations of the noise at test time, in the same unit; the metrics are computed for each.
        patience: Number of epochs without a better validation loss before training stops.
        batch_size: Number of questions of a batch.
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
    merge: Literal["attention", "concatenation", "first"] = "attention"
    view_heads: PositiveInt = 1
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
        "normalizer": {"model": ("mcan", "multi_view"), "merge": ("attention",)},
        "merge": {"model": ("multi_view",)},
        "view_heads": {"model": ("multi_view",), "merge": ("attention",)},
        "likelihood": {"dataset": ("vqa_v2",)},
        "answer_embedding": {"model": ("bottom_up",), "guide": AMORTIZED},
        "heads": {"model": ("mcan", "bottom_up")},
        "layers": {"model": ("mcan", "bottom_up")},
    }
    PAPER_SIZES: ClassVar[Sequence[str]] = ("mcan", "bottom_up", "multi_view")

    @property
    def views_attend(self) -> bool:
        """Whether the regions of the first view attend to those of the others."""
        return self.model == "multi_view" and self.merge == "attention"


@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """Ask the network of a finished run one question, and draw its attention to the regions.

    Args:
        run: Folder of the run.
        question: Text of the question.
        image: Number of the test image (photograph or scene) that the question is about, counted from 0.
        photo: File of your own photograph, which takes the place of a test image after a training on easy_vqa or
            daquar; the encoder of the run computes its regions.
        num_samples: Number of posterior samples of random attention.
        out: File of the picture; asked.png among the figures of the run when omitted.
        overwrite: Replace a file --out that exists.
        device: Device to compute on.
    """

    run: Path
    question: str
    image: NonNegativeInt = 0
    photo: Path | None = None
    num_samples: PositiveInt = 200
    out: Path | None = None
    overwrite: bool = False
    device: Device = "auto"


COMMANDS = {
    "train": Command(VQAConfig, "experiments.vqa.task:train"),
    "ask": Command(AskConfig, "experiments.vqa.task:ask"),
    "table": Command(StudyOptions, "experiments.vqa.studies:table", training=VQAConfig),
    "search": Command(StudyOptions, "experiments.vqa.studies:search", training=VQAConfig),
}
