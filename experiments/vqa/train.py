"""Train a network that answers questions about photographs, and ask it one question."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.datasets.images.captions import caption_words, open_photograph
from experiments.datasets.questions.data import Questions, Regions
from experiments.datasets.questions.load import regions_of
from experiments.files import UserError, user_errors, write_atomic
from experiments.harness.folder import saved_config
from experiments.harness.options import Device
from experiments.harness.training import Fitted, fit_batches, load_best
from experiments.report.figures import panels, printable, save
from experiments.report.report import as_table, metrics_table
from experiments.report.statistics import Row
from experiments.run import Task, run_and_show
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.evaluation import LOOKING, Outputs, definitions, evaluate, guesses, looked_at
from experiments.vqa.model import TrainedAnswers, blank, build, load_questions, load_words
from pyro_attention.plots import patches
from pyro_attention.posterior.predictive import Noise

_TAILS = torch.tensor([0.025, 0.975])  # of credible intervals


class VQATask(Task[VQAConfig, Mapping[str, Questions], TrainedAnswers]):
    """Questions about photographs, or about scenes of digits."""

    config = VQAConfig
    script = "experiments.vqa"

    def folder(self, config: VQAConfig) -> str:
        return f"vqa/{config.dataset}-{config.model}-{config.guide}-{config.seed}"

    def load(self, config: VQAConfig) -> Mapping[str, Questions]:
        return load_questions(config)

    def build(self, config: VQAConfig, data: Mapping[str, Questions], folder: Path) -> TrainedAnswers:
        return build(config, load_words(folder, data["train"], answers=config.answers), data["train"])

    def fit(self, trained: TrainedAnswers, data: Mapping[str, Questions], folder: Path) -> Fitted:
        config = trained.config
        train, val = (trained.answered(data[part]).answerable() for part in ("train", "val"))
        loader = train.loader(sentences=config.batch_size, seed=config.seed)
        in_order = val.loader(sentences=256, shuffle=False)
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

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)

    def show(self, config: VQAConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(metrics_table(metrics))
        trained, questions = load_trained(folder, config.device)
        data = questions["test"]
        for place in torch.linspace(0, len(data) - 1, 3).long().unique().tolist():  # as far apart as they can be
            words, photograph, path = data.questions[place], int(data.photographs[place]), f"question-{place}.png"
            print(reply_to(trained, data.regions, words, photograph, folder / "figures" / path).picture or "")


train = partial(run_and_show, VQATask())


class Reply(NamedTuple):
    """What a network says to one question."""

    outputs: Outputs
    answers: list[Row]  # the most probable ones, with credible intervals of their probabilities if there are samples
    weights: Tensor | None  # samples [S, N] of all regions that the answer is read from, if one attention says which
    picture: Path | None  # of these weights


def reply_to(
    trained: TrainedAnswers, regions: Regions, words: Sequence[str], photograph: int, path: Path, *,
    num_samples: int = 200,
) -> Reply:  # fmt: skip
    """Ask a question about the photograph at a place of the regions, and draw where the network looks."""
    one = Questions("asked", [list(words)], [{}], torch.tensor([photograph]), regions, ["asked"])
    batch = next(trained.answered(one).batches(trained.device))
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
    trained, questions = load_trained(config.run, config.device, train_encoder=image is None)
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
    print(reply.picture or f"{trained.config.model} does not read the answer from one latent attention: no picture")
    return reply


def load_trained(
    folder: Path, device: Device = "auto", *, train_encoder: bool = True
) -> tuple[TrainedAnswers, dict[str, Questions]]:
    """The network of a finished run, at its best epoch, and the questions of its options; UserError without one."""
    config = saved_config(folder, VQAConfig, script="experiments.vqa", device=device)
    with user_errors(ValueError, OSError):
        questions = load_questions(config, train_encoder=train_encoder)
        trained = build(config, load_words(folder), questions["train"])
        load_best(trained.module, folder)
    trained.module.eval()
    return trained, questions


def looking_figure(weights: Tensor, regions: Regions, photograph: int, *, title: str = "") -> Figure:
    """The photograph, the mean weight of every region, and the width of its credible interval.

    Regions that are no cells of a grid, or whose photograph is not there, are bars with their intervals. The weights
    are samples ``[S, N]``; of one sample there is no interval.
    """
    weights = weights.cpu()
    mean, (low, high) = weights.mean(0), weights.quantile(_TAILS, dim=0)
    if regions.pictures is None or regions.grid is None:
        figure, ((axis,),) = panels(1, 1, size=(6.4, 2.8))
        axis.bar(np.arange(len(mean)), mean.numpy(), color="#1b6ca8", width=0.7)
        axis.vlines(np.arange(len(mean)), low.numpy(), high.numpy(), color="0.25", linewidth=1)
        axis.set(xlabel="region", ylabel="attention")
    else:
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
