"""Train a network that answers questions about photographs, evaluate its answers, and ask it one question."""

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

from experiments.data.images.captions import caption_words, open_photograph
from experiments.data.questions.load import Questions, Regions, regions_of
from experiments.data.questions.votes import consensus, vqa_accuracy
from experiments.files import UserError, user_errors, write_atomic
from experiments.folder import saved_config
from experiments.options import Device
from experiments.report.figures import panels, printable, save
from experiments.report.report import as_table
from experiments.report.statistics import KINDS, Row, score, score_samples, score_scaled
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.training import Fitted, fit_batches, load_best
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
LOOKING = {"mcan": "reduce.regions", "bottom_up": "alignment"}
"""The site of each model whose weights say which region the answer is read from."""

UNCERTAINTIES = ("entropy", "mutual_information", "attention_variance")


@dataclass(frozen=True)
class Outputs:
    """What a model says to all questions of a part."""

    logits: Tensor  # samples [S, questions, answers]
    variance: Tensor | None = None  # of the attention over its samples, mean over regions, [questions]

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


def outputs_of(trained: TrainedAnswers, data: Answered, kind: str, *, noise: float = 0.0) -> Outputs:
    """What a network says to all questions, in their order, under a kind of prediction.

    Gaussian noise of this standard deviation on the regions is of the same seed, so the same for all networks.
    """
    varied, config = KINDS[kind], trained.config
    count = 1 if kind == "mean" else config.num_samples
    logits, variances, places = [], [], []
    for number, batch in enumerate(_batches(trained, data, noise)):
        logits.append(trained.module.outputs(batch, num_samples=count, noise=varied, seed=config.seed + number).cpu())
        if varied == "attention" and config.model in LOOKING and count > 1:  # one sample has no variance
            variances.append(looked_at(trained, batch, num_samples=count).var(0).mean(-1).cpu())
        places.append(batch.places.cpu())
    order = torch.cat(places).argsort()
    variance = torch.cat(variances)[order] if variances else None
    return Outputs(torch.cat(logits, 1)[:, order], variance)


def _batches(trained: TrainedAnswers, data: Answered, noise: float) -> Iterator[QuestionBatch]:
    for number, batch in enumerate(data.batches(trained.device, sentences=_BATCH)):
        with seeded(10_000 + number):
            yield batch._replace(regions=batch.regions + noise * torch.randn_like(batch.regions)) if noise else batch


def looked_at(trained: TrainedAnswers, batch: QuestionBatch, *, num_samples: int = 1) -> Tensor:
    """Weights of all regions that the answer is read from, ``[S, B, N]``; a single sample is the posterior mean."""
    inputs = trained.module.arguments(batch)[:4]
    if trained.module.sums_out:
        with torch.no_grad():
            scores = trained.module.objective.model.look(*inputs)[2].squeeze(-2)
        return scores.masked_fill(~batch.region_mask, -torch.inf).softmax(-1).unsqueeze(0)
    drawn = sample_posterior(
        trained.guide, *inputs, num_samples=num_samples, noise="attention" if num_samples > 1 else "none",
        chunk_size=num_samples, seed=trained.config.seed,
    )  # fmt: skip
    return drawn[LOOKING[trained.config.model]].flatten(2)


def evaluate(
    trained: TrainedAnswers, questions: Mapping[str, Questions]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """All metrics of a trained network, and what it says to the test questions; with the same weights, the same.

    Metrics are named ``test_SCORE/KIND``, and behind it the noise on the regions or the kind of question. Besides, by
    kind of prediction, the mean probabilities of all answers, their uncertainties, and the accuracy at the mean.
    """
    data = {part: trained.answered(found) for part, found in questions.items() if part != "train"}
    test, metrics, said, scalings = data["test"], dict[str, float](), dict[str, Tensor](), {}
    kinds = ["mean"]  # of deterministic attention, and of an alignment that is summed out, there are fewer
    if not trained.module.sums_out:
        kinds = list(KINDS) if trained.is_random else ["mean", "mc_dropout"]
    for kind in kinds:
        places, labels = _labels(data["val"])
        scalings[kind] = fit_temperature(outputs_of(trained, data["val"], kind).logits[:, places], labels)
    for noise in trained.config.test_noise:
        accurate, end = torch.empty(0), f"/noise_{noise:g}" if noise else ""
        for kind in kinds:
            outputs = outputs_of(trained, test, kind, noise=noise * trained.module.spread)
            if kind == "mean":
                accurate = accuracies(outputs.probabilities, test)
            found = _scores(outputs, scalings[kind], accurate, test)
            if not noise:
                said |= {kind: outputs.probabilities.float()}
                said |= {f"{name}_{kind}": values for name, values in outputs.uncertainties().items()}
                if "absent" in data:
                    found |= _absent_scores(outputs, outputs_of(trained, data["absent"], kind), test)
            metrics |= {f"test_{name}/{kind}{end}": value for name, value in found.items()}
        if not noise:
            said["accuracy"] = accurate
            for kind in dict.fromkeys(test.data.kinds):
                own = [place for place, other in enumerate(test.data.kinds) if other == kind]
                metrics[f"test_accuracy/mean/{kind}"] = accurate[own].mean().item()
    if trained.config.model in LOOKING and test.data.relevant is not None:
        metrics |= _looking(trained, test, test.data.relevant)
    metrics |= {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}
    return metrics, {name: values.numpy() for name, values in said.items()}


def accuracies(probabilities: Tensor, data: Answered) -> Tensor:
    """Accuracy of the most probable answer to every question, of probabilities ``[questions, answers]``.

    It is 0 or 1, or the official one where several people have answered (:func:`vqa_accuracy`).
    """
    best = probabilities.argmax(-1).tolist()
    if data.data.votes is not None:
        chosen = (data.words.answers[place] for place in best)
        return torch.tensor([vqa_accuracy(*one) for one in zip(chosen, data.data.votes, strict=True)])
    return torch.tensor([float(place == label) for place, label in zip(best, data.labels, strict=True)])


def _labels(data: Answered) -> tuple[Tensor, Tensor]:
    """Places of the questions whose answer has a class, and these classes."""
    known = [(place, label) for place, label in enumerate(data.labels) if label is not None]
    places, labels = zip(*known, strict=True)
    return torch.tensor(places), torch.tensor(labels)


def _scores(outputs: Outputs, scaling: TemperatureScaling, accurate: Tensor, data: Answered) -> dict[str, float]:
    """Scores of one kind of prediction; those of probabilities count questions whose answer has a class."""
    places, labels = _labels(data)
    found = score(outputs.probabilities[places], labels) | score_scaled(scaling, outputs.logits[:, places], labels)
    # the accuracy of answers that people gave, of the most probable one of this kind of prediction
    accurate_here = accuracies(outputs.probabilities, data)
    found["accuracy"] = accurate_here.mean().item()
    uncertainties, wrong = outputs.uncertainties(), accurate_here < 0.5
    if 0 < wrong.sum() < len(wrong):
        found |= {f"auroc_{name}": float(roc_auc_score(wrong, values)) for name, values in uncertainties.items()}
    if len(outputs.logits) > 1:
        found |= score_samples(outputs.logits, accurate)
    return found


def _absent_scores(test: Outputs, absent: Outputs, data: Answered) -> dict[str, float]:
    """How well uncertainty tells questions about what is not there from those of the same form that have an answer."""
    same = [place for place, kind in enumerate(data.data.kinds) if kind == "which"]
    unknown, positive = absent.uncertainties(), torch.arange(len(same) + absent.logits.size(1)) >= len(same)
    return {
        f"absent_auroc_{name}": float(roc_auc_score(positive, torch.cat([values[same], unknown[name]])))
        for name, values in test.uncertainties().items()
    }


def _looking(trained: TrainedAnswers, data: Answered, relevant: Tensor) -> dict[str, float]:
    """Where the attention looks, that the answer is read from."""
    found = defaultdict[str, list[Tensor]](list)
    for batch in data.batches(trained.device, sentences=_BATCH):
        weights = looked_at(trained, batch)[0]
        looked = relevant[batch.places.cpu()].to(weights.device)
        found["relevant_mass"].append((weights * looked).sum(-1))
        found["uniform_mass"].append((looked & batch.region_mask).sum(-1) / batch.region_mask.sum(-1))
        found["attention_entropy"].append(torch.special.entr(weights).sum(-1))
    return {name: torch.cat(values).mean().item() for name, values in found.items()}


def guesses(train: Questions, test: Questions) -> dict[str, float]:
    """Accuracies on the test questions of the most frequent answers of the training, of all and of the same form."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by the form of the question; "" is any
    for place, question in enumerate(train.questions):
        for form in ("", " ".join(question[:2])):
            counts[form].update({train.answers[place]: 1} if train.votes is None else consensus(train.votes[place]))
    # of answers that are as frequent, the first in the alphabet
    best = {form: min(found, key=lambda answer: (-found[answer], answer)) for form, found in counts.items()}

    def accuracy(guess: str, place: int) -> float:
        return float(guess == test.answers[place]) if test.votes is None else vqa_accuracy(guess, test.votes[place])

    majority = fmean(accuracy(best[""], place) for place in range(len(test)))
    guessed = [best.get(" ".join(words[:2]), best[""]) for words in test.questions]
    by_form = fmean(accuracy(guess, place) for place, guess in enumerate(guessed))
    return {"majority_accuracy": majority, "form_accuracy": by_form}


# training, and asking


class VQATask(Task[VQAConfig, TrainedAnswers]):
    """Questions about photographs, or about scenes of digits."""

    config = VQAConfig
    script = "experiments.vqa"

    def folder(self, config: VQAConfig) -> str:
        return f"vqa/{config.dataset}-{config.model}-{config.guide}-{config.seed}"

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
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data, fitted, folder) | fitted.metrics)

    def fit(self, trained: TrainedAnswers, data: Mapping[str, Questions], folder: Path) -> Fitted:
        config = trained.config
        train, val = (trained.answered(data[part]).answerable() for part in ("train", "val"))
        loader = train.loader(sentences=config.batch_size, seed=config.seed)
        in_order = val.loader(sentences=_BATCH, shuffle=False)
        return fit_batches(config, trained.module, loader, in_order, folder=folder, patience=config.patience)

    def evaluate(
        self, trained: TrainedAnswers, data: Mapping[str, Questions], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        metrics, said = evaluate(trained, data)
        arrays: dict[str, Any] = said
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
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
    """What a network says to one question."""

    outputs: Outputs
    answers: list[Row]  # the most probable ones, with credible intervals of their probabilities if there are samples
    weights: Tensor | None  # samples [S, N] of all regions that the answer is read from, if one attention says which
    picture: Path | None  # of these weights

    @property
    def p_value(self) -> float | None:
        """Whether the two most probable answers differ, by a paired t-test over the samples; None without samples."""
        logits = self.outputs.logits
        return top_two_p_values(logits).item() if len(logits) > 1 and logits.size(-1) > 1 else None


def reply_to(
    trained: TrainedAnswers, regions: Regions, words: Sequence[str], photograph: int, path: Path, *,
    num_samples: int = 200,
) -> Reply:  # fmt: skip
    """Ask a question about the photograph at a place of the regions, and draw where the network looks."""
    one = Questions("asked", [list(words)], [""], torch.tensor([photograph]), regions, ["asked"])
    batch = next(trained.answered(one).batches(trained.device, sentences=1))
    count = num_samples if trained.is_random else 1
    noise: Noise = "attention" if trained.is_random else "none"
    outputs = Outputs(trained.module.outputs(batch, num_samples=count, noise=noise, seed=trained.config.seed).cpu())
    samples, rows = outputs.logits.softmax(-1)[:, 0], list[Row]()
    for place in outputs.probabilities[0].argsort(descending=True)[:5].tolist():
        rows.append({"answer": trained.words.answers[place], "probability": f"{samples[:, place].mean():.3f}"})
        if count > 1:
            low, high = samples[:, place].quantile(_TAILS).tolist()
            rows[-1]["95% interval"] = f"[{low:.3f}, {high:.3f}]"
    if trained.config.model not in LOOKING:
        return Reply(outputs, rows, None, None)
    weights = looked_at(trained, batch, num_samples=count)[:, 0]
    title = "{}: {}? {answer} ({probability})".format(trained.config.guide, " ".join(words), **rows[0])
    return Reply(outputs, rows, weights, save(looking_figure(weights, regions, photograph, title=title), path))


def ask(config: AskConfig) -> Reply:
    """Print the answers to a question and how sure the network is of them, and draw where it looks.

    Raises:
        UserError: No such run or photograph, one that cannot be read or encoded, or a question without a word.
    """
    words, place, image = caption_words(config.question), config.place, None
    if not words:
        raise UserError(f"the question '{config.question}' has no word; ask one, such as 'how many are there'")
    if config.photo is not None:  # ahead of the data, which take longer to read
        with user_errors(ValueError, OSError):
            image = open_photograph(config.photo)
    trained, questions = load_trained(config.run, config.device)
    regions = questions["test"].regions
    if image is not None:
        with user_errors(ValueError):
            regions, place = regions_of(image, regions, device=trained.device), 0
        regions = blank(regions) if trained.config.blind else regions
    elif place >= len(regions):
        raise UserError(f"there is no test photograph {place}; expected numbers from 0 to {len(regions) - 1}")
    if unknown := [word for word in words if word not in trained.words.word_ids]:
        print(f"not among the words of the training questions: {', '.join(unknown)}", file=sys.stderr)
    path = config.out or config.run / "figures" / "asked.png"
    reply = reply_to(trained, regions, words, place, path, num_samples=config.num_samples)
    doubt = ", ".join(
        f"{name.replace('_', ' ')} {value.item():.3f} nats" for name, value in reply.outputs.uncertainties().items()
    )
    print(f"{' '.join(words)}?\n\n{as_table(reply.answers)}\n\n{doubt}")
    if (p_value := reply.p_value) is not None:
        print(
            f"p = {p_value:.3g} of a paired t-test that the two most probable answers score the same, over "
            f"{len(reply.outputs.logits)} samples"
        )
    print(reply.picture or f"{trained.config.model} does not read the answer from one latent attention: no picture")
    return reply


def load_trained(folder: Path, device: Device = "auto") -> tuple[TrainedAnswers, dict[str, Questions]]:
    """The network of a finished run, at its best epoch, and the questions of its options; UserError without one."""
    config = saved_config(folder, VQAConfig, script="experiments.vqa", device=device)
    with user_errors(ValueError, OSError):
        questions = load_questions(config)
        trained = build(config, load_words(folder), questions["train"])
        load_best(trained.module, folder)
    trained.module.eval()
    return trained, questions


def looking_figure(weights: Tensor, regions: Regions, photograph: int, *, title: str = "") -> Figure:
    """The photograph, the mean weight of every region, and the width of its credible interval.

    Regions whose photograph is not there are bars with their intervals. The weights are samples ``[S, N]``; of one
    sample there is no interval.
    """
    weights = weights.cpu()
    mean, (low, high) = weights.mean(0), weights.quantile(_TAILS, dim=0)
    if not regions.pictures.numel():
        figure, ((axis,),) = panels(1, 1, size=(6.4, 2.8))
        axis.bar(np.arange(len(mean)), mean.numpy(), color="#1b6ca8", width=0.7)
        axis.vlines(np.arange(len(mean)), low.numpy(), high.numpy(), color="0.25", linewidth=1)
        axis.set(xlabel="region", ylabel="attention")
        figure.suptitle(printable(title), fontsize=11)
        return figure
    shown = [("mean attention", "Blues", mean), ("width of its 95% credible interval", "Purples", high - low)]
    shown = shown[: min(2, len(weights))]
    figure, (axes,) = panels(1, 1 + len(shown), size=(3.2 + 3.2 * len(shown), 3.2))
    patches(regions.pictures[photograph], None, regions.grid, axes=axes[0])
    for axis, (name, colours, values) in zip(axes[1:], shown, strict=True):
        patches(regions.pictures[photograph], values, regions.grid, cmap=colours, axes=axis).set_title(
            name, fontsize=10
        )
        figure.colorbar(axis.images[0], ax=axis, shrink=0.75).ax.tick_params(labelsize=7)
    figure.suptitle(printable(title), fontsize=11)
    return figure
