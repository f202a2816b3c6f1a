"""Answers of a tiny fine-tuned model to questions of a file, and bad files."""

import json
import math

import pytest
import torch

from experiments.datasets.text.squad import load_squad
from experiments.files import UserError
from experiments.finetune.config import COMMANDS, PredictConfig
from experiments.finetune.evaluation import kinds
from experiments.finetune.predict import predict_file
from experiments.finetune.qa.config import QaConfig
from experiments.finetune.qa.evaluation import answers_of
from experiments.finetune.qa.predict import load_trained
from experiments.finetune.qa.train import run
from experiments.finetune.qa.windows import Windows
from experiments.harness.cli import run_commands
from tests.experiments.finetune.tiny_glue import write_bert
from tests.experiments.finetune.tiny_squad import write_squad

CONTEXT = " ".join(f"word{number % 20}" for number in range(30))  # several windows of 20 tokens


@pytest.fixture(scope="module", params=[("v1", "soft"), ("v2", "weibull")], ids=lambda param: "-".join(param))
def finished(request, tmp_path_factory):
    """A finished run."""
    root = tmp_path_factory.mktemp("data")
    task, guide = request.param
    config = QaConfig(
        task=task, guide=guide, concentration=1.0, model=str(write_bert(root / "bert")), data_root=write_squad(root),
        out=root / "run", length=20, stride=8, batch_size=8, max_epochs=1, num_samples=3, progress=False,
    )  # fmt: skip
    run(config)
    return config


def predicted(config, file, **options):
    out = predict_file(PredictConfig(run=config.out, file=file, num_samples=3, **options))
    return out, [json.loads(line) for line in out.read_text().splitlines()]


def test_answers_to_a_text_file(finished, tmp_path, capsys):
    file = tmp_path / "mine.txt"
    file.write_text(f"{CONTEXT}\tword3  word4 ?\nword5 unheard\tword6 ?\n")
    out, entries = predicted(finished, file)
    assert out == tmp_path / "mine.txt.jsonl"
    shown = capsys.readouterr().out
    assert "word3 word4 ?" in shown
    assert f"2 questions: {out}" in shown
    assert ("no answer" in shown) == (finished.task == "v2")
    assert [entry["question"] for entry in entries] == ["word3 word4 ?", "word6 ?"]
    for entry, context in zip(entries, (CONTEXT, "word5 unheard"), strict=True):
        texts, probabilities = zip(*(one.values() for one in entry["best"]), strict=True)
        assert len(texts) == len(set(texts)) == 3
        assert all(text in context for text in texts)
        assert list(probabilities) == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities[1:]) <= 1
        assert ("no_answer" in entry) == (finished.task == "v2")
        if entry["answer"]:
            assert (entry["answer"], entry["probability"]) == (texts[0], probabilities[0])
        else:
            assert entry["probability"] == entry["no_answer"]
        assert 0 <= entry["mutual_information"] < entry["entropy"] < 2 * math.log(20)
    with pytest.raises(UserError, match="--overwrite"):
        predict_file(PredictConfig(run=finished.out, file=file))


def test_answers_are_those_of_the_evaluation(finished, tmp_path):
    """A file of questions as they are in the test part, answers and all, gets the answers of the run itself."""
    questions = load_squad(finished.task, data_root=finished.data_root)["test"]
    paragraphs = [{"context": one.context, "qas": [{"id": one.id, "question": one.text}]} for one in questions]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"data": [{"title": "mine", "paragraphs": paragraphs}]}))
    _, entries = predicted(finished, file, out=tmp_path / "answers.jsonl")
    assert [entry["id"] for entry in entries] == [one.id for one in questions]
    trained = load_trained(finished.out)
    kind = kinds(finished.guide)[1]
    found = answers_of(trained, Windows(questions, trained.tokenizer, finished), kind)
    assert [entry["best"][0]["answer"] for entry in entries] == found.texts
    if finished.task == "v2":
        assert [entry["no_answer"] for entry in entries] == pytest.approx(found.nothing.exp().tolist(), rel=1e-4)
        threshold = json.loads((finished.out / "metrics.json").read_text())[f"{kind}_threshold"]
        silent = (found.no_answer.double() > threshold).tolist()
        assert [not entry["answer"] for entry in entries] == silent
    assert max(entry["mutual_information"] for entry in entries) > 0
    best = torch.tensor([entry["best"][0]["probability"] for entry in entries]).log()
    torch.testing.assert_close(best, found.nothing - found.no_answer, rtol=1e-4, atol=1e-4)


# bad input


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            "word1 word2\tword3 ?\nno tab\n",
            "line 2 has 0 tabs, expected 1: a context and a question",
        ),
        ("a.txt", "one\ttwo\tthree\n", "line 1 has 2 tabs"),
        ("a.txt", " \tword3 ?\n", "line 1 has an empty context"),
        ("a.txt", "word1\t\n", "line 1 has an empty question"),
        ("a.txt", "", r"is empty, expected a context and a question .*, or a file \.json in the format of SQuAD"),
        ("a.txt", None, "is missing"),
        ("a.json", '{"rows": []}', "cannot be read .* expected a JSON file in the format of SQuAD"),
        ("a.json", (" ", "word1 ?"), "paragraph 1 of article 1 cannot be read"),
        ("a.json", ("word1", " "), "question 'q' is empty, expected a text"),
    ],
)
def test_bad_files(finished, tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, tuple):
        context, question = content
        paragraph = {"context": context, "qas": [{"id": "q", "question": question}]}
        content = json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        predict_file(PredictConfig(run=finished.out, file=file, num_samples=1))
    assert not file.with_name(f"{name}.jsonl").exists()


def test_the_command_line(finished, tmp_path, capsys):
    file = tmp_path / "many.txt"
    file.write_text("word1 \x1b[31mword2\tword3 ?\n" * 25)
    arguments = ["predict", str(finished.out), str(file), "--num-samples=1"]
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=arguments) == 0
    shown = capsys.readouterr().out
    assert "25 questions, of which the first 20 are shown" in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 1 + 20 + 2
    metrics = finished.out / "metrics.json"
    metrics.rename(tmp_path / "metrics.json")  # as of a training that was stopped
    code = run_commands(COMMANDS, name="experiments.finetune", arguments=[*arguments, "--overwrite"])
    (tmp_path / "metrics.json").rename(metrics)
    assert code == (finished.task == "v2")
    if code:
        assert "has no attention_threshold, expected the no-answer threshold" in capsys.readouterr().err
