"""Predictions of tiny fine-tuned models for files of one's own, and bad files."""

import json
import math

import pytest

from experiments.datasets.text.squad import load_squad
from experiments.files import UserError
from experiments.finetune.config import COMMANDS, PredictConfig
from experiments.finetune.model import kinds
from experiments.finetune.predict import predict_file
from experiments.finetune.questions import Windows, answers_of
from experiments.harness.cli import run_commands
from experiments.run import load_trained

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


def test_answers_are_those_of_the_evaluation(finished, tmp_path, capsys):
    """Questions of the test part, in a file without answers, and a longer context in a text file."""
    task, config, _ = finished("squad")
    questions = load_squad(data_root=config.data_root)["test"]
    paragraphs = [{"context": one.context, "qas": [{"id": one.id, "question": one.text}]} for one in questions]
    file, text, out = tmp_path / "mine.json", tmp_path / "many.txt", tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"data": [{"title": "mine", "paragraphs": paragraphs}]}))
    line = ["predict", str(config.out), str(file), "--num-samples=3", f"--out={out}"]
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=line) == 0
    assert f"{len(questions)} questions: {out}" in capsys.readouterr().out
    entries = [json.loads(one) for one in out.read_text().splitlines()]
    trained = load_trained(task, config)
    found = answers_of(trained, Windows(questions, trained.tokenizer, config), kinds(config.guide)[1])
    for entry, answer, score in zip(entries, found.texts, found.score, strict=True):
        assert entry["answer"] == answer
        assert entry["probability"] == pytest.approx(score.exp().item(), rel=1e-4)
    text.write_text(f"{CONTEXT}\tword3  word4 ?\n")
    (entry,) = map(json.loads, predict_file(PredictConfig(run=config.out, file=text)).read_text().splitlines())
    assert entry["answer"] in CONTEXT
    assert 0 <= entry["mutual_information"] < entry["entropy"] < 2 * math.log(20)


def test_bad_files_and_runs(finished, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("word1 word2\tword3 ?\nword1\t \n")
    with pytest.raises(UserError, match=r"line 2 has .* expected a context and a question with a tab"):
        predict_file(PredictConfig(run=finished("squad")[1].out, file=file))
    (tmp_path / "config.yaml").write_text("task: translation")
    with pytest.raises(UserError, match="task is 'translation', expected the folder of a run"):
        predict_file(PredictConfig(run=tmp_path, file=file))
