"""Evaluation of answers: accuracy, calibration, uncertainty, and the share of attention on what is asked about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from experiments.datasets.questions.data import Questions
from experiments.files import write_atomic
from experiments.harness.training import FITTED
from experiments.report.classification import SCALED_SCORES, SCORES, score, score_scaled
from experiments.vqa.accuracy import vqa_accuracy
from experiments.vqa.data import Answered, QuestionBatch
from experiments.vqa.model import TrainedAnswers
from pyro_attention import sample_posterior
from pyro_attention.analysis import TemperatureScaling, decompose_uncertainty, fit_temperature, hybrid_weights, pavpu
from pyro_attention.posterior.predictive import Noise, seeded

__all__ = [
    "LOOKING",
    "UNCERTAINTIES",
    "Evaluation",
    "Outputs",
    "accuracies",
    "auroc",
    "definitions",
    "evaluate",
    "kinds",
    "looked_at",
    "outputs_of",
    "save_predictions",
]

LOOKING = {"mcan": "reduce.regions", "bottom_up": "alignment"}
"""The site of each model whose weights say which region the answer is read from."""

# Kind of prediction: what varies between its samples, and what it is.
_KINDS: dict[str, tuple[Noise, str]] = {
    "mean": ("none", "attention at its posterior mean (an alignment summed out), no dropout"),
    "attention": ("attention", "mean probability over samples of the attention"),
    "mc_dropout": ("dropout", "mean probability over dropout masks, attention at its posterior mean"),
    "both": ("both", "mean probability over samples of the attention and dropout masks"),
}
_THRESHOLDS = {"01": 0.01, "05": 0.05, "10": 0.1}
UNCERTAINTIES = {
    "entropy": "entropy of the answer's mean probability",
    "mutual_information": "mutual information of answer and noise",
    "attention_variance": "variance of the attention weights over samples, mean over regions",
}
_DEFINITIONS = {
    **SCORES,
    **SCALED_SCORES,
    "accuracy": "accuracy of the most probable answer: min(others who gave it / 3, 1), mean over people and questions; "
    "of a single person's answer, whether it is right",
    **{
        f"pavpu_{name}": f"PAvPU: accurate and certain or neither; paired t-test on logits of the two top answers over "
        f"the samples, level {level}"
        for name, level in _THRESHOLDS.items()
    },
    "mutual_information": "of answer and noise, mean over questions, nats",
    **{
        f"auroc_{name}": f"area under the ROC curve of the {text}, for wrong answers"
        for name, text in UNCERTAINTIES.items()
    },
    **{
        f"absent_auroc_{name}": f"area under the ROC curve of the {text}, for questions about what is not there"
        for name, text in UNCERTAINTIES.items()
    },
    "relevant_mass": "share of the attention that the answer is read from on the relevant regions, at its posterior "
    "mean, mean over test questions",
    "uniform_mass": "the same share under uniform attention",
    "attention_entropy": "entropy of that attention, mean over test questions, nats",
    "val_accuracy": "accuracy on the validation questions at the best epoch, attention at its mean",
    "val_loss": "mean negative log-likelihood on the validation questions at the best epoch, without KL, nats",
    "majority_accuracy": "accuracy on the test questions of the most frequent answer of the training questions",
    "form_accuracy": "the same of the most frequent answer to questions that begin with the same two words",
    "train_questions": "number of training questions",
    **FITTED,
}


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric is: that of its last part, and the kind of prediction, noise and question that it is of."""
    found = {}
    for name in metrics:
        what, *where = name.split("/")
        text = _DEFINITIONS.get(what.removeprefix("test_").removeprefix("hybrid_"), "")
        if name.startswith("hybrid_"):
            text = "share of doubly normalised attention at this site, mean over heads, at the best epoch"
        told = [_KINDS[part][1] if part in _KINDS else part.replace("_", " ") for part in where]
        found[name] = "; ".join((text, *told))
    return found


@dataclass(frozen=True)
class Outputs:
    """What a model says to all questions of a part.

    Attributes:
        logits: Samples ``[S, questions, answers]``.
        variance: Variance of the attention over samples, mean over regions, ``[questions]``; None of other samples.
    """

    logits: Tensor
    variance: Tensor | None = None

    @property
    def probabilities(self) -> Tensor:
        """Mean probability of every answer, ``[questions, answers]``."""
        return self.logits.softmax(-1).mean(0)

    def uncertainties(self) -> dict[str, Tensor]:
        """The numbers of ``UNCERTAINTIES`` of every question, as far as there are any."""
        if len(self.logits) == 1:
            return {"entropy": torch.special.entr(self.probabilities).sum(-1)}
        parts = decompose_uncertainty(self.logits.softmax(-1))
        found = {"entropy": parts.total, "mutual_information": parts.mutual_information}
        return found if self.variance is None else found | {"attention_variance": self.variance}


@dataclass(frozen=True)
class Evaluation:
    """What is known of a trained network.

    Attributes:
        metrics: Numbers, named ``test_SCORE/KIND``, and behind it the noise on the regions or the kind of question.
        probabilities: Mean probabilities of all answers to the test questions, by kind of prediction.
        uncertainties: Uncertainty of the answers to the test questions, by its name and kind of prediction.
        accuracy: Accuracy of the answers to the test questions, at the mean.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    probabilities: dict[str, Tensor] = field(default_factory=dict)
    uncertainties: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    accuracy: Tensor | None = None


def kinds(trained: TrainedAnswers) -> list[str]:
    """Kinds of prediction of a network: of deterministic attention, and of an alignment that is summed out, fewer."""
    if trained.module.sums_out:
        return ["mean"]
    return list(_KINDS) if trained.is_random else ["mean", "mc_dropout"]


def outputs_of(trained: TrainedAnswers, data: Answered, kind: str, *, noise: float = 0.0) -> Outputs:
    """What a network says to all questions, in their order.

    Args:
        trained: The network.
        data: The questions.
        kind: Kind of prediction.
        noise: Standard deviation of Gaussian noise on the regions; of the same seed, the same for all networks.
    """
    varied, config = _KINDS[kind][0], trained.config
    count = 1 if kind == "mean" else config.num_samples
    logits, variances, places = [], [], []
    for number, batch in enumerate(_batches(trained, data, noise)):
        logits.append(trained.module.outputs(batch, num_samples=count, noise=varied, seed=config.seed + number).cpu())
        if varied == "attention" and config.model in LOOKING and count > 1:  # one sample has no variance
            weights = looked_at(trained, batch, num_samples=count)
            variances.append(weights.var(0).mean(-1).cpu())
        places.append(batch.places.cpu())
    order = torch.cat(places).argsort()
    variance = torch.cat(variances)[order] if variances else None
    return Outputs(torch.cat(logits, 1)[:, order], variance)


def _batches(trained: TrainedAnswers, data: Answered, noise: float) -> Iterator[QuestionBatch]:
    for number, batch in enumerate(data.batches(trained.device)):
        with seeded(10_000 + number):
            yield batch._replace(regions=batch.regions + noise * torch.randn_like(batch.regions)) if noise else batch


def looked_at(trained: TrainedAnswers, batch: QuestionBatch, *, num_samples: int = 1) -> Tensor:
    """Weights of all regions that the answer is read from, ``[S, B, N]``; a single sample is the posterior mean."""
    inputs = trained.module.arguments(batch)[:4]
    site = LOOKING[trained.config.model]
    if trained.module.sums_out:
        with torch.no_grad():
            scores = trained.module.objective.model.look(*inputs)[2].squeeze(-2)
        return scores.masked_fill(~batch.region_mask, -torch.inf).softmax(-1).unsqueeze(0)
    drawn = sample_posterior(
        trained.guide, *inputs, num_samples=num_samples, noise="attention" if num_samples > 1 else "none",
        chunk_size=num_samples, seed=trained.config.seed,
    )  # fmt: skip
    return drawn[site].flatten(2)


def evaluate(trained: TrainedAnswers, questions: Mapping[str, Questions]) -> Evaluation:
    """All metrics of a trained network; with the same weights, the same numbers.

    Args:
        trained: The network, with the weights to evaluate.
        questions: Parts "val" and "test", and "absent" where there is one.
    """
    data = {part: trained.answered(found) for part, found in questions.items() if part != "train"}
    metrics: dict[str, float] = {}
    probabilities: dict[str, Tensor] = {}
    uncertainties: dict[tuple[str, str], Tensor] = {}
    accuracy: Tensor | None = None
    places, labels = _labels(data["val"])
    scalings = {
        kind: fit_temperature(outputs_of(trained, data["val"], kind).logits[:, places], labels)
        for kind in kinds(trained)
    }
    for noise in trained.config.test_noise:
        end = f"/noise_{noise:g}" if noise else ""
        scale = noise * trained.module.spread
        mean = outputs_of(trained, data["test"], "mean", noise=scale)
        accurate = accuracies(mean.probabilities, data["test"])
        for kind in kinds(trained):
            outputs = mean if kind == "mean" else outputs_of(trained, data["test"], kind, noise=scale)
            found = _scores(outputs, scalings[kind], accurate, data["test"])
            if not noise:
                probabilities[kind] = outputs.probabilities
                uncertainties |= {(name, kind): values for name, values in outputs.uncertainties().items()}
                if "absent" in data:
                    found |= _absent_scores(outputs, outputs_of(trained, data["absent"], kind), data["test"])
            metrics |= {f"test_{name}/{kind}{end}": value for name, value in found.items()}
        if not noise:
            accuracy = accurate
            metrics |= _by_kind(accurate, data["test"].data.kinds)
    if trained.config.model in LOOKING and data["test"].data.relevant is not None:
        metrics |= _looking(trained, data["test"])
    return Evaluation(metrics | _hybrid(trained), probabilities, uncertainties, accuracy)


def accuracies(probabilities: Tensor, data: Answered) -> Tensor:
    """Accuracy of the most probable answer to every question, of probabilities ``[questions, answers]``."""
    best = probabilities.argmax(-1).tolist()
    answers = [data.words.answers[place] for place in best]
    return torch.tensor([vqa_accuracy(a, votes) for a, votes in zip(answers, data.data.answers, strict=True)])


def _labels(data: Answered) -> tuple[Tensor, Tensor]:
    """Places of the questions whose most frequent answer has a class, and these classes."""
    known = [(place, max(votes, key=lambda answer: votes[answer])) for place, votes in enumerate(data.known) if votes]
    places, labels = zip(*known, strict=True)
    return torch.tensor(places), torch.tensor(labels)


def _scores(outputs: Outputs, scaling: TemperatureScaling, accurate: Tensor, data: Answered) -> dict[str, float]:
    """Scores of one kind of prediction; those of probabilities count questions whose answer has a class."""
    places, labels = _labels(data)
    tested = outputs.logits[:, places]
    found = score(outputs.probabilities[places], labels) | score_scaled(scaling, tested, labels)
    # the accuracy of answers that people gave, of the most probable one of this kind of prediction
    accurate_here = accuracies(outputs.probabilities, data)
    found["accuracy"] = accurate_here.mean().item()
    uncertainties = outputs.uncertainties()
    wrong = (accurate_here < 0.5).long()
    if 0 < wrong.sum() < len(wrong):
        found |= {f"auroc_{name}": auroc(values, wrong) for name, values in uncertainties.items()}
    if len(outputs.logits) > 1:
        levels = pavpu(outputs.logits, accurate, test="logits", thresholds=tuple(_THRESHOLDS.values()))
        found |= {f"pavpu_{name}": levels[level].pavpu for name, level in _THRESHOLDS.items()}
        found["mutual_information"] = uncertainties["mutual_information"].mean().item()
    return found


def auroc(values: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: how often a positive item, one with a 1, has the larger value; ties count half."""
    chosen, ranks = positive.bool().numpy(), rankdata(values)
    count = chosen.sum()
    return float((ranks[chosen].sum() - count * (count + 1) / 2) / (count * (len(chosen) - count)))


def _absent_scores(test: Outputs, absent: Outputs, data: Answered) -> dict[str, float]:
    """How well uncertainty tells questions about what is not there from those of the same form that have an answer."""
    same = [place for place, kind in enumerate(data.data.kinds) if kind == "which"]
    known, unknown = test.uncertainties(), absent.uncertainties()
    positive = torch.tensor([0] * len(same) + [1] * absent.logits.size(1))
    return {
        f"absent_auroc_{name}": auroc(torch.cat([values[same], unknown[name]]), positive)
        for name, values in known.items()
    }


def _by_kind(accurate: Tensor, kinds: Sequence[str]) -> dict[str, float]:
    found = {}
    for kind in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        found[f"test_accuracy/mean/{kind}"] = accurate[places].mean().item()
    return found


def _looking(trained: TrainedAnswers, data: Answered) -> dict[str, float]:
    """Where the attention looks, that the answer is read from."""
    relevant = data.data.relevant
    if relevant is None:
        return {}
    shares, uniform, entropies = [], [], []
    for batch in data.batches(trained.device):
        weights = looked_at(trained, batch)[0]
        looked = relevant[batch.places.cpu()].to(weights.device)
        shares.append((weights * looked).sum(-1))
        uniform.append((looked & batch.region_mask).sum(-1) / batch.region_mask.sum(-1))
        entropies.append(torch.special.entr(weights).sum(-1))
    named = {"relevant_mass": shares, "uniform_mass": uniform, "attention_entropy": entropies}
    return {name: torch.cat(values).mean().item() for name, values in named.items()}


def _hybrid(trained: TrainedAnswers) -> dict[str, float]:
    return {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}


def save_predictions(path: Path, evaluation: Evaluation) -> None:
    """Mean probabilities of all answers to the test questions, their uncertainty, and the accuracy at the mean."""
    arrays = {kind: value.numpy().astype(np.float32) for kind, value in evaluation.probabilities.items()}
    arrays |= {f"{name}_{kind}": value.numpy() for (name, kind), value in evaluation.uncertainties.items()}
    if evaluation.accuracy is not None:
        arrays["accuracy"] = evaluation.accuracy.numpy()
    write_atomic(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
