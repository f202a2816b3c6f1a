"""Options of the scripts on visual question answering."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import PhotoQuestionsName
from experiments.harness.cli import Command
from experiments.harness.options import BatchOptions, Device, Dropout, SweepOptions
from guides.names import NormalizerName, SchemeName, WeightsSchemeName
from guides.options import AlignmentSchemeOptions, UsedBy

__all__ = [
    "COMMANDS",
    "AskConfig",
    "BlockName",
    "CompareQuestions",
    "EncoderName",
    "EvaluateConfig",
    "LikelihoodName",
    "ModelName",
    "NormalizerName",
    "QuestionsName",
    "SearchConfig",
    "StudiesConfig",
    "TableConfig",
    "VQAConfig",
    "VQAOptions",
]

ModelName = Literal["mcan", "bottom_up", "multi_view"]
QuestionsName = Literal["digits", PhotoQuestionsName]
EncoderName = Literal["own", "mobilenet_v2"]
LikelihoodName = Literal["single", "scores"]
BlockName = Literal["bam", "va", "dn"]


@dataclass(frozen=True, kw_only=True)
class VQAOptions(BatchOptions):
    """What a table of answers has in common with its runs.

    Args:
        dataset: The questions; digits are about scenes of handwritten digits and need no file.
        encoder: What makes features of the photographs of easy_vqa and daquar: own is a small network, trained once to
            tell which answers a photograph has and then frozen; mobilenet_v2 is trained on ImageNet.
        encoder_weights: File of weights for mobilenet_v2, TensorFlow's as safetensors under torchvision's names;
            torchvision's own when omitted.
        encoder_epochs: Epochs of the own encoder.
        size: Side in pixels that photographs are brought to; 64 for easy_vqa and 192 for daquar when omitted. own makes
            a region of 16 x 16 pixels, mobilenet_v2 of 32 x 32.
        cache: Folder of pixels and features; "cache" in the data set's folder when omitted.
        skip_bad: Leave out photographs that are missing or damaged, and the questions about them, instead of stopping.
        blind: Blank all regions, so that answers come from the question alone.
        questions: Train on so many questions, the first; all when omitted.
        test_questions: Validate and test on so many questions each, the first; all when omitted.
        answers: Number of answers to choose from, the most frequent ones of the training questions.
        likelihood: single is one answer, drawn in proportion to the votes; scores is a soft score of every answer,
            min(people / 3, 1).
        hidden: Width of question, regions and attention.
        layers: Layers of MCAN over the question and over the regions, where with more than one a region tells of others
            too, and where the answer is read from means little; layers in which the regions of bottom_up see each
            other first.
        heads: Heads of the attention of MCAN.
        dropout: Dropout of attention weights, of what every layer adds, and ahead of the output.
        patience: Epochs without a better validation loss before training stops.
        batch_size: Questions of a batch.
        gradient_clip: Largest norm of the gradient of the loss per question.
        max_epochs: Epochs at most.
    """

    dataset: QuestionsName = "digits"
    encoder: EncoderName = "own"
    encoder_weights: Path | None = None
    encoder_epochs: PositiveInt = 15
    size: PositiveInt | None = None
    cache: Path | None = None
    skip_bad: bool = False
    blind: bool = False
    questions: PositiveInt | None = None
    test_questions: PositiveInt | None = None
    answers: PositiveInt = 3000
    likelihood: LikelihoodName = "single"
    hidden: PositiveInt = 64
    layers: NonNegativeInt = 1
    heads: PositiveInt = 4
    dropout: Dropout = 0.1
    patience: PositiveInt = 5
    batch_size: PositiveInt = 128
    gradient_clip: PositiveFloat = 5.0
    learning_rate: PositiveFloat = 1e-3
    max_epochs: PositiveInt = 10

    USED_BY: ClassVar[UsedBy] = {
        "encoder": {"dataset": ("easy_vqa", "daquar")},
        "encoder_weights": {"dataset": ("easy_vqa", "daquar"), "encoder": ("mobilenet_v2",)},
        "encoder_epochs": {"dataset": ("easy_vqa", "daquar"), "encoder": ("own",)},
        "size": {"dataset": ("easy_vqa", "daquar")},
    }


@dataclass(frozen=True, kw_only=True)
class VQAConfig(VQAOptions, AlignmentSchemeOptions):
    """Train a model that answers questions about photographs, and evaluate it on the test questions.

    Args:
        model: mcan is modular co-attention, all of whose attention is latent; bottom_up has one latent alignment from
            question to region; multi_view brings several sets of regions together.
        guide: Inference scheme; mcan and multi_view take soft, weibull, lognormal and gamma, bottom_up all but
            dirichlet.
        prior: fixed, or contextual (read off the keys); for weibull, lognormal and gamma.
        normalizer: What makes weights of positive numbers, in mcan and multi_view.
        kl_weight: Weight of the KL, which is summed over all attention weights of a question.
        feature_noise: Standard deviation of Gaussian noise on the regions in training, in units of the features' own.
        test_noise: The same at test time; every one makes test scores of its own.
        train_share: Share of the training questions to train on, drawn by the seed.
        seed: Seed of the initial weights, the order of the batches and all noise.
    """

    model: ModelName = "mcan"
    guide: SchemeName = "weibull"
    normalizer: NormalizerName = "softmax"
    kl_weight: NonNegativeFloat = 1e-5
    feature_noise: NonNegativeFloat = 0.0
    test_noise: tuple[NonNegativeFloat, ...] = (0.0, 0.5)
    train_share: ClosedUnitInterval = 1.0

    USED_BY: ClassVar[UsedBy] = {"normalizer": {"model": ("mcan", "multi_view")}}


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluate the network of a finished run on its test questions again, with options of one's own.

    Args:
        run: Folder of the run.
        num_samples: Posterior samples; those of the training when omitted.
        test_noise: Standard deviations of the noise on the regions; those of the training when omitted.
        device: Where to compute.
    """

    run: Path
    num_samples: PositiveInt | None = None
    test_noise: tuple[NonNegativeFloat, ...] | None = None
    device: Device = "auto"


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
        answers: Number of answers shown, the most probable ones.
        out: The picture; asked.png among the figures of the run when omitted.
        device: Where to compute.
    """

    run: Path
    question: str
    place: NonNegativeInt = 0
    photo: Path | None = None
    num_samples: PositiveInt = 200
    answers: PositiveInt = 5
    out: Path | None = None
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class TableConfig(VQAOptions, SweepOptions):
    """Train the rows of the papers' tables, and write the table and which of their claims hold.

    Args:
        blocks: bam compares posteriors of the attention of MCAN on clean and noisy regions, va the inference of one
            alignment, dn normalisers of the attention between several views of digit scenes.
        rows: Rows of these blocks; all when omitted. Those that others are compared with have to be among them.
        max_epochs: Epochs of every training at most.
        seeds: Trainings of every row.
        seed: The first seed.
        num_samples: Posterior samples, and dropout masks, of test scores.
    """

    blocks: tuple[BlockName, ...] = ("bam", "va", "dn")
    rows: tuple[str, ...] | None = None
    max_epochs: PositiveInt = 8
    seeds: PositiveInt = 3


@dataclass(frozen=True, kw_only=True)
class SearchConfig(VQAOptions, SweepOptions):
    """Try KL weights and amounts of noise for MCAN with random attention, and compare them on validation alone.

    Args:
        seeds: Trainings of every setting.
        seed: The first seed; those of the table begin with 0.
        num_samples: Posterior samples, and dropout masks, of test scores, which are not shown.
    """

    seeds: PositiveInt = 1
    seed: NonNegativeInt = 100
    num_samples: PositiveInt = 2


@dataclass(frozen=True, kw_only=True)
class StudiesConfig(VQAOptions, SweepOptions):
    """Train MCAN on fewer questions, and see whether uncertainty tells wrong answers from right ones.

    Args:
        shares: Shares of the training questions, 1 among them, which uncertainty is studied with.
        max_epochs: Epochs of every training at most.
        seeds: Trainings of every row; together they are the deep ensemble.
        seed: The first seed.
        num_samples: Posterior samples, and dropout masks, of test scores.
    """

    shares: tuple[ClosedUnitInterval, ...] = (0.05, 0.1, 0.25, 1.0)
    max_epochs: PositiveInt = 8
    seeds: PositiveInt = 3


@dataclass(frozen=True, kw_only=True)
class CompareQuestions(VQAOptions, SweepOptions):
    """Compare posteriors of the attention of a network that answers questions about photographs.

    Args:
        task: The task; the others have other options.
        schemes: The posteriors: soft, weibull, lognormal, gamma.
        seeds: Trainings of every posterior.
        seed: The first seed.
        kl_weight: Weight of the KL, which is summed over all attention weights of a question.
        pictures: Test questions that are drawn.
    """

    task: Literal["vqa"] = "vqa"
    schemes: tuple[WeightsSchemeName, ...] = ("soft", "weibull", "lognormal")
    questions: PositiveInt | None = 8000
    max_epochs: PositiveInt = 10
    num_samples: PositiveInt = 5
    seeds: PositiveInt = 2
    kl_weight: NonNegativeFloat = 1e-5
    pictures: NonNegativeInt = 2


COMMANDS = {
    "train": Command(VQAConfig, "experiments.vqa.train:run_and_show"),
    "evaluate": Command(EvaluateConfig, "experiments.vqa.ask:evaluate_run"),
    "ask": Command(AskConfig, "experiments.vqa.ask:ask"),
    "table": Command(TableConfig, "experiments.vqa.table:run"),
    "search": Command(SearchConfig, "experiments.vqa.search:run"),
    "studies": Command(StudiesConfig, "experiments.vqa.studies:run"),
}
