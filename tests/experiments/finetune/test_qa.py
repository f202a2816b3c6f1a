"""Windows of questions, and fine-tuning for question answering end to end, on a tiny random BERT."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from transformers import AutoTokenizer

from experiments.datasets.text.squad import Answer, Question, load_squad
from experiments.files import UserError
from experiments.finetune.config import COMMANDS, QaConfig
from experiments.finetune.qa.evaluation import answers_of, definitions
from experiments.finetune.qa.train import QaTask
from experiments.finetune.qa.windows import Windows
from experiments.harness.cli import run_commands
from experiments.run import load_trained, run
from tests.experiments.finetune.tiny_glue import write_bert
from tests.experiments.finetune.tiny_squad import write_squad

TASK = QaTask()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder of the data sets, and that of the pretrained model."""
    root = tmp_path_factory.mktemp("data")
    return write_squad(root), write_bert(root / "bert")


def tiny_config(data, out, **options):
    root, model = data
    shared = {"task": "v1", "model": str(model), "data_root": root, "out": out, "length": 20, "stride": 8}
    return QaConfig(**(shared | {"batch_size": 8, "max_epochs": 2, "num_samples": 3, "progress": False} | options))


def test_windows_overlap_and_hold_the_answer(data):
    config, tokenizer = tiny_config(data, None), AutoTokenizer.from_pretrained(data[1])
    words = [f"word{number % 20}" for number in range(40)]
    words[17] = "unheard"
    context = " ".join(words)
    question = Question("q", "t", context, "word1 word2 " * 9, (Answer("unheard word18", context.index("unheard")),))
    windows = Windows([question], tokenizer, config).windows
    # a quarter of 20 tokens for the question, 3 special ones, 12 of the context, 4 of them new
    texts = [[context[begin:end] for begin, end in window.spans.tolist() if end] for window in windows]
    assert [len(text) for text in texts] == [12] * len(texts)
    assert all(first[-8:] == second[:8] for first, second in pairwise(texts))
    assert [*texts[0], *(word for text in texts[1:] for word in text[8:])] == words
    for window, text in zip(windows, texts, strict=True):
        assert len(window.spans) == 20
        if {"unheard", "word18"} <= set(text) and text.index("unheard") < text.index("word18"):
            assert context[window.spans[window.first, 0] : window.spans[window.last, 1]] == "unheard word18"
        else:
            assert window.first == window.last == window.nothing == 0


def test_training_leaves_out_an_answer_that_is_in_no_window(data):
    config, tokenizer = tiny_config(data, None), AutoTokenizer.from_pretrained(data[1])
    context = " ".join(f"word{number % 20}" for number in range(40))
    long, short = (Question(text, "t", context, "word1", (Answer(text, 0),)) for text in (context, "word0 word1"))
    train = Windows([long, short], tokenizer, config, train=True)
    assert train.left_out == 1
    assert {window.question for window in train.windows} == {1}
    assert {window.question for window in Windows([long, short], tokenizer, config).windows} == {0, 1}
    with pytest.raises(ValueError, match="no answer of 1 questions is in a window of 20 tokens"):
        Windows([long], tokenizer, config, train=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"guide": "weibull", "task": "v2", "concentration": 1.0},
        {"guide": "lognormal", "prior": "fixed", "precision": "bf16-mixed", "kl_warmup": 0.0, "keep_weights": False},
        {"task": "v2", "max_epochs": 1, "train_share": 0.25},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "soft",
)
def test_training(data, tmp_path, options):
    config = tiny_config(data, tmp_path / "run", **options)
    metrics = run(TASK, config)
    assert all(math.isfinite(value) for value in metrics.values())
    saved = json.loads((config.out / "metrics.json").read_text())
    assert saved["definitions"] == definitions(metrics)
    assert (config.out / "checkpoints" / "best.safetensors").exists() == config.keep_weights
    assert not (config.out / "checkpoints" / "last.ckpt").exists()
    kind = "mc_dropout" if config.guide == "soft" else "attention"
    shown = "mean" if config.guide == "soft" else "attention"
    assert metrics[f"test_{kind}_exact_low"] <= metrics[f"test_{kind}_exact"] <= metrics[f"test_{kind}_exact_high"]
    assert 0 <= metrics[f"test_{kind}_exact"] <= metrics[f"test_{kind}_f1"] <= 1
    questions = load_squad(config.task, data_root=config.data_root)["test"]
    answers = json.loads((config.out / "answers.json").read_text())
    assert list(answers) == [question.id for question in questions]
    assert all(answers[question.id] in question.context for question in questions)
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == list(answers)
        assert arrays[f"{shown}_answers"].tolist() == list(answers.values())
        assert arrays[f"{kind}_f1"].mean() == pytest.approx(metrics[f"test_{kind}_f1"])
        assert arrays[f"{kind}_mutual_information"].max() > 0
        if config.task == "v2":
            silent = arrays[f"{shown}_no_answer"].astype(float) > metrics[f"{shown}_threshold"]
            assert [not text for text in answers.values()] == silent.tolist()
    if config.task == "v2":
        share = metrics["test_without_answer"] / metrics["test_questions"]
        parts = metrics[f"test_{kind}_has_answer_f1"], metrics[f"test_{kind}_no_answer_accuracy"]
        assert (1 - share) * parts[0] + share * parts[1] == pytest.approx(metrics[f"test_{kind}_f1"])
    assert metrics["train_questions"] == round(config.train_share * (24 if config.task == "v1" else 42))
    assert run(TASK, replace(config, resume=True)) == pytest.approx(metrics)


def test_the_train_part_is_learned_and_weights_are_kept(data, tmp_path):
    """The answer is the one word of four, which the model finds out; of about 15 words a guess finds one of 15."""
    root = write_squad(tmp_path / "more", train=50, test=8)
    config = tiny_config((root, data[1]), tmp_path / "run", learning_rate=1e-2, max_epochs=5)
    metrics = run(TASK, config)
    assert metrics["test_mean_exact"] > 0.6
    trained = load_trained(TASK, config)
    questions = load_squad("v1", data_root=root)["test"]
    again = Windows(questions, trained.tokenizer, config)
    together = answers_of(trained, again, "mean")
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        assert arrays["mean_answers"].tolist() == together.texts
    # padding and the order of the windows do not matter
    alone = answers_of(trained, Windows(questions[3:4], trained.tokenizer, config), "mean")
    assert alone.texts == together.texts[3:4]
    assert alone.entropy.item() == pytest.approx(together.entropy[3].item(), abs=1e-4)


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 11}, "length is 20 and stride 11, expected a length of 20 at least and a stride of half"),
        ({"length": 19}, "length is 19 and stride 8"),
    ],
)
def test_bad_options(data, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(TASK, tiny_config(data, tmp_path / "run", **options))


def test_a_tokenizer_without_a_token_for_no_answer(data, tmp_path):
    path = write_bert(tmp_path / "bert") / "tokenizer_config.json"
    content = json.loads(path.read_text())
    del content["cls_token"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="its tokenizer has no classification token"):
        run(TASK, tiny_config((data[0], path.parent), tmp_path / "run"))


def test_an_answer_that_is_not_in_its_context(data, tmp_path, capsys):
    content = json.loads((data[0] / "squad" / "train-v1.1-tiny.json").read_text())
    content["data"][1]["paragraphs"][2]["qas"][0]["answers"][0]["answer_start"] += 1
    own = tmp_path / "own.json"
    own.write_text(json.dumps(content))
    options = ["qa", "v1", f"--data-root={data[0]}", f"--out={tmp_path / 'run'}", f"--model={data[1]}", "--no-progress"]
    more = ["--length=20", "--stride=8", "--max-epochs=1", "--num-samples=2"]
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=[*options, f"--train-file={own}"]) == 1
    assert "own.json: question train1-2 cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=[*options, *more]) == 0
    assert "test_mean_f1" in capsys.readouterr().out
