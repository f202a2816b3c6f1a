"""Options of the studies of uncertainty."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.finetune.config import GlueConfig, QaConfig
from experiments.options import RunOptions, SweepOptions

WIDTHS = (0.3, 1.0, 2.0)
PRIOR_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
GlueTaskName = Literal["sst2", "rte", "mrpc", "cola"]
TaskName = Literal["sst2", "rte", "mrpc", "cola", "squad"]
Domain = Literal["headlines", "sst2", "rte", "mrpc"]
Kind = Literal["mean", "mc_dropout", "attention", "last_layer", "score_network", "width"]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(RunOptions):
    """Options of one network of the comparison, of any task.

    Args:
        kinds: Predictions that the rows take of this network: of the mean weights, of dropout masks, of random
            attention, of Laplace posteriors of the output layer and of the score network, and of random weights without
            training.
        train_items: Training examples at most; the same ones for every network.
        val_items: Validation examples at most.
        test_items: Test examples at most, and as many out of domain.
        widths: Widths of LogNormal weights without training, of which the validation examples choose one.
        prior_scales: Standard deviations of the Laplace priors, of which they choose one.
    """

    kinds: tuple[Kind, ...] = ("mean",)
    train_items: PositiveInt = 1000
    val_items: PositiveInt = 250
    test_items: PositiveInt = 400
    widths: tuple[PositiveFloat, ...] = WIDTHS
    prior_scales: tuple[PositiveFloat, ...] = PRIOR_SCALES


@dataclass(frozen=True, kw_only=True)
class PairConfig(NetworkOptions, GlueConfig):
    """Fine-tune one network of the comparison on a task of GLUE, and predict with the uncertainties that are asked for.

    Args:
        domain: Where the sentences come from that are out of domain: headlines of Gigaword, or another task.
        adapter_rank: Rank of LoRA on queries and values, which then are trained with the output layer alone; 0 trains
            all weights.
        curvature_items: Training examples that the curvature of the score network is computed on.
    """

    domain: Domain = "headlines"
    adapter_rank: NonNegativeInt = 0
    curvature_items: PositiveInt = 300


@dataclass(frozen=True, kw_only=True)
class SpanConfig(NetworkOptions, QaConfig):
    """Fine-tune one network of the comparison on SQuAD 1.1, and ask it questions of 2.0 without an answer, too.

    Args:
        length: Largest number of tokens of a question with its paragraph; longer ones are left out.
    """

    length: PositiveInt = 192
    stride: PositiveInt = 64


@dataclass(frozen=True, kw_only=True)
class CompareConfig(SweepOptions):
    """Compare kinds of uncertainty of a fine-tuned transformer: accuracy, calibration, selection, out of domain.

    Every row has the same budget of passes for a prediction, or fewer. What is complete in the folder is read, so tasks
    and rows can be added later by --resume.

    Args:
        model: Folder of the pretrained model and its tokenizer, or its name on the hub.
        tasks: Tasks of GLUE, or squad: SQuAD 1.1, where the questions of 2.0 without an answer are out of domain.
        rows: Rows of the table, beside soft attention; all when omitted.
        seeds: Networks of every row, which are averaged.
        members: Networks of an ensemble, and passes of every other row that draws.
        max_epochs: Epochs of every training.
        train_items: Training examples of a task of GLUE at most, CoLA excepted.
        cola_items: Training sentences of CoLA at most. They are short, and from 1000 of them a network of MiniLM's size
            learns nothing but the larger class.
        train_questions: Training questions of SQuAD at most.
        val_items: Validation examples at most, which choose temperatures, widths and scales of priors.
        test_items: Test examples at most, and as many out of domain.
        widths: Widths of random weights without training to choose from.
        prior_scales: Standard deviations of the Laplace priors to choose from.
        resamples: Resamples of the test examples for the intervals.
    """

    model: str
    tasks: tuple[TaskName, ...] = ("sst2", "cola", "rte", "mrpc", "squad")
    rows: tuple[str, ...] = ()
    seeds: PositiveInt = 3
    members: PositiveInt = 5
    max_epochs: PositiveInt = 3
    train_items: PositiveInt = 1000
    cola_items: PositiveInt = 4000
    train_questions: PositiveInt = 2000
    val_items: PositiveInt = 250
    test_items: PositiveInt = 400
    widths: tuple[PositiveFloat, ...] = WIDTHS
    prior_scales: tuple[PositiveFloat, ...] = PRIOR_SCALES
    resamples: PositiveInt = 500


@dataclass(frozen=True, kw_only=True)
class SmolLM2Config(RunOptions):
    """Find the wrong answers of a language model to the questions of SQuAD, with the paragraph and without it.

    The widths of the drawn weights, and what is read off the draws, are chosen on questions of the training file; the
    questions that count are those of the development file. Every answer is written as it comes, and --resume goes on.
    The defaults take some 20 minutes of a core.

    Args:
        model: Folder of a decoder with a chat template, such as SmolLM2-135M-Instruct.
        questions: Questions that count.
        tuning: Questions of other articles, on which the widths are chosen.
        scales: Widths of LogNormal weights to choose from.
        concentrations: Concentrations of Weibull weights to choose from; the smaller, the wider.
        prior_scales: Standard deviations of the prior of the last layer's queries to choose from, for their Laplace
            posterior.
        curvature: Questions of the training file, none of the tuning ones, whose answers make that posterior.
        num_samples: Draws of the weights, and of the queries.
        max_new_tokens: Longest answer in tokens.
        resamples: Of the bootstrap over the questions.
        results: Folder for the published numbers. When omitted, it is experiments/results, but with other options than
            the defaults there is none.
    """

    model: Path
    questions: PositiveInt = 100
    tuning: PositiveInt = 20
    scales: tuple[PositiveFloat, ...] = (0.3, 1.0)
    concentrations: tuple[PositiveFloat, ...] = (1.0, 3.0)
    prior_scales: tuple[PositiveFloat, ...] = (0.01, 0.03, 0.1)
    curvature: PositiveInt = 20
    num_samples: PositiveInt = 6
    max_new_tokens: PositiveInt = 12
    resamples: PositiveInt = 1000
    results: Path | None = None


COMMANDS = {
    "compare": Command(CompareConfig, "experiments.uncertainty.compare:compare"),
    "smollm2": Command(SmolLM2Config, "experiments.uncertainty.smollm2:run"),
}
