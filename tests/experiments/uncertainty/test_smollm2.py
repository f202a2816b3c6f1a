"""The study of a language model's wrong answers, on a tiny random decoder: choice, resuming, and what it reports."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from experiments.__main__ import commands
from experiments.data.text.squad import load_squad
from experiments.files import UserError
from experiments.uncertainty import smollm2
from experiments.uncertainty.config import SmolLM2Config
from experiments.uncertainty.smollm2 import MODES, auroc_against, choose, f1_score, pick, run
from pyro_attention import AttentionGuide, Soft
from pyro_attention.integrations.huggingface.generation import draw_answer, read_answer
from pyro_attention.posterior.predictive import seeded
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
             "concentrations": (1.0,), "prior_scales": (0.1, 1.0), "curvature": 4}  # fmt: skip
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
    kinds = {name.split("(")[0] for name in rows if "(" in name}
    assert kinds == {"LogNormal", "Weibull", "Laplace"}
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


def test_a_folder_without_a_model(folders, tmp_path):
    with pytest.raises(UserError, match=r"model .* cannot be read .* expected a folder of Hugging Face"):
        run(replace(options(folders, tmp_path / "out"), model=tmp_path))


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


def test_draws_of_the_queries(folders, tmp_path):
    """They are those of the posterior, one for all tokens; afterwards the model is as before."""
    config = options(folders, tmp_path)
    language, parts = smollm2.load_language(config), load_squad(data_root=folders[1])
    posterior = smollm2.query_posterior(language, pick(parts["train"], 4), MODES[0])
    name = "model.layers.2.self_attn.q_proj.weight"
    queries = language.model.get_parameter(name)
    before, guide = queries.detach().clone(), AttentionGuide(language.model, Soft())
    answer = read_answer(guide, language.prompt(parts["test"][0], MODES[0]), max_new_tokens=3, pad_token_id=0)
    found = smollm2.draw_queries(guide, posterior, 0.5, 2, answer)
    with seeded(0):
        draws = [posterior.sample()[name] for _ in range(2)]
    for probabilities, drawn in zip(found, draws, strict=True):
        queries.data = drawn
        expected = draw_answer(guide, answer, num_samples=1)[0]
        torch.testing.assert_close(probabilities, expected)
    queries.data = before
    mean = draw_answer(guide, answer, num_samples=1)[0]
    assert not torch.allclose(found[0], mean)
    torch.testing.assert_close(smollm2.draw_queries(guide, posterior, 1e-6, 1, answer)[0], mean, atol=1e-4, rtol=1e-3)


def test_the_posterior_of_the_queries_has_the_gradients_of_the_answers(folders, tmp_path):
    config = options(folders, tmp_path)
    language, parts = smollm2.load_language(config), load_squad(data_root=folders[1])
    questions = pick(parts["train"], 3)
    posterior = smollm2.query_posterior(language, questions, MODES[0])
    queries = language.model.get_parameter("model.layers.2.self_attn.q_proj.weight")
    fisher = 0
    for question in questions:
        prompt = language.prompt(question, MODES[0])
        answer = language.tokenizer(question.answers[0].text, add_special_tokens=False, return_tensors="pt")
        tokens = torch.cat([prompt, answer["input_ids"]], 1)
        log_probs = language.model(input_ids=tokens).logits[0].log_softmax(-1)
        count = tokens.size(1) - prompt.size(1)
        loss = -log_probs[-count - 1 : -1].gather(-1, tokens[0, -count:, None]).sum()
        slope = torch.autograd.grad(loss, queries)[0].flatten().double()
        fisher = fisher + slope[:, None] * slope
    torch.testing.assert_close(posterior.covariance, (fisher + torch.eye(len(fisher))).inverse(), rtol=1e-3, atol=1e-5)


def test_a_decoder_without_the_layers_of_llama(folders, tmp_path):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 30}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with pytest.raises(UserError, match=r"the model is a GPT2LMHeadModel, expected one with the layers of Llama"):
        smollm2.query_posterior(smollm2.Language(model, None), [], MODES[0])
