"""Asking a trained network: answers with intervals, the picture of where it looks, and bad input."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.datasets.questions.data import Regions
from experiments.harness.cli import run_commands
from experiments.vqa.ask import ask, draw_questions, reply_to
from experiments.vqa.config import AskConfig
from experiments.vqa.figures import looking_figure
from experiments.vqa.model import load_trained
from experiments.vqa.train import run
from tests.experiments.vqa.tiny_questions import few_digits, tiny_config


def command(*arguments):
    words = list(map(str, arguments))
    return run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa", arguments=words)


def test_ask(weibull_run, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    options = ("--place", 2, "--num-samples", 50, "--answers", 3, "--out", picture)
    assert command("ask", weibull_run, "What digit is left of the Seven?", *options) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "what digit is left of the seven?"
    assert lines[2].split() == ["answer", "probability", "95%", "interval"]
    rows = [line.split() for line in lines[3:6]]
    for _, probability, low, high in rows:
        assert float(low.strip("[,")) <= float(probability) <= float(high.strip("]"))
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)
    assert "mutual information with the attention" in printed.out
    assert not printed.err
    with Image.open(picture) as image:
        assert image.size[0] > 1000  # the scene and two maps


def test_the_intervals_are_those_of_the_samples(weibull_run):
    questions = few_digits(1)
    trained = load_trained(weibull_run, questions["train"])
    trained.module.eval()
    reply = reply_to(trained, questions["test"].regions, ["how", "many"], 1, num_samples=30)
    assert reply.weights.shape == (30, 9)
    torch.testing.assert_close(reply.weights.sum(-1), torch.ones(30))
    samples = reply.outputs.logits.softmax(-1)[:, 0].numpy()
    (row,) = reply.rows(trained.words.answers, 1)
    place = trained.words.answers.index(row["answer"])
    assert place == samples.mean(0).argmax()
    low, high = np.quantile(samples[:, place], [0.025, 0.975])
    assert row["95% interval"] == f"[{low:.3f}, {high:.3f}]"
    entropy = -sum(p * math.log(p) for p in samples.mean(0).tolist())
    assert f"entropy {entropy:.3f} nats" in reply.uncertainty()


@pytest.mark.parametrize(
    ("options", "said", "drawn"),
    [
        ({"guide": "soft"}, "there are no intervals", True),
        ({"model": "bottom_up", "guide": "marginal"}, "there are no intervals", True),
        ({"model": "multi_view", "guide": "weibull"}, "no picture", False),
    ],
)
def test_other_networks(options, said, drawn, tmp_path, capsys):
    run(tiny_config(tmp_path, test_noise=(0.0,), num_samples=1, **options))
    reply = ask(AskConfig(run=tmp_path, question="how many", num_samples=4))
    printed = capsys.readouterr().out
    assert said in printed
    assert (tmp_path / "figures" / "asked.png").is_file() == drawn == (reply.weights is not None)
    assert len(draw_questions(tmp_path, 2)) == 2 * drawn


def test_unknown_words_are_named(weibull_run, tmp_path, capsys):
    ask(AskConfig(run=weibull_run, question="is there a zebra", num_samples=2, out=tmp_path / "a.png"))
    assert "zebra" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  ?"], "has no word"),
        (["how many", "--place", "6"], "expected numbers from 0 to 5"),
        (
            ["how many", "--photo", "mine.jpg"],
            "which a photograph is not (dataset is digits); ask about its test part by --place",
        ),
    ],
)
def test_bad_questions(arguments, message, weibull_run, capsys):
    assert command("ask", weibull_run, *arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ask", "evaluate"])
def test_a_folder_without_a_run(name, tmp_path, capsys):
    assert command(name, tmp_path, *(["how many"] if name == "ask" else [])) == 1
    assert "experiments.vqa train" in capsys.readouterr().err


def test_evaluation_with_other_options(weibull_run, capsys):
    assert command("evaluate", weibull_run, "--num-samples", 2, "--test-noise", "[0.25]") == 0
    printed = capsys.readouterr().out
    assert "test_nll/both/noise_0.25" in printed
    assert "noise_0.5" not in printed


@pytest.mark.parametrize("samples", [1, 5])
def test_boxes_are_bars_and_photographs_are_photographs(samples):
    weights = torch.full((samples, 6), 1 / 6)
    boxes = Regions(torch.zeros(1, 6, 2), torch.ones(1, 6, dtype=torch.bool))
    (bars,) = looking_figure(weights, boxes, 0).axes
    assert [patch.get_height() for patch in bars.patches] == pytest.approx([1 / 6] * 6)
    photographs = torch.zeros(1, 3, 4, 6, dtype=torch.uint8)
    cells = Regions(torch.zeros(1, 6, 2), torch.ones(1, 6, dtype=torch.bool), (2, 3), photographs)
    maps = looking_figure(weights, cells, 0).axes
    assert len(maps) == (3 if samples == 1 else 5)  # panels, and a scale for every map
