"""Options of the scripts on fine-tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.dataset_names import GlueName, RaceLevel
from experiments.files import UserError
from experiments.options import BatchOptions, Device, HalfOpenUnitInterval, OptionError, StudyOptions
from guides.options import WEIGHTS, SchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class FineTuneOptions(BatchOptions, SchemeOptions):
    """Options of fine-tuning a whole pretrained transformer, with the dropout of its configuration.

    With the ELBO all attention is random. With the evidence the attention of the last layer alone is random, and every
    draw has a copy of the batch there. More random layers would need far more draws, and every draw the whole network.

    Args:
        model: Folder of the pretrained model and its tokenizer, its name on the hub, or the folder of a finished
            training of experiments.pretrain. Required.
        normalizer: Normalizer of the pretraining to start from, where the model is the folder of a table of
            experiments.pretrain: its training with soft attention and the same seed, or the only one there is.
        guide: Posterior family of the attention; soft is ordinary deterministic attention.
        kl_weight: Weight of the KL of one attention weight. It multiplies the KL of an example, divided by the mean
            number of attention weights of the training examples.
        kl_warmup: Share of the training steps in which the KL weight rises.
        kl_schedule: Shape of the rise: a line from 0, a sigmoid from .7 % of the weight, or constant for no rise.
        kl_steps: Number of training steps in which the KL weight rises; the share kl_warmup of all steps when omitted.
        learning_rate: Largest learning rate of AdamW. It rises linearly for a tenth of the steps and then falls
            linearly; 2e-5 to 5e-5 is usual for BERT and larger models. Prior networks, which begin untrained, have
            0.001.
        length: Largest number of tokens of an example.
        gradient_clip: Largest norm of the gradient of the loss per example.
        num_samples: Number of posterior samples of random attention, or of dropout masks, for scores and predictions.
        precision: Arithmetic of training and evaluation.
        keep_weights: Keep the weights, which later predictions need; scores and predictions are always kept.
        seed: Seed of the output layer, the order of the batches, the choice of examples, and all noise.
    """

    model: str = ""
    normalizer: Literal["softmax", "doubly_normalized", "hybrid"] | None = None
    guide: Literal["soft", "weibull", "lognormal"] = "soft"
    kl_weight: NonNegativeFloat = 0.01
    kl_warmup: ClosedUnitInterval = 0.2
    kl_schedule: Literal["constant", "linear", "sigmoid"] = "linear"
    kl_steps: PositiveInt | None = None
    learning_rate: PositiveFloat = 1e-4
    length: PositiveInt = 128
    keep_weights: bool = True

    planned = True  # the schedule of the learning rate covers all epochs
    USED_BY: ClassVar[UsedBy] = {
        "kl_warmup": {"guide": WEIGHTS, "objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise OptionError(
                "model is missing; expected --model FOLDER, the folder of a pretrained model of Hugging Face"
            )

    @property
    def pretrained(self) -> str:
        """Folder or name of the pretrained model.

        Raises:
            UserError: The table of pretraining has no training of the ``normalizer`` and the seed.
        """
        if self.normalizer is None:
            return self.model
        trainings = sorted(Path(self.model, "runs").glob(f"{self.normalizer}-soft-*"))
        fitting = [path for path in trainings if path.name.endswith(f"-{self.seed}") or len(trainings) == 1]
        if not fitting:
            names = ", ".join(path.name for path in trainings) or "none"
            raise UserError(
                f"normalizer is {self.normalizer}, and the trainings of it with soft attention in "
                f"{Path(self.model, 'runs')} are: {names}; expected the folder of a table of experiments.pretrain with "
                f"seed {self.seed}. Make it with as many seeds, or leave --normalizer out and pass the folder of a "
                f"training"
            )
        return str(fitting[0])

    @property
    def model_name(self) -> str:
        """Name of the model, without the folders of its path."""
        return Path(self.model).name


@dataclass(frozen=True, kw_only=True)
class GlueConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer of Hugging Face on a task of GLUE.

    Args:
        task: Name of the task, whose files are in glue/ below the data root.
        max_epochs: Number of epochs; the network is that of the last one.
        train_share: Share of the training examples to train on; the seed alone decides which.
        label_noise: Share of the training labels to replace by another random label.
        pooling: Input of the classification. head is the output layer of the model's class; pair is (u, v, |u - v|) of
            the means u and v of the two sentences.
        out_of_domain: Tasks whose test sentences are compared with those of this task by their uncertainty; not for
            stsb.
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

    The test part is the development file. The validation part has whole articles that no other part has; it chooses the
    threshold of giving no answer. Where 2.0 has no training file with unanswerable questions, the articles of the
    development file are divided: 3/8 are for training, 1/8 for validation, and the rest for the test.

    Args:
        version: Version of SQuAD. In 1.1 all questions have an answer in their paragraph (questions without one are
            left out); in 2.0 some have none.
        length: Largest number of tokens of a window, which holds the question (a quarter of this and 64 tokens at
            most) and a part of the context.
        stride: Number of tokens that two neighboring windows of a context share.
        batch_size: Number of windows of a batch.
        train_share: Share of the training questions to train on; the seed alone decides which.
        train_file: Your own training file; train-v1.1 or train-v2.0 in squad/ below the data root when omitted.
        test_file: Your own test file; dev-v1.1 or dev-v2.0 in squad/ below the data root when omitted.
    """

    version: Literal["1.1", "2.0"] = "1.1"
    max_epochs: PositiveInt = 3
    length: PositiveInt = 256
    stride: PositiveInt = 128
    train_share: ClosedUnitInterval = 1.0
    train_file: Path | None = None
    test_file: Path | None = None

    PAPER_SIZES: ClassVar[Sequence[str]] = ("squad_1", "squad_2")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 20 or 2 * self.stride > self.length:
            raise OptionError(
                f"length is {self.length} and stride {self.stride}; expected a length of at least 20 and a stride of "
                f"at most half of it. Pass --length 256 --stride 128"
            )


@dataclass(frozen=True, kw_only=True)
class RaceConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer to choose one of several options, as in RACE.

    Every option is read together with its passage and question, and scored by one output. The parts are those of the
    publishers; the network of the last epoch is kept, so that nothing but a temperature is chosen on the development
    part.

    Args:
        level: Examinations to train and test on, of middle schools or of high schools; both when omitted.
        length: Largest number of tokens of a passage with its question and an option; the end of a longer passage is
            left out.
        batch_size: Number of questions of a batch; each has as many texts as options.
        train_share: Share of the training questions to train on; the seed alone decides which.
    """

    level: RaceLevel | None = None
    max_epochs: PositiveInt = 3
    length: PositiveInt = 256
    train_share: ClosedUnitInterval = 1.0

    PAPER_SIZES: ClassVar[Sequence[str]] = ("race",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 10:
            raise OptionError(f"length is {self.length}; expected at least 10, for a passage, a question and an option")
        if self.objective == "evidence":
            raise OptionError(
                "objective is evidence, which needs one text for each observation, and a question has one for each "
                "option; pass --objective elbo"
            )


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Classify the sentences, or answer the questions, of a file, with probabilities and uncertainty.

    Args:
        run: Folder of a run of glue, qa or race.
        file: Text file in UTF-8 with an example on every line: a sentence, or two sentences with a tab between them, as
            the task has. For qa a context, a tab and a question, or a JSON file in the format of SQuAD; for race a file
            in the format of RACE, with or without answers.
        out: File to write, with a line for every example; when omitted FILE.tsv, with tabs between columns, and for qa
            and race FILE.jsonl.
        overwrite: Replace the file if it exists.
        num_samples: Number of posterior samples of the attention; of dropout masks for soft attention.
        device: Device to compute on.
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
    "race": Command(RaceConfig, "experiments.finetune.choices:train"),
    "predict": Command(PredictConfig, "experiments.finetune.predict:predict_file"),
    "table": Command(StudyOptions, "experiments.finetune.studies:table", training=GlueConfig),
    "search": Command(StudyOptions, "experiments.finetune.studies:search", training=GlueConfig),
    "qa-table": Command(StudyOptions, "experiments.finetune.studies:qa_table", training=QaConfig),
    "race-table": Command(StudyOptions, "experiments.finetune.studies:race_table", training=RaceConfig),
}
