"""Options of the scripts on fine-tuning."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)

from experiments.harness.cli import Command
from experiments.harness.options import BatchOptions, Device, HalfOpenUnitInterval, Precision, SweepOptions
from guides.options import WEIGHTS, PosteriorOptions, UsedBy

__all__ = [
    "COMMANDS", "SMALL_TASKS", "FineTuneOptions", "GlueConfig", "GlueName", "GlueSearchConfig", "GlueStudyConfig",
    "GlueTableConfig", "GuideName", "ManyRuns", "Pooling", "PredictConfig", "RowName", "RowOptions", "StudyName",
]  # fmt: skip

Pooling = Literal["head", "mean", "pair"]
GlueName = Literal["rte", "mrpc", "cola", "sst2", "stsb"]
GuideName = Literal["soft", "weibull", "lognormal"]
RowName = Literal["soft", "WF", "WC", "LF", "LC"]
StudyName = Literal["label_noise", "train_share", "out_of_domain"]
SMALL_TASKS: tuple[GlueName, ...] = ("mrpc", "rte", "cola", "stsb")


@dataclass(frozen=True, kw_only=True)
class FineTuneOptions(BatchOptions, PosteriorOptions):
    """How to fine-tune a pretrained transformer, all of it, with its own rates of dropout.

    Args:
        model: Folder of the pretrained model and its tokenizer, or its name on the hub; it has to be given.
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        kl_weight: Weight of the KL of one attention weight: it multiplies the KL of an example, divided by the mean
            number of attention weights of the training examples. Of the sum the same weight would suit one length
            alone: a sentence of 10 tokens has some thousands of weights against its label, one of 128 over a million.
        kl_warmup: Share of the steps in which that weight rises from 0.
        learning_rate: Largest learning rate of AdamW; it rises for a tenth of the steps and then falls, linearly. The
            default suits small models such as MiniLM; 2e-5 to 5e-5 is usual for BERT and larger ones.
        prior_learning_rate: The same of prior networks, which begin untrained.
        length: Tokens of an example at most.
        weight_decay: Weight decay of AdamW, not of biases and layer norms.
        gradient_clip: Largest norm of the gradient of the loss per example.
        num_samples: Posterior samples of random attention, or of dropout masks, for scores and predictions.
        precision: Arithmetic of training and evaluation.
        keep_weights: Keep the weights, for predictions; scores and predictions are always kept.
        seed: Seed of the output layer, the order of the batches, the choice of examples, and all noise.
    """

    model: str = ""
    guide: GuideName = "soft"
    kl_weight: NonNegativeFloat = 0.01
    kl_warmup: ClosedUnitInterval = 0.2
    learning_rate: PositiveFloat = 1e-4
    prior_learning_rate: PositiveFloat = 1e-3
    length: PositiveInt = 128
    weight_decay: NonNegativeFloat = 0.01
    keep_weights: bool = True

    USED_BY: ClassVar[UsedBy] = {name: {"guide": WEIGHTS} for name in ("kl_warmup", "prior_learning_rate")}


@dataclass(frozen=True, kw_only=True)
class GlueConfig(FineTuneOptions):
    """Fine-tune a pretrained transformer of Hugging Face on a task of GLUE.

    The test part is that of the publishers for MRPC, STS-B and SST-2 (test-labeled.tsv), and GLUE's development part
    for RTE and CoLA, whose test labels are not public. Validation, which chooses the temperature, is the
    development part of SST-2 and STS-B, and a tenth of the training part, always the same, of the others.

    Args:
        task: The task, read from glue/ below the data root.
        max_epochs: Number of epochs; the last one is kept, as the learning rate falls to zero in it.
        length: Tokens of an example at most; the rest is cut off, of the longer sentence of a pair first.
        train_share: Share of the training part to train on; the same examples for a seed, whatever the other options.
        label_noise: Share of the training labels to replace by another one at random.
        pooling: What an example is read from: head is the output layer of the model's own class (BERT's reads the first
            token), mean the mean of all tokens, as models of sentence-transformers such as all-MiniLM were trained, and
            pair the means u and v of the two sentences, as (u, v, |u - v|).
        out_of_domain: Tasks whose test sentences are not of this one, to see how well uncertainty tells them from those
            that are; not for stsb.
        seed: Seed of the output layer, the order of the batches, the choice of examples and labels, and all noise.
    """

    task: GlueName
    max_epochs: PositiveInt = 4
    pooling: Pooling = "head"
    train_share: ClosedUnitInterval = 1.0
    label_noise: HalfOpenUnitInterval = 0.0
    out_of_domain: tuple[GlueName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Classify sentences, or answer questions, of a file: probabilities and uncertainty.

    Args:
        run: Folder of a fine-tuned model, of glue or of qa.
        file: A text file, UTF-8: a sentence a line, or two with a tab between them, as the task has; for qa a context
            and a question with a tab between them, or a JSON file in the format of SQuAD.
        out: Where to write, one line an example; when omitted FILE.tsv, a table with tabs between its columns, and for
            qa FILE.jsonl, a JSON object a line.
        overwrite: Replace that file if it is there already.
        num_samples: Posterior samples of the attention; of soft attention, dropout masks.
        interval: Probability inside the interval of the top class's probability, or of the grade, over these samples;
            not for qa.
        device: Where to compute.
    """

    run: Path
    file: Path
    out: Path | None = None
    overwrite: bool = False
    num_samples: PositiveInt = 50
    interval: OpenUnitInterval = 0.9
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class RowOptions(SweepOptions):
    """What the scripts that fine-tune many times have in common.

    Args:
        model: Folder of the pretrained model and its tokenizer, or its name on the hub; it has to be given.
        rows: The rows: soft, and W (Weibull) or L (LogNormal) with F (fixed prior) or C (contextual prior).
        learning_rate: Largest learning rate of every training.
        max_epochs: Epochs of every training.
        num_samples: Posterior samples, or dropout masks, for scores.
        precision: Arithmetic of training and evaluation.
    """

    model: str = ""
    rows: tuple[RowName, ...] = ("soft", "WF", "WC", "LF", "LC")
    learning_rate: PositiveFloat = 1e-4
    max_epochs: PositiveInt = 4
    num_samples: PositiveInt = 20
    precision: Precision = "32"


@dataclass(frozen=True, kw_only=True)
class ManyRuns(RowOptions):
    """What the scripts that fine-tune many times on GLUE have in common.

    Args:
        pooling: What an example is read from, in every training.
        sst2_share: Share of the training part of SST-2, the largest one, to train on.
    """

    pooling: Pooling = "head"
    sst2_share: ClosedUnitInterval = 0.15


@dataclass(frozen=True, kw_only=True)
class GlueTableConfig(ManyRuns):
    """Fine-tune a pretrained transformer on tasks of GLUE with every row and seed, and write the table.

    Args:
        tasks: The tasks; others than the default ones have a folder and a section of their own.
        seeds: Number of seeds.
    """

    tasks: tuple[GlueName, ...] = SMALL_TASKS
    seeds: PositiveInt = 3


@dataclass(frozen=True, kw_only=True)
class GlueSearchConfig(ManyRuns):
    """Try settings of the rows of the table, and choose the best ones by the scores on the validation parts alone.

    Args:
        tasks: The tasks; the mean of their scores decides.
        seeds: Number of seeds.
        first_seed: The first one; those of the tables begin with 0.
    """

    tasks: tuple[GlueName, ...] = ("rte", "mrpc")
    seeds: PositiveInt = 1
    first_seed: NonNegativeInt = 100


@dataclass(frozen=True, kw_only=True)
class GlueStudyConfig(ManyRuns):
    """How rows fare with noise in the training labels, with fewer examples, or with sentences from elsewhere.

    Args:
        name: label_noise: labels replaced at random; train_share: fewer training examples; out_of_domain: trained on
            one task, the uncertainty tells its test sentences from those of others.
        task: The task to train on; sst2 for out_of_domain, else rte, when omitted.
        seeds: Number of seeds.
    """

    name: StudyName
    task: GlueName | None = None
    rows: tuple[RowName, ...] = ("soft", "WC")
    seeds: PositiveInt = 3


COMMANDS = {
    "glue": Command(GlueConfig, "experiments.finetune.train:run_and_show"),
    "qa": Command("experiments.finetune.qa.config:QaConfig", "experiments.finetune.qa.train:run_and_show"),
    "qa-table": Command("experiments.finetune.qa.config:QaTableConfig", "experiments.finetune.qa.table:run"),
    "predict": Command(PredictConfig, "experiments.finetune.predict:predict_file"),
    "table": Command(GlueTableConfig, "experiments.finetune.table:run"),
    "studies": Command(GlueStudyConfig, "experiments.finetune.studies:run"),
    "search": Command(GlueSearchConfig, "experiments.finetune.search:run"),
    "sst2": Command("experiments.pretrain.config:FinetuneConfig", "experiments.pretrain.finetune:run_and_show"),
}
