"""Whether a network knows how sure its alignments are, on the generated corpus, whose links are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.aligners.scores import calibration_error
from experiments.data.text.parallel_text import ParallelText
from experiments.nmt.align import aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.task import Texts, Trained, TranslationTask, load_text, load_trained
from experiments.nmt.texts import batches
from experiments.report.report import Part
from experiments.report.statistics import Column, beside, summary_rows
from experiments.sequence.model import model_arguments
from experiments.study import Finished, First, Study
from models.decoding import target_log_probs
from pyro_attention.analysis import GoldAlignment, alignment_error_rate, hard_alignment
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.posterior.predictive import seeded

LEVEL = 0.9
_DROPPED = 20  # runs with dropout
_READINGS = ("before", "given")  # the word is seen, by Bayes' rule for the source word that explains it


def statements(weights: Sequence[Tensor], gold: Sequence[GoldAlignment]) -> dict[str, float]:
    """How right the probabilities ``[M, N]`` of the links of every pair are, where all links are known."""
    links, parts = [hard_alignment(matrix) for matrix in weights], list[Tensor]()
    for matrix, alignment, truth in zip(weights, links, gold, strict=True):
        known = replace(alignment, links=truth.sure).to_matrix().to(matrix)
        linked = known.any(1)
        mass, order = matrix[linked].sort(descending=True)
        right = known[linked].gather(1, order)
        taken = (mass.cumsum(1) - mass < LEVEL).to(mass)
        inside = (right * taken).sum(1) / right.sum(1)
        parts.append(torch.stack([mass[:, 0], right[:, 0], inside, (mass * taken).sum(1), taken.sum(1)]))
    top, right, *sets = torch.cat(parts, 1).double()
    error = calibration_error(top, right)
    means = {name: part.mean().item() for name, part in zip(("coverage", "mass", "size"), sets, strict=True)}
    return {"aer": alignment_error_rate(links, gold).aer, "ece": error, **means}


def perplexity(networks: Sequence[Trained], text: ParallelText, *, runs: int = 1) -> float:
    """Of the mean probability by several networks; of each in several runs with its dropout, where there are more."""
    total, count = 0.0, 0
    with seeded(0):
        for batch in batches(networks[0], text):
            log_probs = []
            for trained in networks:
                trained.model.train(runs > 1)
                arguments, inference = model_arguments(batch), trained.inference()
                log_probs += [target_log_probs(trained.model, *arguments, inference=inference) for _ in range(runs)]
                trained.model.eval()
            mean = torch.stack(log_probs).double().logsumexp(0) - math.log(len(log_probs))
            total, count = total - mean.sum().item(), count + int(batch.target_mask.sum())
    return math.exp(total / count)


def calibration(networks: Sequence[Trained], text: ParallelText) -> dict[str, float]:
    """Metrics of the mean probabilities of networks of one scheme, by ``"<kind>_<reading>_<measure>"``."""
    config, tables = networks[0].config, dict[str, list[Sequence[Tensor]]]()
    for trained in networks:
        pairs = aligned_pairs(trained, text, num_samples=config.num_samples, exact=True)
        # alignments have a prior beside their posterior, weights a posterior of alignments beside them
        weights = [pair.posterior.mean(0) for pair in pairs]
        given = [pair.exact for pair in pairs if pair.exact is not None]
        before = weights if given else [pair.prior for pair in pairs if pair.prior is not None]
        tables.setdefault("mean_before", []).append(before)
        tables.setdefault("mean_given", []).append(given or weights)
    metrics = {"mean_ppl": perplexity(networks, text)} if len(networks) > 1 else {}
    if networks[0].is_random:
        low, high = zip(*(equal_tailed(pair.posterior, LEVEL)[1:] for pair in pairs), strict=True)
        metrics["mean_width"] = torch.cat([(b - a).amax(1) for a, b in zip(low, high, strict=True)]).mean().item()
    more: dict[str, dict[str, Any]] = {}
    if config.objective == "evidence":
        more["weighted"] = {"weighted": True, "num_samples": config.num_samples}
    if config.guide == "soft" and len(networks) == 1:
        more["dropout"] = {"noise": "dropout", "num_samples": _DROPPED, "chunk_size": 1}  # masks ahead of the attention
        metrics["dropout_ppl"] = perplexity(networks, text, runs=_DROPPED)
    for kind, options in more.items():
        tables[f"{kind}_before"] = [[pair.posterior.mean(0) for pair in aligned_pairs(networks[0], text, **options)]]
    for name, several in tables.items():
        means = [torch.stack(some).mean(0) for some in zip(*several, strict=True)]
        metrics |= {f"{name}_{measure}": value for measure, value in statements(means, text.gold or []).items()}
    return metrics


class CalibrationTask(TranslationTask):
    """Translations of sentences whose links are known, and how sure the network is of them."""

    def scores(self, trained: Trained, data: Texts) -> tuple[dict[str, float], list[str]]:
        metrics, translations = super().scores(trained, data)
        return {**metrics, "mean_ppl": metrics["test_ppl"], **calibration([trained], data["test"])}, translations


def _ensemble(finished: Finished) -> list[Part]:
    """The networks of soft attention of all seeds as one."""
    configs: list[TranslationConfig] = [finished.configs["soft", "", seed] for seed in finished.seeds]
    networks = [load_trained(Path(str(config.out)), device=config.device) for config in configs]
    metrics = calibration(networks, load_text(configs[0], "test"))
    columns = [replace(column, metric=column.metric.replace("{kind}", "mean")) for column in (*COLUMNS, *MORE)]
    rows = summary_rows("row", {"ensemble": [metrics]}, columns)
    return [Part("Ensemble", f"The {len(networks)} networks of soft attention as one.", rows)]


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
        "for {first.max_epochs} epochs, and every row goes on from there for {config.max_epochs}. Weights have no true "
        "values here, so what is checked are statements on links. Coverage: share of the known links of a word in "
        "the smallest set of source words with a probability of .9 or more; mass: the probability of these sets, "
        "which coverage should equal; size: their number of words. ECE: calibration error of the most probable link. "
        "Of target words that have a link. Given y: once the word is seen, by Bayes' rule for the one source word that "
        "explains it. W given y: draws weighted by the likelihood instead. MC dropout: 20 runs. Width: of the widest "
        "90 % interval of a weight of each word. ELBO: KL against the contextual prior."
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
    parts=(_ensemble,),
)  # fmt: skip
