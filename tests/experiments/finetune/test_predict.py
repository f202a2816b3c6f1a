"""Predictions of tiny fine-tuned models for files of one's own, and bad files."""

import json
import math

import pytest
import torch

from experiments.datasets.text.squad import load_squad
from experiments.files import UserError
from experiments.finetune.config import COMMANDS, GlueConfig, PredictConfig, QaConfig
from experiments.finetune.evaluation import kinds
from experiments.finetune.predict import finished_run, predict_file
from experiments.finetune.qa.evaluation import answers_of
from experiments.finetune.qa.train import QaTask
from experiments.finetune.qa.windows import Windows
from experiments.finetune.train import GlueTask
from experiments.harness.cli import run_commands
from experiments.run import run
from tests.experiments.finetune.tiny_glue import write_bert, write_glue
from tests.experiments.finetune.tiny_squad import write_squad

CONTEXT = " ".join(f"word{number % 20}" for number in range(30))  # several windows of 20 tokens


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """Folders of finished runs on tasks of GLUE."""

    def trained(task, guide):
        root = tmp_path_factory.mktemp(task)
        config = GlueConfig(
            task=task, guide=guide, concentration=1.0, model=str(write_bert(root / "bert")),
            data_root=write_glue(root), out=root / "run", length=20, batch_size=8, max_epochs=1, num_samples=3,
            progress=False,
        )  # fmt: skip
        run(GlueTask(), config)
        return config.out

    return {"rte": trained("rte", "weibull"), "stsb": trained("stsb", "soft")}


@pytest.fixture(scope="module", params=[("v1", "soft"), ("v2", "weibull")], ids=lambda param: "-".join(param))
def finished(request, tmp_path_factory):
    """A finished run."""
    root = tmp_path_factory.mktemp("data")
    task, guide = request.param
    config = QaConfig(
        task=task, guide=guide, concentration=1.0, model=str(write_bert(root / "bert")), data_root=write_squad(root),
        out=root / "run", length=20, stride=8, batch_size=8, max_epochs=1, num_samples=3, progress=False,
    )  # fmt: skip
    run(QaTask(), config)
    return config


def predicted(config, file, **options):
    out = predict_file(PredictConfig(run=config.out, file=file, num_samples=3, **options))
    return out, [json.loads(line) for line in out.read_text().splitlines()]


def test_classes_and_grades_for_a_file(glue, tmp_path, capsys):
    file = tmp_path / "mine.txt"
    file.write_text("word1 word2\tword3\nword4\tword5 unheard\n")
    out = predict_file(PredictConfig(run=glue["rte"], file=file, num_samples=8))
    head, *lines = (line.split("\t") for line in out.read_text().splitlines())
    assert head == ["class", "entailment", "not_entailment", "entropy", "mutual_information", "low", "high"]
    assert len(lines) == 2
    for name, *values in lines:
        first, second, entropy, information, low, high = map(float, values)
        assert name == head[1 + (second > first)]
        assert first + second == pytest.approx(1, abs=2e-4)
        assert 0 <= low <= high <= 1
        assert 0 <= information <= entropy <= math.log(2) + 1e-4
    assert str(out) in capsys.readouterr().out
    with pytest.raises(UserError, match="--overwrite"):
        predict_file(PredictConfig(run=glue["rte"], file=file))
    out = predict_file(PredictConfig(run=glue["stsb"], file=file, num_samples=8, out=tmp_path / "grades.tsv"))
    head, *lines = out.read_text().splitlines()
    assert head.split("\t") == ["grade", "standard_deviation", "low", "high"]
    for line in lines:
        grade, spread, low, high = map(float, line.split("\t"))
        assert low <= grade <= high
        assert spread > 0


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
    trained = finished_run(QaTask(), finished.out)
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
        ("mine.txt", b"one sentence\n", r"line 1 has 0 tabs, expected 1: two sentences with a tab"),
        ("mine.txt", b"one\ttwo\none\t \n", r"line 2 has an empty second sentence"),
        ("mine.txt", b"one\t\xff\n", "line 1 is not UTF-8"),
        ("mine.txt", b"", "is empty, expected two sentences"),
        ("mine.json", b"", r"\(rte\) reads sentences; questions in the format of SQuAD need a run"),
    ],
)
def test_bad_files_of_sentences(glue, tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        predict_file(PredictConfig(run=glue["rte"], file=file))


def test_a_run_of_another_script(tmp_path):
    with pytest.raises(UserError, match=r"with its weights \(config\.yaml is missing; runs of tables keep none\)"):
        predict_file(PredictConfig(run=tmp_path, file=tmp_path / "mine.txt"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.safetensors").touch()
    (tmp_path / "config.yaml").write_text(json.dumps({"task": "translation"}))
    with pytest.raises(UserError, match=r"config\.yaml: task is 'translation', expected one of rte, .*, v1, v2; name"):
        predict_file(PredictConfig(run=tmp_path, file=tmp_path / "mine.txt"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "word1 word2\tword3 ?\nno tab\n", "line 2 has 0 tabs, expected 1: a context and a question"),
        ("a.json", '{"rows": []}', "cannot be read .* expected a JSON file in the format of SQuAD"),
        ("a.json", (" ", "word1 ?"), "question q cannot be read .*the context is empty"),
        ("a.json", ("word1", " "), "question 'q' is empty, expected a text"),
    ],
)
def test_bad_files_of_questions(finished, tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, tuple):
        context, question = content
        paragraph = {"context": context, "qas": [{"id": "q", "question": question}]}
        content = json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})
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
