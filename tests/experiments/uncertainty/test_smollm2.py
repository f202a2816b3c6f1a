"""The study of a language model's wrong answers, on a tiny random decoder: choice, resuming, and what it reports."""

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from experiments.__main__ import commands
from experiments.data.text.squad import load_squad
from experiments.uncertainty import smollm2
from experiments.uncertainty.config import SmolLM2Config
from experiments.uncertainty.smollm2 import MODES, auroc_against, choose, f1_score, pick, run
from tests.experiments.finetune.tiny_glue import WORDS
from tests.experiments.finetune.tiny_squad import write_squad


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A random decoder with a chat template, and the questions."""
    root = tmp_path_factory.mktemp("uncertainty")
    words = ["<pad>", "<end>", "?", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<pad>", eos_token="<end>"
    )
    fast.chat_template = "{% for turn in messages %}{{ turn['content'] }} <end> {% endfor %}"
    fast.save_pretrained(root / "model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlamaConfig(
        vocab_size=len(words), pad_token_id=0, eos_token_id=1, bos_token_id=1, max_position_embeddings=200, **sizes
    )
    transformers.LlamaForCausalLM(config).save_pretrained(root / "model")
    return root, write_squad(root / "data")


@pytest.fixture
def scored(monkeypatch):
    """A random decoder is never right: every third answer counts as right, by its question."""

    def score(text, question):
        return float(int(question.id.rpartition("-")[2]) % 3 == 0)

    monkeypatch.setattr(smollm2, "f1_score", score)


def options(folders, out, **changes):
    root, data = folders
    sizes = {"questions": 6, "tuning": 5, "num_samples": 3, "max_new_tokens": 4, "resamples": 20, "scales": (0.5, 1.0),
             "concentrations": (1.0,)}  # fmt: skip
    return SmolLM2Config(
        model=root / "model", data_root=data, out=out, results=out / "results", device="cpu", progress=False,
        **sizes | changes,
    )  # fmt: skip


def records(folder):
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")}


def without_times(rows):
    return {
        name: [{key: value for key, value in row.items() if key not in ("seconds", "draws")} for row in part]
        for name, part in rows.items()
    }


def test_the_command(folders, tmp_path, scored):
    assert "uncertainty" in commands()
    metrics = run(options(folders, tmp_path))
    rows = {name.split("/")[1] for name in metrics if name.endswith("/auroc")}
    assert {"sequence probability", "perplexity", "mean entropy", "RAUQ"} < rows
    assert len(rows) >= 6  # with LogNormal and Weibull draws, perhaps of other widths in the two modes
    assert all(0 <= value <= 1 for name, value in metrics.items() if name.endswith(("/auroc", "/area", "/accuracy")))
    found = records(tmp_path)
    assert sorted(map(len, found.values())) == [5, 5, 6, 6]
    questions = load_squad(data_root=folders[1])
    tested = {question.id for question in pick(questions["test"], 6)}
    for name, part in found.items():
        wanted = tested if name.startswith("test") else {question.id for question in pick(questions["val"], 5)}
        assert {row["id"] for row in part} == wanted
        assert {row["mode"] for row in part} == {MODES[int(name.split("-")[1].removesuffix(".jsonl"))]}
    report = json.loads((tmp_path / "results" / "uncertainty-smollm2.json").read_text())
    assert "SQuAD" in json.dumps(report)


def test_it_goes_on_where_it_was_cut_off(folders, tmp_path, scored):
    run(options(folders, tmp_path))
    expected = records(tmp_path)
    path = tmp_path / "tuning-0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30])
    run(options(folders, tmp_path, resume=True))
    found = records(tmp_path)
    assert without_times(found) == without_times(expected)
    assert found["tuning-0.jsonl"][:2] == expected["tuning-0.jsonl"][:2]  # not asked again
    run(options(folders, tmp_path, resume=True, questions=8))  # more questions
    assert sorted(map(len, records(tmp_path).values())) == [5, 5, 8, 8]


def test_answers_of_one_kind_are_told(folders, tmp_path, capsys):
    """Random answers are all wrong: nothing can be chosen or measured, and the report says so."""
    metrics = run(options(folders, tmp_path))
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 of 5 tuning answers are right, so no width was chosen" in printed
    assert "All are of one kind" in printed
    assert not [name for name in metrics if "auroc" in name]


def test_the_choice_is_the_best_on_the_tuning_questions():
    def record(right, good, bad):
        measures = {"entropy": bad, "mutual information": bad, "sequence probability": bad, "disagreement": bad}
        return {"f1": float(right), "draws": {"Weibull": {"1": measures, "3": measures | {"disagreement": good}}}}

    rows = [record(True, 0.1, 0.5), record(False, 0.4, 0.5), record(True, 0.2, 0.5)]
    assert choose(rows, "Weibull") == ("3", "disagreement")


def test_the_difference_is_paired():
    right = torch.arange(40) % 2 == 0
    torch.manual_seed(0)
    values = (torch.rand(40) + (~right).float()).tolist()
    same = auroc_against(values, [2 * value for value in values], right, resamples=50)
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    better = auroc_against(values, torch.rand(40).tolist(), right, resamples=50)
    assert 0 < better.low < better.mean < better.high


def test_f1_is_that_of_squad(folders):
    question = load_squad(data_root=folders[1])["test"][0]
    answer = question.answers[0].text
    assert f1_score(answer, question) == 1.0
    assert f1_score(f"{answer} too", question) == pytest.approx(2 / 3)
    assert f1_score("", question) == 0.0
