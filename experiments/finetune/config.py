"""Options of the scripts on fine-tuning."""

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.harness.cli import Command
from experiments.harness.options import BatchOptions, HalfOpenUnitInterval
from guides.options import PosteriorOptions

__all__ = ["COMMANDS", "GlueConfig", "GlueName", "RowName"]

GlueName = Literal["rte", "mrpc", "cola", "sst2", "stsb"]
RowName = Literal["soft", "weibull", "lognormal"]


@dataclass(frozen=True, kw_only=True)
class GlueConfig(BatchOptions, PosteriorOptions):
    """Fine-tune a pretrained transformer of Hugging Face on a task of GLUE, all of it, with its own rates of dropout.

    The test part is that of the publishers for MRPC, STS-B and SST-2 (test-labeled.tsv), and GLUE's development part
    for RTE and CoLA, whose test labels are not public. Validation, which chooses the epoch and the temperature, is the
    development part of SST-2 and STS-B, and a tenth of the training part, always the same, of the others.

    Args:
        task: The task, read from glue/ below the data root.
        model: Folder of the pretrained model and its tokenizer, or its name on the hub; it has to be given.
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        kl_weight: Weight of the KL, which is summed over all attention weights of a sentence.
        kl_warmup: Share of the steps in which that weight rises from 0.
        learning_rate: Largest learning rate of AdamW; it rises for a tenth of the steps and then falls, linearly.
        max_epochs: Number of epochs; the one with the best validation score is kept.
        length: Tokens of an example at most; the rest is cut off, of the longer sentence of a pair first.
        prior_learning_rate: The same of prior networks, which begin untrained.
        weight_decay: Weight decay of AdamW, not of biases and layer norms.
        gradient_clip: Largest norm of the gradient of the loss per example.
        train_share: Share of the training part to train on; the same examples for a seed, whatever the other options.
        label_noise: Share of the training labels to replace by another one at random.
        num_samples: Posterior samples of random attention, or of dropout masks, for scores and predictions.
        keep_weights: Keep the weights of the best epoch, for predictions; scores and predictions are always kept.
        seed: Seed of the output layer, the order of the batches, the choice of examples and labels, and all noise.
    """

    task: GlueName
    model: str = ""
    guide: RowName = "soft"
    kl_weight: NonNegativeFloat = 1e-5
    kl_warmup: ClosedUnitInterval = 0.2
    learning_rate: PositiveFloat = 5e-5
    prior_learning_rate: PositiveFloat = 1e-3
    max_epochs: PositiveInt = 5
    length: PositiveInt = 128
    weight_decay: NonNegativeFloat = 0.01
    train_share: ClosedUnitInterval = 1.0
    label_noise: HalfOpenUnitInterval = 0.0
    keep_weights: bool = True


COMMANDS = {
    "glue": Command(GlueConfig, "experiments.finetune.train:run_and_show"),
    "sst2": Command("experiments.pretrain.config:FinetuneConfig", "experiments.pretrain.finetune:run_and_show"),
}
