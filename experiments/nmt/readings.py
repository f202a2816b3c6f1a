"""Perplexities of trained networks when their attention is read by another scheme: soft, exact, draws or K-max."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from experiments.cli import command_line
from experiments.data.text.parallel_text import ParallelText
from experiments.files import UserError, check_outputs, user_errors
from experiments.nmt.config import ReadingsConfig
from experiments.nmt.task import Trained, load_text, load_trained
from experiments.nmt.texts import batches
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Row, summarize
from experiments.sequence.model import mean_perplexity, model_arguments
from models.decoder import AttentionDecoder
from models.decoding import Inference, target_log_probs
from pyro_attention import AlignmentPrior, Soft
from pyro_attention.posterior.predictive import seeded


def readings(k_max: tuple[int, ...], draws: int) -> dict[str, Inference]:
    """Return the readings of attention weights by the heads of their columns.

    Args:
        k_max: Numbers of largest weights, a reading each.
        draws: Number of drawn alignments of a word.
    """
    inferences = {"soft": Inference(family=Soft()), "exact": Inference(), f"{draws} draws": Inference(draws=draws)}
    return inferences | {f"K = {k}": Inference(k_max=k) for k in k_max}


@contextmanager
def as_alignment(model: AttentionDecoder) -> Iterator[None]:
    """Within the context, treat the attention weights of a network as probabilities of alignments."""
    prior = model.attention.prior
    if not isinstance(prior, AlignmentPrior):
        model.attention.prior = AlignmentPrior()
    try:
        yield
    finally:
        model.attention.prior = prior


def perplexity_under(trained: Trained, text: ParallelText, inference: Inference) -> float:
    """Return the perplexity per word piece of a text under one reading of the attention.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5 and table 2.
    """
    trained.module.eval()
    with as_alignment(trained.model), seeded(trained.config.seed):
        return mean_perplexity(
            batches(trained, text),
            lambda batch: target_log_probs(trained.model, *model_arguments(batch), inference=inference),
        )


def compare(config: ReadingsConfig) -> dict[str, float]:
    """Print and write a table of perplexities with a row for each scheme and a column for each reading.

    Returns:
        Mean perplexities by "scheme/reading".

    Raises:
        UserError: No runs, runs of several data sets, a folder without a translation run, or a report that is there.
    """
    if not config.runs:
        raise UserError('runs is empty, expected folders of trained networks, such as \'["RUN", "OTHER"]\'')
    check_outputs([config.out / "report.md"], [], overwrite=config.overwrite)
    networks = [load_trained(run, device=config.device) for run in config.runs]
    if len(datasets := {str(trained.config.dataset) for trained in networks}) > 1:
        raise UserError(f"runs have the data sets {', '.join(sorted(datasets))}, expected runs of one data set")
    values: dict[str, dict[str, list[float]]] = {}
    for trained in networks:
        with user_errors(ValueError, OSError):
            text = load_text(trained.config, "test")
        text = text if config.pairs is None else text.first(config.pairs)
        for name, inference in readings(config.k_max, config.draws).items():
            row = values.setdefault(trained.config.guide, {})
            row.setdefault(name, []).append(perplexity_under(trained, text, inference))
    rows: list[Row] = [
        {"trained": guide} | {name: summarize(perplexities, 3) for name, perplexities in row.items()}
        for guide, row in values.items()
    ]
    about = (
        f"Perplexity per word piece of {len(text)} test pairs. Soft: words are predicted from one context, the mean "
        f"under the weights. Exact: from the sum over all alignments, whose probabilities are the weights; "
        f"{config.draws} draws: from the mean over {config.draws} drawn alignments of every word; K = 5: from the sum "
        f"over the five largest weights, renormalized. The decoder is always fed with the mean context, under K-max of "
        "the K largest weights."
    )
    (dataset,) = datasets
    report = Report(
        f"Networks trained by one scheme and read by another: {dataset}",
        f"readings-{dataset}",
        [Part(text=about, rows=rows)],
    )
    shown: Any = config
    names = json.dumps([run.name for run in config.runs])
    source = source_of(config.runs, command_line(f"experiments.nmt readings '{names}'", shown))
    report.write(config.out, source)
    if config.results is not None:
        print(write_results(config.results, report, source))
    return {
        f"{guide}/{name}": sum(perplexities) / len(perplexities)
        for guide, row in values.items()
        for name, perplexities in row.items()
    }
