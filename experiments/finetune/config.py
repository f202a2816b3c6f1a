"""Options of the scripts on fine-tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.names import GlueName
from experiments.options import BatchOptions, Device, HalfOpenUnitInterval, OptionError, StudyOptions
from guides.options import WEIGHTS, SchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class FineTuneOptions(BatchOptions, SchemeOptions):
    """How to fine-tune a pretrained transformer, all of it, with its own rates of dropout.

    By the ELBO all attention is random; by the evidence that of the last layer alone is, where the copies of a batch,
    one a draw, part: many layers would need far more draws, and each draw the whole network.

    Args:
        model: Folder of the pretrained model and its tokenizer, or its name on the hub; it has to be given.
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        kl_weight: Weight of the KL of one attention weight: it multiplies the KL of an example, divided by the mean
            number of attention weights of the training examples.
        kl_warmup: Share of the steps in which that weight rises.
        kl_schedule: How it rises, in a line from 0 or along a sigmoid from .7 %; constant does without.
        kl_steps: Steps in which it rises; by their share, kl_warmup, when omitted.
        learning_rate: Largest learning rate of AdamW; it rises for a tenth of the steps and then falls, linearly;
            2e-5 to 5e-5 is usual for BERT and larger models.
        prior_learning_rate: The same of prior networks, which begin untrained.
        length: Tokens of an example at most.
        gradient_clip: Largest norm of the gradient of the loss per example.
        num_samples: Posterior samples of random attention, or of dropout masks, for scores and predictions.
        precision: Arithmetic of training and evaluation.
        keep_weights: Keep the weights, for predictions; scores and predictions are always kept.
        seed: Seed of the output layer, the order of the batches, the choice of examples, and all noise.
    """

    model: str = ""
    guide: Literal["soft", "weibull", "lognormal"] = "soft"
    kl_weight: NonNegativeFloat = 0.01
    kl_warmup: ClosedUnitInterval = 0.2
    kl_schedule: Literal["constant", "linear", "sigmoid"] = "linear"
    kl_steps: PositiveInt | None = None
    learning_rate: PositiveFloat = 1e-4
    prior_learning_rate: PositiveFloat = 1e-3
    length: PositiveInt = 128
    keep_weights: bool = True

    planned = True  # the learning rate is, over all epochs
    USED_BY: ClassVar[UsedBy] = {
        "kl_warmup": {"guide": WEIGHTS, "objective": ("elbo",)},
        "prior_learning_rate": {"guide": WEIGHTS},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise OptionError("model is missing, expected --model FOLDER, of a pretrained model of Hugging Face")

    @property
    def model_name(self) -> str:
        """The model without the folders that it lies in."""
        return Path(self.model).name


@dataclass(frozen=True, kw_only=True)
class GlueConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer of Hugging Face on a task of GLUE.

    Args:
        task: The task, read from glue/ below the data root.
        max_epochs: Number of epochs; the last one is kept.
        train_share: Share of the training part to train on; the same examples for a seed, whatever the other options.
        label_noise: Share of the training labels to replace by another one at random.
        pooling: What an example is read from: head is the output layer of the model's own class, and pair the means u
            and v of the two sentences, as (u, v, |u - v|).
        out_of_domain: Tasks whose test sentences uncertainty is to tell from those of this one; not for stsb.
        seed: Seed of the output layer, the order of the batches, the choice of examples and labels, and all noise.
    """

    task: GlueName
    max_epochs: PositiveInt = 4
    pooling: Literal["head", "pair"] = "head"
    train_share: ClosedUnitInterval = 1.0
    label_noise: HalfOpenUnitInterval = 0.0
    out_of_domain: tuple[GlueName, ...] = ()

    PAPER_SIZES: ClassVar[Sequence[str]] = get_args(GlueName)


@dataclass(frozen=True, kw_only=True)
class QaConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer to answer questions by spans of a paragraph, as in SQuAD 1.1 and 2.0.

    The test part is the development file; validation, which chooses the threshold of giving no answer, has whole
    articles of its own. Where 2.0 has no training file with unanswerable questions, the articles of the development
    file are divided: 3/8 are trained on, 1/8 are for validation, and the others are the test part.

    Args:
        version: Of SQuAD: in 1.1 all questions have an answer in their paragraph, and others are left out; in 2.0 some
            have none.
        length: Tokens of a window at most: of the question, a quarter of this and 64 at most, and of the context.
        stride: Tokens that a window of the context shares with the one before it.
        max_answer: Tokens of an answer at most.
        batch_size: Windows of a batch.
        train_share: Share of the training questions to train on; the same ones for a seed, whatever the other options.
        train_file: File of one's own to train on; train-v1.1 or train-v2.0 in squad/ below the data root when omitted.
        test_file: File of one's own to test on; dev-v1.1 or dev-v2.0 there when omitted.
    """

    version: Literal["1.1", "2.0"] = "1.1"
    max_epochs: PositiveInt = 3
    length: PositiveInt = 256
    stride: PositiveInt = 128
    max_answer: PositiveInt = 30
    train_share: ClosedUnitInterval = 1.0
    train_file: Path | None = None
    test_file: Path | None = None

    PAPER_SIZES: ClassVar[Sequence[str]] = ("squad_1", "squad_2")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 20 or 2 * self.stride > self.length:
            raise OptionError(
                f"length is {self.length} and stride {self.stride}, expected a length of 20 at least and a stride of "
                f"half of it at most; pass --length 256 --stride 128"
            )


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Classify sentences, or answer questions, of a file: probabilities and uncertainty.

    Args:
        run: Folder of a fine-tuned model, of glue or of qa.
        file: A text file, UTF-8: a sentence a line, or two with a tab between them, as the task has; for qa a context
            and a question with a tab between them, or a JSON file in the format of SQuAD.
        out: Where to write, a line an example; FILE.tsv when omitted, with tabs between columns, and for qa FILE.jsonl.
        overwrite: Replace that file if it is there already.
        num_samples: Posterior samples of the attention; of soft attention, dropout masks.
        device: Where to compute.
    """

    run: Path
    file: Path
    out: Path | None = None
    overwrite: bool = False
    num_samples: PositiveInt = 50
    device: Device = "auto"


COMMANDS = {
    "glue": Command(GlueConfig, "experiments.finetune.glue:train"),
    "qa": Command(QaConfig, "experiments.finetune.questions:train"),
    "predict": Command(PredictConfig, "experiments.finetune.predict:predict_file"),
    "table": Command(StudyOptions, "experiments.finetune.studies:table", training=GlueConfig),
    "search": Command(StudyOptions, "experiments.finetune.studies:search", training=GlueConfig),
    "qa-table": Command(StudyOptions, "experiments.finetune.studies:qa_table", training=QaConfig),
}
