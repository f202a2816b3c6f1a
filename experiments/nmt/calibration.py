"""Calibration of the alignments of translation networks, on the generated corpus, whose links are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.aligners.scores import calibration_error
from experiments.data.text.batches import Batch
from experiments.data.text.parallel_text import ParallelText
from experiments.nmt.align import aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.task import Texts, Trained, TranslationTask, load_text, load_trained
from experiments.nmt.texts import batches
from experiments.report.report import Part
from experiments.report.statistics import Column, beside, summary_rows
from experiments.sequence.model import mean_perplexity, model_arguments
from experiments.study import Finished, First, Study
from models.decoding import target_log_probs
from pyro_attention.analysis import GoldAlignment, alignment_error_rate, hard_alignment
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.posterior.predictive import seeded

LEVEL = 0.9  # probability of credible sets and intervals
_DROPOUT_RUNS = 20
_READINGS = ("before", "given")  # links before the target word is seen, and given the target word by Bayes' rule


def link_calibration(weights: Sequence[Tensor], gold: Sequence[GoldAlignment]) -> dict[str, float]:
    """Compare the link probabilities of sentence pairs with their true links.

    Args:
        weights: Probabilities ``[M, N]`` of the links of each pair.
        gold: All true links of each pair.

    Returns:
        ``aer``, the alignment error rate of the most probable links; ``ece``, the expected calibration error of their
        probabilities; ``coverage``, the mean share of the true links of a word in its credible set of probability
        :data:`LEVEL`; ``mass`` and ``size``, the mean probability and the mean number of source words of these sets.
    """
    links, columns = [hard_alignment(matrix) for matrix in weights], list[Tensor]()
    for matrix, alignment, truth in zip(weights, links, gold, strict=True):
        known = replace(alignment, links=truth.sure).to_matrix().to(matrix)
        linked = known.any(1)
        mass, order = matrix[linked].sort(descending=True)
        right = known[linked].gather(1, order)
        taken = (mass.cumsum(1) - mass < LEVEL).to(mass)
        inside = (right * taken).sum(1) / right.sum(1)
        columns.append(torch.stack([mass[:, 0], right[:, 0], inside, (mass * taken).sum(1), taken.sum(1)]))
    top, right, *sets = torch.cat(columns, 1).double()
    error = calibration_error(top, right)
    means = {name: part.mean().item() for name, part in zip(("coverage", "mass", "size"), sets, strict=True)}
    return {"aer": alignment_error_rate(links, gold).aer, "ece": error, **means}


def mixture_perplexity(networks: Sequence[Trained], text: ParallelText, *, runs: int = 1) -> float:
    """Return the perplexity of the mean probabilities of several networks.

    Args:
        networks: The networks.
        text: Sentence pairs.
        runs: Number of runs of each network; several runs are made with dropout, and also averaged over.
    """

    def mean_log_probs(batch: Batch) -> Tensor:
        log_probs = []
        for trained in networks:
            trained.model.train(runs > 1)
            arguments, inference = model_arguments(batch), trained.inference()
            log_probs += [target_log_probs(trained.model, *arguments, inference=inference) for _ in range(runs)]
            trained.model.eval()
        return torch.stack(log_probs).double().logsumexp(0) - math.log(len(log_probs))

    with seeded(0):
        return mean_perplexity(batches(networks[0], text), mean_log_probs)


def calibration(networks: Sequence[Trained], text: ParallelText) -> dict[str, float]:
    """Compute metrics of the mean probabilities of networks of one scheme, named ``"<kind>_<reading>_<measure>"``."""
    config, tables = networks[0].config, dict[str, list[Sequence[Tensor]]]()
    for trained in networks:
        pairs = aligned_pairs(trained, text, num_samples=config.num_samples, exact=True)
        # alignments have a prior and a posterior; attention weights are read as the prior of an exact posterior
        weights = [pair.posterior.mean(0) for pair in pairs]
        given = [pair.exact for pair in pairs if pair.exact is not None]
        before = weights if given else [pair.prior for pair in pairs if pair.prior is not None]
        tables.setdefault("mean_before", []).append(before)
        tables.setdefault("mean_given", []).append(given or weights)
    metrics = {"mean_ppl": mixture_perplexity(networks, text)} if len(networks) > 1 else {}
    if networks[0].is_random:
        low, high = zip(*(equal_tailed(pair.posterior, LEVEL)[1:] for pair in pairs), strict=True)
        metrics["mean_width"] = torch.cat([(b - a).amax(1) for a, b in zip(low, high, strict=True)]).mean().item()
    further: dict[str, dict[str, Any]] = {}  # other kinds of posterior samples, and how they are drawn
    if config.objective == "evidence":
        further["weighted"] = {"weighted": True, "num_samples": config.num_samples}
    if config.guide == "soft" and len(networks) == 1:
        # dropout masks lie before the attention, so that each sample needs a pass of its own
        further["dropout"] = {"noise": "dropout", "num_samples": _DROPOUT_RUNS, "chunk_size": 1}
        metrics["dropout_ppl"] = mixture_perplexity(networks, text, runs=_DROPOUT_RUNS)
    for kind, options in further.items():
        tables[f"{kind}_before"] = [[pair.posterior.mean(0) for pair in aligned_pairs(networks[0], text, **options)]]
    for name, tables_of_networks in tables.items():
        means = [torch.stack(matrices).mean(0) for matrices in zip(*tables_of_networks, strict=True)]
        metrics |= {f"{name}_{measure}": value for measure, value in link_calibration(means, text.gold or []).items()}
    return metrics


class CalibrationTask(TranslationTask):
    """Translation of sentences whose links are known, with the calibration of the link probabilities."""

    def scores(self, trained: Trained, data: Texts) -> tuple[dict[str, float], list[str]]:
        metrics, translations = super().scores(trained, data)
        return {**metrics, "mean_ppl": metrics["test_ppl"], **calibration([trained], data["test"])}, translations


def ensemble_table(finished: Finished) -> list[Part]:
    """Return the table of the ensemble of the networks of soft attention of all seeds."""
    configs: list[TranslationConfig] = [finished.configs["soft", "", seed] for seed in finished.seeds]
    networks = [load_trained(Path(str(config.out)), device=config.device) for config in configs]
    metrics = calibration(networks, load_text(configs[0], "test"))
    columns = [replace(column, metric=column.metric.replace("{kind}", "mean")) for column in (*COLUMNS, *MORE)]
    rows = summary_rows("row", {"ensemble": [metrics]}, columns)
    return [Part("Ensemble", f"The mean of the {len(networks)} networks of soft attention.", rows)]


COLUMNS = (Column("AER %", "{kind}_before_aer", 1, 100, better="lower"),)
MORE = (
    Column("perplexity", "{kind}_ppl"),
    Column("AER % given y", "{kind}_given_aer", 1, 100),
    *(
        Column(f"{measure.replace('ece', 'ECE')}{' given y' * (reading == 'given')}", f"{{kind}}_{reading}_{measure}")
        for reading in _READINGS
        for measure in ("ece", "coverage", "mass", "size")
    ),
    Column("width", "{kind}_width"),
)
_ELBO: dict[str, Any] = {"guide": "lognormal", "scale": 0.5, "learnable": True}

CALIBRATION = Study(
    name="coverage-translation",
    title="Generated translations: do credible sets of source words hold the known links?",
    text=(
        "The corpus of the demo, 3 000 pairs to train on, 250 to test, whose links are known. Soft attention trains "
        "for {first.max_epochs} epochs, and every row continues from there for {config.max_epochs}. Weights have no "
        "true values here, so probabilities of links are checked, of all target words that have a link. Coverage: "
        "share of the known links of a word in the smallest set of source words with a probability of .9 or more; "
        "mass: the probability of these sets, which coverage should equal; size: their number of words. ECE: "
        "calibration error of the most probable link. Given y: posterior of the source word given the target word, by "
        "Bayes' rule. W given y: draws weighted by the likelihood instead. MC dropout: 20 runs. Width: width of the "
        "widest 90 % interval of a weight of each word. ELBO: KL against the contextual prior."
    ),
    task=CalibrationTask(),
    heads=("attention", ""),
    rows={
        "soft": {"guide": "soft"},
        "ELBO, Weibull k = 10, KL .01": {"guide": "weibull", "kl_weight": 0.01},
        "ELBO, learned width, KL .01": {**_ELBO, "kl_weight": 0.01},
        "ELBO, learned width": _ELBO,
        "evidence": {**_ELBO, "learnable": False, "objective": "evidence", "learned_width": True},
        "alignments summed out": {"guide": "marginal"},
    },
    readings={"MC dropout": ("soft", "dropout"), "evidence, W given y": ("evidence", "weighted")},
    options={
        "dataset": "toy", "train_pairs": 3000, "test_pairs": 250, "layers": 1, "beam": 1, "k_max": None,
        "max_epochs": 1, "patience": 1, "learning_rate": 5e-3, "num_samples": 100,
        "init_from": First({"guide": "soft", "max_epochs": 6, "patience": 6, "learning_rate": 1e-2}),
    },
    columns=(*COLUMNS, *beside(*MORE)),
    seeds=5,
    parts=(ensemble_table,),
)  # fmt: skip
