"""Trained by one scheme and read by another: perplexity by K-max, by draws, exactly, and as soft attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from experiments.cli import command_line
from experiments.data.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.nmt.config import ReadingsConfig
from experiments.nmt.task import Trained, load_text, load_trained
from experiments.nmt.texts import batches
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Row, summarize
from experiments.sequence.model import model_arguments
from models.decoder import AttentionDecoder
from models.decoding import Inference, target_log_probs
from pyro_attention import AlignmentPrior, Soft
from pyro_attention.posterior.predictive import seeded


def readings(k_max: tuple[int, ...], draws: int) -> dict[str, Inference]:
    """How the attention weights of a network may be read, by the heads of the columns."""
    found = {"soft": Inference(family=Soft()), "exact": Inference(), f"{draws} draws": Inference(draws=draws)}
    return found | {f"K = {k}": Inference(k_max=k) for k in k_max}


@contextmanager
def as_alignment(model: AttentionDecoder) -> Iterator[None]:
    """Take a network's attention weights for the probabilities of alignments, whatever its prior is."""
    prior = model.attention.prior
    if not isinstance(prior, AlignmentPrior):
        model.attention.prior = AlignmentPrior()
    try:
        yield
    finally:
        model.attention.prior = prior


def perplexity(trained: Trained, text: ParallelText, inference: Inference) -> float:
    """Perplexity per word piece of a text, the attention read as the inference says.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5 and table 2.
    """
    trained.module.eval()
    total, count = 0.0, 0
    with as_alignment(trained.model), seeded(trained.config.seed):
        for batch in batches(trained, text):
            log_probs = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
            total, count = total - log_probs.double().sum().item(), count + int(batch.target_mask.sum())
    return math.exp(total / count)


def compare(config: ReadingsConfig) -> dict[str, float]:
    """Print and write the table: a row a scheme, a column a reading.

    Raises:
        UserError: No runs, runs of several data sets, or a run that is none of translation.
    """
    if not config.runs:
        raise UserError('runs is empty, expected folders of trained networks, such as \'["RUN", "OTHER"]\'')
    networks = [load_trained(run, device=config.device) for run in config.runs]
    if len(datasets := {str(trained.config.dataset) for trained in networks}) > 1:
        raise UserError(f"runs are of the data sets {', '.join(sorted(datasets))}, expected one")
    values: dict[str, dict[str, list[float]]] = {}
    for trained in networks:
        with user_errors(ValueError, OSError):
            text = load_text(trained.config, "test")
        text = text if config.pairs is None else text.first(config.pairs)
        for name, inference in readings(config.k_max, config.draws).items():
            row = values.setdefault(trained.config.guide, {})
            row.setdefault(name, []).append(perplexity(trained, text, inference))
    rows: list[Row] = [
        {"trained": guide} | {name: summarize(found, 3) for name, found in row.items()} for guide, row in values.items()
    ]
    about = (
        f"Perplexity per word piece of {len(text)} test pairs. Soft: one context, the mean under the weights. "
        f"Exact: the log of the sum over all alignments, whose probabilities the weights are; {config.draws} draws: of "
        f"the mean over so many drawn alignments of every word; K = 5: of the sum over the five largest weights, "
        f"renormalized. The network is fed with the mean context in any case, of the K largest weights under K-max."
    )
    (dataset,) = datasets
    report = Report(
        f"Trained by one scheme, read by another: {dataset}", f"readings-{dataset}", [Part(text=about, rows=rows)]
    )
    shown: Any = config
    source = source_of(config.runs, command_line("experiments.nmt readings", shown))
    report.write(config.out, source)
    if config.results is not None:
        print(write_results(config.results, report, source))
    return {f"{guide}/{name}": sum(found) / len(found) for guide, row in values.items() for name, found in row.items()}
