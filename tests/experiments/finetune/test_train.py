"""Fine-tuning end to end on a tiny random BERT: every kind of task, what is learned, bad input."""

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyro
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForSequenceClassification, AutoTokenizer, RobertaConfig, RobertaModel

from experiments.data.text.squad import Answer, Question, load_squad
from experiments.files import UserError
from experiments.finetune.glue import GlueTask, PairBatch, load_texts
from experiments.finetune.model import load_network
from experiments.finetune.no_answer import question_scores
from experiments.finetune.questions import QaTask, Windows, answers_of
from experiments.run import load_trained
from models.transformers import PairModel
from pyro_attention.analysis import fit_temperature
from tests.experiments.finetune.conftest import RUNS
from tests.experiments.finetune.tiny_glue import SIZES, write_bert, write_glue
from tests.experiments.finetune.tiny_squad import write_squad


@pytest.mark.parametrize("name", RUNS)
def test_training(name, finished):
    task, config, metrics = finished(name)
    assert all(math.isfinite(value) for value in metrics.values())
    assert (config.out / "checkpoints" / "best.safetensors").exists() == config.keep_weights
    assert not (config.out / "checkpoints" / "last.ckpt").exists()
    assert task.run(replace(config, resume=True)) == pytest.approx(metrics)


@pytest.mark.parametrize("name", ["rte", "stsb", "sst2", "mrpc", "mnli"])
def test_scores_are_those_of_the_predictions(name, finished):
    _, config, metrics = finished(name)
    kind = "mc_dropout" if config.guide == "soft" else "attention"
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        val, test = (torch.from_numpy(arrays[f"{kind}_{part}"]) for part in ("val", "test"))
        val_labels, labels = (torch.from_numpy(arrays[f"labels_{part}"]) for part in ("val", "test"))
        others = {other: torch.from_numpy(arrays[f"{kind}_{other}"]) for other in config.out_of_domain}
    assert test.std(0).max() > 0
    if name == "stsb":
        assert metrics["test_attention_mse"] == pytest.approx((test[..., 0].mean(0) - labels).square().mean().item())
        assert {"test_mean_pearson", "test_mean_spearman", "test_mean_scaled_nll", "mean_scale"} <= metrics.keys()
        return
    probabilities = test.softmax(-1).mean(0)
    order = probabilities.max(-1).values.argsort(descending=True, stable=True)
    kept = (probabilities.argmax(-1) != labels)[order][: math.ceil(0.8 * len(labels))].float().mean()
    assert metrics[f"test_{kind}_risk_80"] == pytest.approx(kept.item(), abs=0.1)
    assert metrics[f"{kind}_temperature"] == pytest.approx(fit_temperature(val, val_labels).temperature, rel=1e-3)
    for other, logits in others.items():
        assert load_texts(config)[other].second is None  # as of SST-2 itself
        entropies = [torch.special.entr(part.softmax(-1).mean(0)).sum(-1) for part in (test, logits)]
        area = roc_auc_score([0] * len(entropies[0]) + [1] * len(entropies[1]), torch.cat(entropies))
        assert metrics[f"auroc_{kind}_{other}_entropy"] == pytest.approx(area)


def test_answers_are_those_of_the_predictions(finished):
    _, config, metrics = finished("squad")
    questions = load_squad(data_root=config.data_root)["test"]
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == [question.id for question in questions]
        answers = arrays["mean_answers"].tolist()
        assert all(answer in question.context for answer, question in zip(answers, questions, strict=True))
        assert arrays["mc_dropout_f1"].mean() == pytest.approx(metrics["test_mc_dropout_f1"])
        assert arrays["mc_dropout_mutual_information"].max() > 0
    assert metrics["train_questions"] == 6


def test_questions_without_an_answer_get_none_above_the_threshold(finished):
    task, config, metrics = finished("squad-2.0")
    assert {*task.main_metrics(config, metrics)} <= metrics.keys()  # of both kinds of questions
    questions = load_squad("2.0", data_root=config.data_root)["test"]
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        texts, no_answer = arrays["attention_answers"].tolist(), arrays["attention_no_answer"].astype(float)
        assert arrays["attention_f1"].mean() == pytest.approx(metrics["test_attention_f1"])
    assert [not text for text in texts] == (no_answer > metrics["attention_threshold"]).tolist()
    scores = [question_scores(text, [answer.text for answer in question.answers])
              for text, question in zip(texts, questions, strict=True)]  # fmt: skip
    assert np.mean([f1 for _, f1 in scores]) == pytest.approx(metrics["test_attention_f1"])
    share = metrics["test_without_answer"] / metrics["test_questions"]
    parts = metrics["test_attention_has_answer_f1"], metrics["test_attention_no_answer_accuracy"]
    assert (1 - share) * parts[0] + share * parts[1] == pytest.approx(metrics["test_attention_f1"])
    # the training file has answers to all questions, so that articles of the other file are trained on, too
    assert (metrics["train_questions"], metrics["train_without_answer"]) == (42, 3)


def test_the_train_part_is_learned(tiny_config, tmp_path):
    """The first word tells the class; the answer is the one word of four. Chance is a half, and one of 15 words."""
    fast = {"learning_rate": 1e-2, "max_epochs": 5, "num_samples": 1}
    root = write_glue(tmp_path / "glue", train=120, test=40)
    glue = tiny_config("sst2", tmp_path / "a", data_root=root, **fast)
    assert GlueTask().run(glue)["test_mean_accuracy"] > 0.8
    root = write_squad(tmp_path / "squad", train=50, test=8)
    config = tiny_config("squad", tmp_path / "b", data_root=root, **fast)
    assert QaTask().run(config)["test_mean_exact"] > 0.6
    trained, questions = load_trained(QaTask(), config), load_squad(data_root=root)["test"]
    together = answers_of(trained, Windows(questions, trained.tokenizer, config), "mean")
    # padding and the order of the windows do not matter
    alone = answers_of(trained, Windows(questions[3:4], trained.tokenizer, config), "mean")
    assert alone.texts == together.texts[3:4]
    assert alone.entropy.item() == pytest.approx(together.entropy[3].item(), abs=1e-4)


def test_the_kl_of_long_texts_does_not_drown_their_labels(finished):
    """Of one weight it grows with the logarithm of the length; summed over all, it would with the square as well."""
    task, config, _ = finished("rte")
    parts = []
    for length in (8, 32):
        module = task.network(replace(config, kl_weight=0.01, kl_warmup=0.0), token_pairs=[length**2] * 4).module
        inputs = {"input_ids": torch.randint(5, 20, (4, length)), "attention_mask": torch.ones(4, length).long()}
        module.objective(*module.arguments(PairBatch(inputs, torch.tensor([0, 1, 1, 0]), torch.arange(4))))
        kl = sum(module.objective.elbo.kl_record.values())
        parts.append(float(module.objective.elbo.current_kl_weight() * kl / 4))
        assert parts[-1] == pytest.approx(0.01 * float(kl) / (4 * 2 * 2 * length**2))  # two layers of two heads
    assert 1 < parts[1] / parts[0] < 3


@pytest.mark.parametrize("name", ["cola", "squad"])
def test_the_evidence_by_copies_is_that_of_a_batch_that_is_repeated(name, finished):
    """Of whole networks, without what they share: every copy by itself, with the same draws."""
    task, config, _ = finished(name)
    given = {"guide": "weibull", "concentration": 1.0, "objective": "evidence", "draws": 3}
    module = task.network(replace(config, **given)).module.eval()
    batch = next(iter(task.load(config)["test"].batches(torch.device("cpu"), sentences=64)))
    copies = tree_map_only(torch.Tensor, lambda one: one.repeat(3, *[1] * (one.dim() - 1)), module.arguments(batch))
    parameters = [one for one in module.objective.model.parameters() if one.requires_grad]
    found = []
    for by_hand in (False, True):
        pyro.set_rng_seed(0)
        if by_hand:
            trace = module.objective.guide.run(*copies).trace
            trace.compute_log_prob(lambda _, site: site["is_observed"])
            each = sum(trace.nodes[site]["log_prob"] for site in trace.observation_nodes)
            loss = (math.log(3) - each.unflatten(0, (3, -1)).logsumexp(0)).sum()
        else:
            loss = module.objective(*module.arguments(batch))
        found.append((loss.detach(), torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)))
    torch.testing.assert_close(*found)


def test_what_a_pair_is_read_from(place):
    network = AutoModelForSequenceClassification.from_pretrained(place / "some" / "bert").eval()
    model = PairModel(network, pair=True).eval()
    inputs = {
        "input_ids": torch.tensor([[2, 5, 6, 3, 7, 3], [2, 8, 3, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]),
        "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]),
    }
    states = network.base_model(**inputs).last_hidden_state
    u, v, single = states[0, :4].mean(0), states[0, 4:].mean(0), states[1, :3].mean(0)
    expected = torch.stack([torch.cat([u, v, (u - v).abs()]), torch.cat([single, 0 * single, single.abs()])])
    torch.testing.assert_close(model(inputs), model.head(expected))


# windows of questions


def test_windows_overlap_and_hold_the_answer(tiny_config):
    config = tiny_config("squad", None)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
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
        if {"unheard", "word18"} <= set(text) and text.index("unheard") < text.index("word18"):
            assert context[window.spans[window.first, 0] : window.spans[window.last, 1]] == "unheard word18"
        else:
            assert window.first == window.last == window.nothing == 0


def test_training_leaves_out_an_answer_that_is_in_no_window(tiny_config):
    config = tiny_config("squad", None)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    context = " ".join(f"word{number % 20}" for number in range(40))
    long, short = (Question(text, "t", context, "word1", (Answer(text, 0),)) for text in (context, "word0 word1"))
    train = Windows([long, short], tokenizer, config, train=True)
    assert train.left_out == 1
    assert {window.question for window in train.windows} == {1}
    assert {window.question for window in Windows([long, short], tokenizer, config).windows} == {0, 1}


# bad input


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("rte", {"length": 500}, "length is 500, and model .* has 40 positions; pass --length 40"),
        ("stsb", {"out_of_domain": ("cola",)}, "out_of_domain is cola for stsb; expected another task"),
        (
            "squad",
            {"stride": 11},
            "length is 20 and stride 11; expected a length of at least 20 and a stride of at most half",
        ),
    ],
)
def test_bad_options(task, options, message, tiny_config, tmp_path):
    with pytest.raises(UserError, match=message):
        (QaTask() if task == "squad" else GlueTask()).run(tiny_config(task, tmp_path / "run", **options))


def test_the_longest_text_of_a_model_whose_positions_begin_behind_the_padding(tiny_config, tmp_path):
    """As those of RoBERTa do: the remedy is the length that can be computed."""
    folder = tmp_path / "roberta"
    sizes = SIZES | {"vocab_size": 30, "max_position_embeddings": 40, "pad_token_id": 0}
    RobertaModel(RobertaConfig(**sizes)).save_pretrained(folder)
    config, head = tiny_config("rte", None, model=str(folder), length=40), AutoModelForSequenceClassification
    with pytest.raises(UserError, match="has 39 positions; pass --length 39"):
        load_network(config, head, num_labels=2)
    network = load_network(replace(config, length=39), head, num_labels=2)
    assert network(torch.full((1, 39), 5)).logits.shape == (1, 2)


def test_a_model_of_which_weights_are_missing(tiny_config, tmp_path):
    folder = write_bert(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"16 weights of .* are missing, such as bert\.encoder\.layer\.2"):
        GlueTask().run(tiny_config("rte", tmp_path / "run", model=str(folder)))


def test_pickled_weights_are_not_read(tiny_config, tmp_path):
    folder = write_bert(tmp_path / "bert", safe=False)
    with pytest.raises(UserError, match="pickled weights are not read: save them again"):
        GlueTask().run(tiny_config("rte", tmp_path / "run", model=str(folder)))


@pytest.mark.parametrize("task", ["rte", "squad"])
def test_a_tokenizer_that_cannot_pad_is_refused(task, tiny_config, tmp_path):
    trainer, config = QaTask() if task == "squad" else GlueTask(), tiny_config(task, tmp_path / "out")
    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "pad_token"})
    )
    config = replace(config, model=str(folder))
    with pytest.raises(UserError, match=f"the tokenizer of {folder} has no padding token.*save_pretrained"):
        trainer.run(config)
    # the remedy
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.unk_token
    tokenizer.save_pretrained(folder)
    assert trainer.run(config)["updates"] > 0
