"""A network that answers questions about photographs: its training, its metrics, and its answer to one question."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.callbacks import require_weights
from experiments.data.images.captions import caption_words, open_photograph
from experiments.data.images.regions import Regions
from experiments.data.questions.load import Questions, regions_of
from experiments.data.questions.votes import consensus, vqa_accuracy
from experiments.files import UserError, check_outputs, user_errors, write_atomic
from experiments.folder import saved_config
from experiments.normalizer_report import save_masses, show_normalizer
from experiments.options import Device
from experiments.report.figures import panels, printable, save
from experiments.report.statistics import KINDS, Row, score, score_samples, score_scaled
from experiments.report.terminal import as_table, wrapped
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.training import Fitted, fit_batches, load_best, masses_of_keys
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.model import Answered, QuestionBatch, TrainedAnswers, blank, build, load_questions, load_words
from pyro_attention import sample_posterior
from pyro_attention.analysis import (
    TemperatureScaling,
    decompose_uncertainty,
    fit_temperature,
    hybrid_weights,
    top_two_p_values,
)
from pyro_attention.plots import patches
from pyro_attention.posterior.predictive import Noise, seeded

_BATCH = 256  # questions at a time, in evaluation
_TAILS = torch.tensor([0.025, 0.975])  # of credible intervals
REGION_SITES = {"mcan": "reduce.regions", "bottom_up": "alignment"}
"""Attention site, by model, whose weights say which region the answer is read from."""

UNCERTAINTIES = ("entropy", "mutual_information", "attention_variance")


@dataclass(frozen=True)
class Outputs:
    """Outputs of a network for all questions of a part."""

    logits: Tensor  # samples [S, questions, answers]
    variance: Tensor | None = None  # variance of the attention over its samples, mean over regions, [questions]

    @property
    def probabilities(self) -> Tensor:
        """Mean probability of every answer, ``[questions, answers]``."""
        return self.logits.softmax(-1).mean(0)

    def uncertainties(self) -> dict[str, Tensor]:
        """Return those of the ``UNCERTAINTIES`` that these outputs have, for every question ``[questions]``."""
        if len(self.logits) == 1:
            return {"entropy": torch.special.entr(self.probabilities).sum(-1)}
        parts = decompose_uncertainty(self.logits.softmax(-1))
        uncertainties = {"entropy": parts.total, "mutual_information": parts.mutual_information}
        return uncertainties if self.variance is None else uncertainties | {"attention_variance": self.variance}


def outputs_of(trained: TrainedAnswers, data: Answered, kind: str, *, noise: float = 0.0) -> Outputs:
    """Return the outputs of a network for all questions, in their order, by a kind of prediction.

    ``noise`` is the standard deviation of Gaussian noise on the regions, which is the same for all networks.
    """
    noise_kind, config = KINDS[kind], trained.config
    count = 1 if kind == "mean" else config.num_samples
    logits, variances, indices = [], [], []
    for number, batch in enumerate(_batches(trained, data, noise)):
        logits.append(
            trained.module.outputs(batch, num_samples=count, noise=noise_kind, seed=config.seed + number).cpu()
        )
        if noise_kind == "attention" and config.model in REGION_SITES and count > 1:  # one sample has no variance
            variances.append(region_weights(trained, batch, num_samples=count).var(0).mean(-1).cpu())
        indices.append(batch.indices.cpu())
    order = torch.cat(indices).argsort()
    variance = torch.cat(variances)[order] if variances else None
    return Outputs(torch.cat(logits, 1)[:, order], variance)


def _batches(trained: TrainedAnswers, data: Answered, noise: float) -> Iterator[QuestionBatch]:
    for number, batch in enumerate(data.batches(trained.device, sentences=_BATCH)):
        with seeded(10_000 + number):
            yield batch._replace(regions=batch.regions + noise * torch.randn_like(batch.regions)) if noise else batch


def region_weights(trained: TrainedAnswers, batch: QuestionBatch, *, num_samples: int = 1) -> Tensor:
    """Return the weights that read the answer from the regions, ``[S, B, N]``; one sample is the posterior mean."""
    inputs = trained.module.arguments(batch)[:4]
    if trained.module.sums_out:
        with torch.no_grad():
            scores = trained.module.objective.model.look(*inputs)[2].squeeze(-2)
        return scores.masked_fill(~batch.region_mask, -torch.inf).softmax(-1).unsqueeze(0)
    drawn = sample_posterior(
        trained.guide, *inputs, num_samples=num_samples, noise="attention" if num_samples > 1 else "none",
        chunk_size=num_samples, seed=trained.config.seed,
    )  # fmt: skip
    return drawn[REGION_SITES[trained.config.model]].flatten(2)


def key_masses(trained: TrainedAnswers, data: Answered) -> dict[str, Tensor]:
    """Return the mass of every region of the other views by attention site, ``[questions' regions, heads]``.

    The mass is the sum of the weights that the regions of the first view give to it, at the mean of the attention.
    """
    masses = defaultdict[str, list[Tensor]](list)
    for batch in data.batches(trained.device, sentences=_BATCH):
        weights = sample_posterior(trained.guide, *trained.module.arguments(batch)[:4], num_samples=1, noise="none")
        for view, (site, sample) in enumerate(weights.items(), start=1):
            masses[site].append(masses_of_keys(sample[0], batch.region_mask[:, 0], batch.region_mask[:, view]))
    return {site: torch.cat(parts) for site, parts in masses.items()}


def evaluate(
    trained: TrainedAnswers, questions: Mapping[str, Questions]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return all metrics of a trained network, and its predictions for the test questions.

    The same weights give the same numbers. Metrics are named ``test_SCORE/KIND``, followed by the noise on the regions
    or the kind of question. Predictions are, by kind of prediction, the mean probabilities of all answers and their
    uncertainties, and the accuracy at the mean.
    """
    data = {part: trained.answered(asked) for part, asked in questions.items() if part != "train"}
    test, metrics, predictions, scalings = data["test"], dict[str, float](), dict[str, Tensor](), {}
    kinds = ["mean"]  # deterministic attention and an alignment that is summed out have fewer kinds
    if not trained.module.sums_out:
        kinds = list(KINDS) if trained.is_random else ["mean", "mc_dropout"]
    for kind in kinds:
        indices, labels = _labels(data["val"])
        scalings[kind] = fit_temperature(outputs_of(trained, data["val"], kind).logits[:, indices], labels)
    for noise in trained.config.test_noise:
        accurate, suffix = torch.empty(0), f"/noise_{noise:g}" if noise else ""
        for kind in kinds:
            outputs = outputs_of(trained, test, kind, noise=noise * trained.module.spread)
            if kind == "mean":
                accurate = accuracies(outputs.probabilities, test)
            scores = _scores(outputs, scalings[kind], accurate, test)
            if not noise:
                predictions |= {kind: outputs.probabilities.float()}
                predictions |= {f"{name}_{kind}": values for name, values in outputs.uncertainties().items()}
                if "absent" in data:
                    scores |= _absent_scores(outputs, outputs_of(trained, data["absent"], kind), test)
            metrics |= {f"test_{name}/{kind}{suffix}": value for name, value in scores.items()}
        if not noise:
            predictions["accuracy"] = accurate
            for kind in dict.fromkeys(test.data.kinds):
                of_kind = [index for index, other in enumerate(test.data.kinds) if other == kind]
                metrics[f"test_accuracy/mean/{kind}"] = accurate[of_kind].mean().item()
    if trained.config.model in REGION_SITES and test.data.relevant is not None:
        metrics |= _attention_scores(trained, test, test.data.relevant)
    metrics |= {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}
    return metrics, {name: values.numpy() for name, values in predictions.items()}


def accuracies(probabilities: Tensor, data: Answered) -> Tensor:
    """Return the accuracy of the most probable answer to every question; probabilities are ``[questions, answers]``.

    It is 0 or 1, or the official accuracy where several people have answered (:func:`vqa_accuracy`).
    """
    best = probabilities.argmax(-1).tolist()
    if data.data.votes is not None:
        chosen = (data.words.answers[index] for index in best)
        return torch.tensor([vqa_accuracy(*pair) for pair in zip(chosen, data.data.votes, strict=True)])
    return torch.tensor([float(index == label) for index, label in zip(best, data.labels, strict=True)])


def _labels(data: Answered) -> tuple[Tensor, Tensor]:
    """Return the indices of the questions whose answer has a class, and these classes."""
    known = [(index, label) for index, label in enumerate(data.labels) if label is not None]
    indices, labels = zip(*known, strict=True)
    return torch.tensor(indices), torch.tensor(labels)


def check_answers(trained: TrainedAnswers, data: Mapping[str, Questions]) -> None:
    """Refuse data in which no answer of a part can be learned.

    Raises:
        ValueError: There is one class, or no question to validate or to test on has an answer that is one of them.
    """
    if len(trained.words.answers) < 2:
        raise ValueError(
            f"train: the answer {trained.words.answers[0]!r} is the only one to choose from, expected two or more; add "
            f"questions with another answer, or raise --answers"
        )
    for part in ("val", "test"):
        labels, classes = trained.answered(data[part]).labels, len(trained.words.answers)
        if all(label is None for label in labels):
            raise ValueError(
                f"{part}: none of its {len(labels)} questions has an answer among the {classes} most frequent ones of "
                f"the training; expected one at least; add questions, or raise --answers"
            )


def _scores(outputs: Outputs, scaling: TemperatureScaling, accurate: Tensor, data: Answered) -> dict[str, float]:
    """Score one kind of prediction; scores of probabilities use the questions whose answer has a class."""
    indices, labels = _labels(data)
    scores = score(outputs.probabilities[indices], labels) | score_scaled(scaling, outputs.logits[:, indices], labels)
    # accuracy of the most probable answer by this kind of prediction, judged by the answers of people
    accurate_here = accuracies(outputs.probabilities, data)
    scores["accuracy"] = accurate_here.mean().item()
    uncertainties, wrong = outputs.uncertainties(), accurate_here < 0.5
    if 0 < wrong.sum() < len(wrong):
        scores |= {f"auroc_{name}": float(roc_auc_score(wrong, values)) for name, values in uncertainties.items()}
    if len(outputs.logits) > 1:
        scores |= score_samples(outputs.logits, accurate)
    return scores


def _absent_scores(test: Outputs, absent: Outputs, data: Answered) -> dict[str, float]:
    """Return the areas under the ROC curve by which uncertainty separates unanswerable from answerable questions.

    Unanswerable questions ask about a digit that is not in the scene; the answerable ones have the same form.
    """
    indices = [index for index, kind in enumerate(data.data.kinds) if kind == "which"]
    unknown, positive = absent.uncertainties(), torch.arange(len(indices) + absent.logits.size(1)) >= len(indices)
    return {
        f"absent_auroc_{name}": float(roc_auc_score(positive, torch.cat([values[indices], unknown[name]])))
        for name, values in test.uncertainties().items()
    }


def _attention_scores(trained: TrainedAnswers, data: Answered, relevant: Tensor) -> dict[str, float]:
    """Return the mean mass of the attention on relevant regions, that of uniform attention, and the mean entropy."""
    scores = defaultdict[str, list[Tensor]](list)
    for batch in data.batches(trained.device, sentences=_BATCH):
        weights = region_weights(trained, batch)[0]
        relevant_regions = relevant[batch.indices.cpu()].to(weights.device)
        scores["relevant_mass"].append((weights * relevant_regions).sum(-1))
        scores["uniform_mass"].append((relevant_regions & batch.region_mask).sum(-1) / batch.region_mask.sum(-1))
        scores["attention_entropy"].append(torch.special.entr(weights).sum(-1))
    return {name: torch.cat(values).mean().item() for name, values in scores.items()}


def guesses(train: Questions, test: Questions) -> dict[str, float]:
    """Return the test accuracies of two guesses: the most frequent answer overall, and for the same first two words."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by the form of the question; "" is any
    for index, question in enumerate(train.questions):
        for form in ("", " ".join(question[:2])):
            counts[form].update({train.answers[index]: 1} if train.votes is None else consensus(train.votes[index]))
    # of equally frequent answers the first in the alphabet
    best = {form: min(answers, key=lambda answer: (-answers[answer], answer)) for form, answers in counts.items()}

    def accuracy(guess: str, index: int) -> float:
        return float(guess == test.answers[index]) if test.votes is None else vqa_accuracy(guess, test.votes[index])

    majority = fmean(accuracy(best[""], index) for index in range(len(test)))
    guessed = [best.get(" ".join(words[:2]), best[""]) for words in test.questions]
    by_form = fmean(accuracy(guess, index) for index, guess in enumerate(guessed))
    return {"majority_accuracy": majority, "form_accuracy": by_form}


# training, and asking


class VQATask(Task[VQAConfig, TrainedAnswers]):
    """Training on questions about photographs, or about scenes of digits."""

    config = VQAConfig
    script = "experiments.vqa"

    def folder(self, config: VQAConfig) -> str:
        return f"vqa/{config.dataset}-{config.model}-{config.guide}-{config.seed}"

    def main_metrics(self, config: VQAConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return ("test_accuracy/mean", "test_nll/mean", "test_ece/mean", "relevant_mass", "uniform_mass", "val_accuracy")

    def restore(self, config: VQAConfig, folder: Path) -> TrainedAnswers:
        return build(config, load_words(folder), load_questions(config)["train"])

    def run(self, config: VQAConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = load_questions(config)
                folder = run.begin()
                trained = build(config, load_words(folder, data["train"], answers=config.answers), data["train"])
                check_answers(trained, data)
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data, fitted, folder) | fitted.metrics)

    def fit(self, trained: TrainedAnswers, data: Mapping[str, Questions], folder: Path) -> Fitted:
        config = trained.config
        train, val = (trained.answered(data[part]).answerable() for part in ("train", "val"))
        loader = train.loader(sentences=config.batch_size, seed=config.seed)
        in_order = val.loader(sentences=_BATCH, shuffle=False)
        return fit_batches(config, trained.module, loader, in_order, folder=folder, patience=config.patience)

    def show(self, config: VQAConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        if config.views_attend:
            show_normalizer(str(config.normalizer), folder)

    def evaluate(
        self, trained: TrainedAnswers, data: Mapping[str, Questions], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        metrics, predictions = evaluate(trained, data)
        arrays: dict[str, Any] = predictions
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        if trained.config.views_attend:
            metrics |= save_masses(folder, key_masses(trained, trained.answered(data["test"])))
        best = fitted.history[fitted.best_epoch]
        return {
            **metrics,
            **guesses(data["train"], data["test"]),
            **{name: best[name] for name in ("val_accuracy", "val_loss")},
            "train_questions": len(trained.answered(data["train"]).answerable()),
        }


def train(config: VQAConfig) -> None:
    """Run the command."""
    task = VQATask()
    show_run(task, config, task.run(config))


class Reply(NamedTuple):
    """Answer of a network to one question, with its uncertainty and the attention behind it."""

    outputs: Outputs
    answers: list[Row]  # the most probable answers; with samples also credible intervals of their probabilities
    weights: Tensor | None  # samples [S, N] of the weights of the regions; None for a model without such a site
    picture: Path | None  # picture of these weights

    @property
    def p_value(self) -> float | None:
        """P-value of a paired t-test that the two most probable answers have equal logits; None without samples."""
        logits = self.outputs.logits
        return top_two_p_values(logits).item() if len(logits) > 1 and logits.size(-1) > 1 else None


def reply_to(
    trained: TrainedAnswers, regions: Regions, words: Sequence[str], photograph: int, path: Path, *,
    num_samples: int = 200,
) -> Reply:  # fmt: skip
    """Answer a question about the photograph with this index, and draw the attention to its regions."""
    questions = Questions("asked", [list(words)], [""], torch.tensor([photograph]), regions, ["asked"])
    batch = next(trained.answered(questions).batches(trained.device, sentences=1))
    count = num_samples if trained.is_random else 1
    noise: Noise = "attention" if trained.is_random else "none"
    outputs = Outputs(trained.module.outputs(batch, num_samples=count, noise=noise, seed=trained.config.seed).cpu())
    samples, rows = outputs.logits.softmax(-1)[:, 0], list[Row]()
    for index in outputs.probabilities[0].argsort(descending=True)[:5].tolist():
        rows.append({"answer": trained.words.answers[index], "probability": f"{samples[:, index].mean():.3f}"})
        if count > 1:
            low, high = samples[:, index].quantile(_TAILS).tolist()
            rows[-1]["95% interval"] = f"[{low:.3f}, {high:.3f}]"
    if trained.config.model not in REGION_SITES:
        return Reply(outputs, rows, None, None)
    weights = region_weights(trained, batch, num_samples=count)[:, 0]
    answer = "{answer} (probability {probability})".format(**rows[0])
    title = printable(f"{' '.join(words)}? {answer}")
    title += f"\n{trained.config.guide}, {count} draw{'s' * (count > 1)} of the attention"
    return Reply(outputs, rows, weights, save(looking_figure(weights, regions, photograph, title=title), path))


def ask(config: AskConfig) -> Reply:
    """Print the answers to a question with their uncertainty, and draw the attention to the regions.

    Raises:
        UserError: No such run or image, a photograph that cannot be read or encoded, a file that would be replaced, or
            a question without a word.
    """
    words, number, image = caption_words(config.question), config.image, None
    if not words:
        raise UserError(f"the question '{config.question}' has no word; ask one, such as 'how many are there'")
    path = config.out or config.run / "figures" / "asked.png"
    # ahead of the data, which take longer to read; what is among the figures of the run is its own
    check_outputs([path], [config.photo] if config.photo else [], overwrite=config.overwrite or config.out is None)
    if config.photo is not None:
        with user_errors(ValueError, OSError):
            image = open_photograph(config.photo)
    trained, questions = load_trained(config.run, config.device)
    regions = questions["test"].regions
    if image is not None:
        with user_errors(ValueError):
            regions, number = regions_of(image, regions, device=trained.device), 0
        regions = blank(regions) if trained.config.blind else regions
    elif number >= len(regions):
        raise UserError(f"there is no test image {number}; expected --image from 0 to {len(regions) - 1}")
    if unknown := [word for word in words if word not in trained.words.word_ids]:
        print(f"not among the words of the training questions: {', '.join(unknown)}", file=sys.stderr)
    reply = reply_to(trained, regions, words, number, path, num_samples=config.num_samples)
    uncertainties = ", ".join(
        f"{name.replace('_', ' ')} {value.item():.3f} nats" for name, value in reply.outputs.uncertainties().items()
    )
    print(f"{' '.join(words)}?\n\n{as_table(reply.answers)}\n\n{wrapped(uncertainties)}")
    if (p_value := reply.p_value) is not None:
        text = f"p = {p_value:.3g} of a paired t-test that the two most probable answers have equal logits, over "
        print(wrapped(f"{text}{len(reply.outputs.logits)} samples"))
    no_picture = f"{trained.config.model} does not read the answer from one latent attention: no picture"
    print(reply.picture or wrapped(no_picture))
    return reply


def load_trained(folder: Path, device: Device = "auto") -> tuple[TrainedAnswers, dict[str, Questions]]:
    """Load the network of a finished run at its best epoch, and its questions; raise UserError without such a run."""
    config = saved_config(folder, VQAConfig, script="experiments.vqa", device=device)
    require_weights(folder)  # ahead of the data, which take longer to read
    with user_errors(ValueError, OSError):
        questions = load_questions(config)
        trained = build(config, load_words(folder), questions["train"])
        load_best(trained.module, folder)
    trained.module.eval()
    return trained, questions


def looking_figure(weights: Tensor, regions: Regions, photograph: int, *, title: str = "") -> Figure:
    """Draw a photograph, the mean weight of every region, and the width of its 95 % credible interval.

    Regions without a photograph are drawn as bars with their intervals. The weights are samples ``[S, N]``; a single
    sample has no interval.
    """
    weights = weights.cpu()
    mean, (low, high) = weights.mean(0), weights.quantile(_TAILS, dim=0)
    if not regions.pictures.numel():
        figure, ((axis,),) = panels(1, 1, size=(6.4, 2.8))
        axis.bar(np.arange(len(mean)), mean.numpy(), color="#1b6ca8", width=0.7)
        axis.vlines(np.arange(len(mean)), low.numpy(), high.numpy(), color="0.25", linewidth=1)
        axis.set(xlabel="region", ylabel="attention and its 95 % interval")
        figure.suptitle(title, fontsize=11)
        return figure
    drawn = [("mean attention to a region", "Blues", mean), ("width of its 95 % interval", "Purples", high - low)]
    drawn = drawn[: min(2, len(weights))]
    figure, (axes,) = panels(1, 1 + len(drawn), size=(3.2 + 3.2 * len(drawn), 3.2))
    patches(regions.pictures[photograph], None, regions.grid, axes=axes[0]).set_title("picture", fontsize=10)
    for axis in axes:
        axis.spines[:].set_visible(False)
    for axis, (name, colors, values) in zip(axes[1:], drawn, strict=True):
        patches(regions.pictures[photograph], values, regions.grid, cmap=colors, axes=axis).set_title(name, fontsize=10)
        figure.colorbar(axis.images[0], ax=axis, shrink=0.75).ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=11)
    return figure
