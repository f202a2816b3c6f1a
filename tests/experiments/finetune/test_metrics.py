"""Scores and answers by hand, predictions for files of one's own, and the tables."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.cli import run_commands
from experiments.data.text.squad import Answer, Question, load_squad
from experiments.files import UserError
from experiments.finetune import no_answer, studies
from experiments.finetune.config import COMMANDS, PredictConfig
from experiments.finetune.glue import METRICS, glue_scores, noisy_labels
from experiments.finetune.model import kinds, share_of
from experiments.finetune.predict import predict_file, read_columns
from experiments.finetune.questions import (
    BestSpans,
    Window,
    WindowBatch,
    Windows,
    answers_of,
    best_answers,
    best_spans,
)
from experiments.finetune.studies import QA_STUDIES
from experiments.options import StudyOptions
from experiments.run import load_trained
from experiments.study import Finished

GENERATOR = np.random.default_rng(0)
GRADES = np.round(GENERATOR.normal(size=(2, 50)), 1)
EXPECTED = {
    "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
    "spearman": lambda x, y: stats.spearmanr(x, y).statistic,
}


def test_correlations():
    predicted, labels = GRADES
    found = glue_scores("stsb", predicted, labels)
    assert tuple(found) == METRICS["stsb"]
    for name, value in found.items():
        assert value == pytest.approx(EXPECTED[name](predicted, labels), abs=1e-12)


@pytest.mark.parametrize("task", ["mrpc", "cola", "stsb"])
def test_a_score_that_does_not_exist_is_zero(task):
    assert glue_scores(task, np.zeros(4), np.array([0.0, 1, 0, 1]))[METRICS[task][0]] == 0


@pytest.mark.parametrize("classes", [3, 0])
def test_noisy_labels(classes):
    labels = torch.arange(40) % (classes or 40)
    few, many = (noisy_labels(labels, share, classes=classes, seed=1) for share in (0.1, 0.5))
    assert torch.equal(noisy_labels(labels, 0.0, classes=classes, seed=1), labels)
    if classes:
        # every label that is replaced becomes another one
        assert [(noisy != labels).sum().item() for noisy in (few, many)] == [4, 20]
        assert many.max() < classes
    assert set((few != labels).nonzero().flatten().tolist()) <= set((many != labels).nonzero().flatten().tolist())


def test_a_larger_share_holds_a_smaller_one():
    few, many = (set(share_of(20, share, seed=3).tolist()) for share in (0.25, 0.5))
    assert (len(few), len(many)) == (5, 10)
    assert few < many
    assert set(share_of(20, 0.25, seed=4).tolist()) != few
    assert share_of(20, 1.0, seed=3).tolist() == list(range(20))


# Questions


def test_the_best_span_is_the_best_of_all_that_are_allowed():
    torch.manual_seed(0)
    logits, longest = 3 * torch.randn(4, 3, 2, 9), 3
    allowed = torch.tensor(
        [[1, 0, 0, 1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 1]]
    ).bool()
    nothing = torch.tensor([0, 0, 8])
    logits = logits.masked_fill(~allowed[:, None], -1e4)
    zeros = torch.zeros(3, dtype=torch.int64)
    batch = WindowBatch({}, allowed, zeros, zeros, nothing, torch.arange(3))
    found = best_spans(logits, batch, longest=longest)
    mean = logits.softmax(-1).mean(0)
    for row in range(3):
        context = [place for place in range(9) if allowed[row, place] and place != nothing[row]]
        spans = {(i, j): mean[row, 0, i] * mean[row, 1, j] for i in context for j in context if 0 <= j - i < longest}
        best = max(spans, key=spans.get)
        assert (found.first[row], found.last[row]) == best
        torch.testing.assert_close(found.score[row].exp(), spans[best])
        torch.testing.assert_close(found.nothing[row].exp(), mean[row, :, nothing[row]].prod())
        entropy = sum(torch.distributions.Categorical(side).entropy() for side in mean[row])
        torch.testing.assert_close(found.entropy[row], entropy)
    assert (found.mutual_information > 0).all()
    assert best_spans(logits[:1], batch, longest=longest).mutual_information.max() < 1e-5


def test_the_best_answer_is_that_of_all_windows():
    spans = torch.tensor([[0, 0], [0, 1], [2, 3]])  # "a" and "b"
    windows = [Window(question, {}, spans, 0, 0, 0) for question in (0, 0, 1)]
    data = Windows.__new__(Windows)
    data.windows, data.rows, data.questions = windows, windows, [Question("q", "t", "a b", "?", ())] * 2
    first, entropy = torch.tensor([1, 2, 2]), torch.tensor([1.0, 2.0, 3.0])
    nothing = torch.tensor([-0.5, -4.0, -1.0])
    found = BestSpans(torch.arange(3), torch.tensor([-2.0, -1.0, -3.0]), first, first, nothing, entropy, torch.zeros(3))
    answered = best_answers(data, [found])
    assert answered.texts == ["b", "b"]
    assert answered.entropy.tolist() == [2.0, 3.0]
    # of no answer it is the least of all windows
    assert answered.nothing.tolist() == [-4.0, -1.0]
    assert answered.no_answer.tolist() == [-3.0, 2.0]


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "f1"),
    [
        ("the Denver  Broncos", ["Denver Broncos", "Broncos"], 1, 1),
        ("an-other U.S.A. theme’s", ["another usa theme’s"], 1, 1),  # "-" goes before articles; ASCII marks
        ("Denver Broncos team", ["Denver Broncos"], 0, 0.8),  # 2 of 3 words, all 2 found
        ("Broncos Broncos", ["Denver Broncos"], 0, 0.5),  # a word counts once: precision and recall 1/2
        ("Carolina", ["Denver", "Carolina Panthers"], 0, 2 / 3),  # the best answer
        ("the", ["a"], 1, 1),  # nothing is left of both
        ("", [], 1, 1),
        ("Denver", [], 0, 0),
        ("", ["the", "Denver"], 0, 0),  # "the" does not count as an answer
    ],
)
def test_scores_of_squad_2_on_worked_examples(predicted, answers, exact, f1):
    assert no_answer.question_scores(predicted, answers) == pytest.approx((exact, f1))


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_of_no_answer_is_the_best_of_all(seed):
    generator = np.random.default_rng(seed)
    answerable = generator.random(12) < [0.5, 0.9, 0.1, 0, 1][seed]
    odds, f1 = generator.integers(-3, 4, 12) / 2, generator.random(12)  # with ties
    answers = [(Answer("c", 0),) if one else () for one in answerable]
    questions = [Question(str(number), "t", "c", "q", one) for number, one in enumerate(answers)]

    def mean(threshold):
        return np.where(odds > threshold, ~answerable, answerable * f1).mean()

    threshold, score = no_answer.best_threshold(odds, f1, questions)
    assert mean(threshold) == pytest.approx(score)
    assert score == pytest.approx(max(mean(other) for other in [-9, *odds]))


CONTEXT = " ".join(f"word{number % 20}" for number in range(30))  # several windows of 20 tokens


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_classes_and_grades_for_a_file(name, finished, tmp_path, capsys):
    file = tmp_path / "mine.txt"
    file.write_text("word1 word2\tword3\nword4\tword5 unheard\n")
    config = PredictConfig(run=finished(name)[1].out, file=file, num_samples=8)
    out = predict_file(config)
    assert f"2 lines: {out}" in capsys.readouterr().out
    head, *lines = (line.split("\t") for line in out.read_text().splitlines())
    assert len(lines) == 2
    if name == "stsb":
        assert head == ["grade", "standard_deviation", "low", "high"]
        for grade, spread, low, high in (map(float, line) for line in lines):
            assert low <= grade <= high
            assert spread > 0
    else:
        assert head == ["class", "entailment", "not_entailment", "entropy", "mutual_information", "low", "high"]
        for chosen, *values in lines:
            first, second, entropy, information, low, high = map(float, values)
            assert chosen == head[1 + (second > first)]
            assert first + second == pytest.approx(1, abs=2e-4)
            assert 0 <= low <= high <= 1
            assert 0 <= information <= entropy <= math.log(2) + 1e-4
    with pytest.raises(UserError, match="--overwrite"):
        predict_file(config)


@pytest.mark.parametrize("name", ["squad", "squad-2.0"])
def test_answers_are_those_of_the_evaluation(name, finished, tmp_path, capsys):
    """Questions of the test part, in a file without answers, and a longer context in a text file."""
    task, config, metrics = finished(name)
    questions = load_squad(config.version, data_root=config.data_root)["test"]
    paragraphs = [{"context": one.context, "qas": [{"id": one.id, "question": one.text}]} for one in questions]
    file, text, out = tmp_path / "mine.json", tmp_path / "many.txt", tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"data": [{"title": "mine", "paragraphs": paragraphs}]}))
    line = ["predict", str(config.out), str(file), "--num-samples=3", f"--out={out}"]
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=line) == 0
    assert f"{len(questions)} questions: {out}" in capsys.readouterr().out
    entries = [json.loads(one) for one in out.read_text().splitlines()]
    trained = load_trained(task, config)
    kind = kinds(config.guide)[1]
    found = answers_of(trained, Windows(questions, trained.tokenizer, config), kind)
    silent = [False] * len(questions)
    if name == "squad-2.0":
        silent = (found.no_answer.double() > metrics[f"{kind}_threshold"]).tolist()
        assert [entry["no_answer"] for entry in entries] == pytest.approx(found.nothing.exp().tolist(), rel=1e-4)
    for entry, no, answer, score, nothing in zip(entries, silent, *found[:3], strict=True):
        assert entry["answer"] == ("" if no else answer)
        assert entry["probability"] == pytest.approx((nothing if no else score).exp().item(), rel=1e-4)
    text.write_text(f"{CONTEXT}\tword3  word4 ?\n")
    (entry,) = map(json.loads, predict_file(PredictConfig(run=config.out, file=text)).read_text().splitlines())
    assert entry["answer"] in CONTEXT  # as no answer is
    assert 0 <= entry["mutual_information"] < entry["entropy"] < 2 * math.log(20)


@pytest.mark.parametrize("sign", ["\r", "\v", "\f", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_only_newlines_end_a_line(tmp_path, sign):
    file = tmp_path / "mine.txt"
    file.write_bytes(f"\ufeffword1{sign}word2\tword3\r\nword4\tword5\n".encode())
    assert read_columns(file, "sentence", "sentence") == [["word1 word2", "word3"], ["word4", "word5"]]


@pytest.mark.parametrize("name", ["mine.txt", "link", "hard"])
def test_the_file_itself_is_never_the_result(finished, tmp_path, name):
    """Not even where the user asks to replace it."""
    file = tmp_path / "mine.txt"
    file.write_text("word1 word2\tword3\n")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    with pytest.raises(UserError, match="the result would replace"):
        predict_file(PredictConfig(run=finished("rte")[1].out, file=file, out=tmp_path / name, overwrite=True))
    assert file.read_text() == "word1 word2\tword3\n"


def test_bad_files_and_runs(finished, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("word1 word2\tword3 ?\nword1\t \n")
    with pytest.raises(UserError, match=r"line 2 has .* expected a context and a question with a tab"):
        predict_file(PredictConfig(run=finished("squad")[1].out, file=file))
    (tmp_path / "config.yaml").write_text("task: translation")
    with pytest.raises(UserError, match="task is 'translation'; expected the folder of a run"):
        predict_file(PredictConfig(run=tmp_path, file=file))


TINY = {"max_epochs": 1, "num_samples": 2, "batch_size": 20, "length": 20}


def options(place: Path, out: Path, **given: Any) -> StudyOptions:
    how: dict[str, Any] = {"data_root": place, "out": out / "out", "results": out, "workers": 1, "progress": False}
    changes = {"model": str(place / "some" / "bert"), **TINY}
    return StudyOptions(**how | {"name": "glue", "seeds": 1, "rows": ("soft", "WC"), "changes": changes} | given)


def test_intervals_over_questions_are_those_of_resampled_answers(tmp_path: Path) -> None:
    """The standard error of the mean over seeds of the difference."""
    generator = np.random.default_rng(1)
    study = replace(
        QA_STUDIES["squad-v1"], rows={row: {} for row in ("soft", "WC")}, readings={"WC": ("WC", "attention")}
    )
    configs, scores = {}, {}
    for key in [(row, "", seed) for row in study.rows for seed in (0, 1)]:
        folder, kind = tmp_path / "-".join(map(str, key)), study.readings.get(key[0], ("", "mean"))[1]
        folder.mkdir()
        scores[key] = generator.random((2, 300))
        np.savez(folder / "predictions.npz", **dict(zip((f"{kind}_exact", f"{kind}_f1"), scores[key], strict=True)))
        configs[key] = replace(options(tmp_path, tmp_path), out=folder)
    (part,) = studies.over_questions(Finished(study, "squad-v1", tmp_path, tmp_path, configs, {}))
    found = part.rows[0]["F1 %"]
    difference = 50 * sum(scores["WC", "", seed][1] - scores["soft", "", seed][1] for seed in (0, 1))
    error = 1.96 * difference.std() / 300**0.5
    assert found.mean == pytest.approx(difference.mean())
    assert (found.low, found.high) == pytest.approx((found.mean - error, found.mean + error), abs=0.15 * error)
