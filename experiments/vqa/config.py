"""Options of the scripts on visual question answering."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import PhotoQuestionsName
from experiments.harness.cli import Command
from experiments.harness.options import BatchOptions, Dropout
from guides.names import SchemeName
from guides.options import AlignmentSchemeOptions

__all__ = [
    "COMMANDS",
    "EncoderName",
    "LikelihoodName",
    "ModelName",
    "NormalizerName",
    "QuestionsName",
    "VQAConfig",
    "VQAOptions",
]

ModelName = Literal["mcan", "bottom_up", "multi_view"]
QuestionsName = Literal["digits", PhotoQuestionsName]
EncoderName = Literal["own", "mobilenet_v2"]
NormalizerName = Literal["softmax", "doubly_normalized", "hybrid"]
LikelihoodName = Literal["single", "scores"]


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
        questions: Use so many questions of every part, the first; all when omitted.
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
    answers: PositiveInt = 3000
    likelihood: LikelihoodName = "single"
    hidden: PositiveInt = 96
    layers: NonNegativeInt = 1
    heads: PositiveInt = 4
    dropout: Dropout = 0.1
    patience: PositiveInt = 5
    batch_size: PositiveInt = 128
    gradient_clip: PositiveFloat = 5.0
    learning_rate: PositiveFloat = 1e-3
    max_epochs: PositiveInt = 30


@dataclass(frozen=True, kw_only=True)
class VQAConfig(VQAOptions, AlignmentSchemeOptions):
    """Train a model that answers questions about photographs, and evaluate it on the test questions.

    Args:
        model: mcan is modular co-attention, all of whose attention is latent; bottom_up has one latent alignment from
            question to region; multi_view brings several sets of regions together.
        guide: Inference scheme; mcan and multi_view take soft, weibull, lognormal and gamma.
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
    kl_weight: NonNegativeFloat = 1e-3
    feature_noise: NonNegativeFloat = 0.0
    test_noise: tuple[NonNegativeFloat, ...] = (0.0, 0.5, 1.0)
    train_share: ClosedUnitInterval = 1.0


COMMANDS = {"train": Command(VQAConfig, "experiments.vqa.train:run_and_show")}
