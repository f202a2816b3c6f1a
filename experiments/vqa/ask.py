"""Use a trained network: ask it one question and draw where it looks, or evaluate it again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from experiments.datasets.images.captions import caption_words, open_photograph
from experiments.datasets.questions.data import Questions, Regions
from experiments.files import UserError, user_errors
from experiments.harness.folder import saved_config
from experiments.harness.options import Device
from experiments.harness.training import load_best
from experiments.report.columns import Row
from experiments.report.figures import overlay, panels, printable, save
from experiments.report.tables import as_table, metrics_table
from experiments.vqa.config import AskConfig, EvaluateConfig, VQAConfig
from experiments.vqa.data import load_questions, load_words, own_photograph
from experiments.vqa.evaluation import LOOKING, Outputs, evaluate, looked_at
from experiments.vqa.model import TrainedAnswers, build
from pyro_attention.analysis import CredibleIntervals, credible_intervals
from pyro_attention.posterior.predictive import Noise

__all__ = ["Reply", "ask", "draw_questions", "evaluate_run", "load_trained", "looking_figure", "reply_to"]

LEVEL = 0.95
# Why a photograph of one's own cannot be asked about.
_WITHOUT_PHOTOGRAPHS = {
    "digits": "questions are about scenes of handwritten digits, which a photograph is not",
    "vqa_v2": "features of regions are read from files, and the detector that has made them is not at hand",
}


@dataclass(frozen=True)
class Reply:
    """What a network says to one question.

    Attributes:
        outputs: Samples of the logits of all answers, of one question.
        weights: Samples of the weights of all regions that the answer is read from, ``[S, N]``; None of a network that
            has no one attention for that.
    """

    outputs: Outputs
    weights: Tensor | None

    def rows(self, answers: Sequence[str], count: int) -> list[Row]:
        """The most probable answers, with the credible intervals of their probabilities where there are samples."""
        samples, rows = self.outputs.logits.softmax(-1)[:, 0], list[Row]()
        tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        for place in self.outputs.probabilities[0].argsort(descending=True)[:count].tolist():
            cells: Row = {"answer": answers[place], "probability": f"{samples[:, place].mean():.3f}"}
            if len(samples) > 1:
                low, high = samples[:, place].quantile(tails).tolist()
                cells[f"{LEVEL:.0%} interval"] = f"[{low:.3f}, {high:.3f}]"
            rows.append(cells)
        return rows

    def uncertainty(self) -> str:
        """Entropy of the answer, and its mutual information with the attention, in words."""
        names = {"entropy": "entropy", "mutual_information": "mutual information with the attention"}
        found = self.outputs.uncertainties()
        return ", ".join(f"{text} {found[name].item():.3f} nats" for name, text in names.items() if name in found)


def reply_to(
    trained: TrainedAnswers, regions: Regions, words: Sequence[str], photograph: int, *, num_samples: int
) -> Reply:
    """Ask a question about the photograph at a place of the regions."""
    one = Questions("asked", [list(words)], [{}], torch.tensor([photograph]), regions, ["asked"])
    batch = next(trained.answered(one).batches(trained.device))
    count = num_samples if trained.is_random else 1
    noise: Noise = "attention" if trained.is_random else "none"
    logits = trained.module.outputs(batch, num_samples=count, noise=noise, seed=trained.config.seed)
    weights = looked_at(trained, batch, num_samples=count)[:, 0] if trained.config.model in LOOKING else None
    return Reply(Outputs(logits.cpu()), weights)


def ask(config: AskConfig) -> Reply:
    """Print the answers to a question and how sure the network is of them, and draw where it looks.

    Raises:
        UserError: No such run or photograph, one that cannot be read or encoded, or a question without a word.
    """
    words = caption_words(config.question)
    if not words:
        raise UserError(f"the question '{config.question}' has no word; ask one, such as 'how many are there'")
    image = None if config.photo is None else _opened(config.photo, config)
    trained, questions = load_trained(config.run, config.device, train_encoder=image is None)
    regions, place = questions["test"].regions, config.place
    if image is not None:
        with user_errors(ValueError):
            regions, place = own_photograph(image, trained.config, regions), 0
    elif place >= len(regions):
        raise UserError(f"there is no test photograph {place}; expected numbers from 0 to {len(regions) - 1}")
    if unknown := [word for word in words if word not in trained.words.word_ids]:
        print(f"not among the words of the training questions: {', '.join(unknown)}", file=sys.stderr)
    reply = reply_to(trained, regions, words, place, num_samples=config.num_samples)
    print(
        f"{' '.join(words)}?\n\n{as_table(reply.rows(trained.words.answers, config.answers))}\n\n{reply.uncertainty()}"
    )
    if not trained.is_random:
        print(f"{trained.config.guide} attention predicts without samples, so there are no intervals")
    if reply.weights is None:
        print(f"{trained.config.model} does not read the answer from one latent attention, so there is no picture")
    else:
        path = config.out or config.run / "figures" / "asked.png"
        figure = looking_figure(reply.weights, regions, place, title=_title(reply, words, trained))
        print(save(figure, path))
    return reply


def draw_questions(
    folder: Path, count: int, *, device: Device = "auto", out: Path | None = None, name: str = "question"
) -> list[Path]:
    """Draw where the network of a run looks at some test questions, which lie as far apart as they can."""
    trained, questions = load_trained(folder, device)
    if trained.config.model not in LOOKING:
        return []
    data, paths = questions["test"], list[Path]()
    for place in torch.linspace(0, len(data) - 1, count).long().unique().tolist():
        words, photograph = data.questions[place], int(data.photographs[place])
        reply = reply_to(trained, data.regions, words, photograph, num_samples=200)
        if reply.weights is not None:
            figure = looking_figure(reply.weights, data.regions, photograph, title=_title(reply, words, trained))
            paths.append(save(figure, (out or folder / "figures") / f"{name}-{place}.png"))
    return paths


def evaluate_run(config: EvaluateConfig) -> dict[str, float]:
    """Print the metrics of a run's network on its test questions."""
    trained, questions = load_trained(config.run, config.device)
    changes = {name: getattr(config, name) for name in ("num_samples", "test_noise")}
    changed = replace(trained.config, **{name: value for name, value in changes.items() if value is not None})
    metrics = evaluate(replace(trained, config=changed), questions).metrics
    print(metrics_table(metrics))
    return metrics


def _opened(photo: Path, config: AskConfig) -> Image.Image:
    """A photograph of one's own, ahead of the data, which take longer to read."""
    dataset = saved_config(config.run, VQAConfig, script="experiments.vqa").dataset
    if dataset in _WITHOUT_PHOTOGRAPHS:
        raise UserError(
            f"--photo {photo}: {_WITHOUT_PHOTOGRAPHS[dataset]} (dataset is {dataset}); ask about its test part by "
            f"--place, or train on easy_vqa or daquar"
        )
    with user_errors(ValueError, OSError):
        return open_photograph(photo)


def load_trained(
    folder: Path, device: Device = "auto", *, train_encoder: bool = True
) -> tuple[TrainedAnswers, dict[str, Questions]]:
    """The network of a finished run, at its best epoch, and the questions of its options.

    Raises:
        UserError: The folder holds no run, or one of another network.
    """
    config = saved_config(folder, VQAConfig, script="experiments.vqa", device=device)
    with user_errors(ValueError, OSError):
        questions = load_questions(config, train_encoder=train_encoder)
        trained = build(config, load_words(folder), questions["train"])
        load_best(trained.module, folder)
    trained.module.eval()
    return trained, questions


def _title(reply: Reply, words: Sequence[str], trained: TrainedAnswers) -> str:
    (best,) = reply.rows(trained.words.answers, 1)
    return f"{trained.config.guide}: {' '.join(words)}? {best['answer']} ({best['probability']})"


def looking_figure(weights: Tensor, regions: Regions, photograph: int, *, title: str = "") -> Figure:
    """The photograph, the mean weight of every region, and the width of its credible interval.

    Regions that are no cells of a grid, or whose photograph is not there, are bars with their intervals.

    Args:
        weights: Samples ``[S, N]``; of one sample there is no interval.
        regions: The regions of all photographs.
        photograph: Place of the photograph.
        title: Title.
    """
    found = credible_intervals(weights.cpu().unsqueeze(1), level=LEVEL) if len(weights) > 1 else None
    mean = weights.cpu().mean(0)
    if regions.pictures is None or regions.grid is None:
        figure, ((axis,),) = panels(1, 1, size=(6.4, 2.8))
        _bars(axis, mean, found)
    else:
        picture, grid = regions.pictures[photograph], regions.grid
        shown: list[tuple[str, str | None, Tensor | None]] = [("", None, None), ("mean attention", "Blues", mean)]
        if found is not None:
            shown.append((f"width of its {LEVEL:.0%} credible interval", "Purples", (found.high - found.low)[0]))
        figure, (axes,) = panels(1, len(shown), size=(3.2 * len(shown), 3.2))
        for axis, (name, colours, values) in zip(axes, shown, strict=True):
            heat = overlay(axis, picture, grid, values, colours, name=name)
            if values is not None:
                figure.colorbar(heat, ax=axis, shrink=0.75).ax.tick_params(labelsize=7)
    figure.suptitle(printable(title), fontsize=11)
    return figure


def _bars(axis: Axes, mean: Tensor, found: CredibleIntervals | None) -> None:
    places = np.arange(len(mean))
    axis.bar(places, mean.numpy(), color="#1b6ca8", width=0.7)
    if found is not None:
        axis.vlines(places, found.low[0].numpy(), found.high[0].numpy(), color="0.25", linewidth=1)
    axis.set(xlabel="region", ylabel="attention")
