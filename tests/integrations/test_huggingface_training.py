"""Likelihoods of the heads against transformers' own losses, and training by loops, Lightning and Trainer."""

import pyro
import pytest
import torch
from torch.distributions import kl_divergence
from torch.nn import functional

pytest.importorskip("transformers")

import transformers

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    EvidenceELBO,
    FromPrior,
    LogNormal,
    ScorePrior,
    Soft,
    Weibull,
    check_model,
    predict,
)
from pyro_attention.draws import BroadcastWarning
from pyro_attention.integrations.huggingface import ELBOModel, bayesian
from pyro_attention.posterior.passes import AtMean
from tests.integrations.tiny_transformers import SUPPORTED

FAMILIES = {family.name: family for family in SUPPORTED}
MICRO = 2


def classifier(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **FAMILIES["bert"].options, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return bayesian(transformers.BertForSequenceClassification(config).train(), **options)


def examples(size=4):
    torch.manual_seed(1)
    inputs = FAMILIES["bert"].batch(None, size)
    return inputs | {"labels": torch.arange(size) % 3}


def micro_batches(batch):
    """Examples as a collator pads them: to the longest of their own."""
    parts = [{name: tensor[start : start + MICRO] for name, tensor in batch.items()} for start in (0, 2)]
    parts[0] = {name: tensor[:, :4] if tensor.dim() > 1 else tensor for name, tensor in parts[0].items()}
    return parts


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_equal_gradients(one, other):
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def written_by_hand(model, guide, batch):
    """The negative ELBO per example: cross entropy and mean KL of a weight, without the library's objectives."""
    run = guide.run(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    likelihood = functional.cross_entropy(run.output, batch["labels"], reduction="sum")
    sites = [site for site in run.trace.nodes.values() if "prior" in site.get("infer", {})]
    kl = sum(kl_divergence(site["fn"], site["infer"]["prior"]) for site in sites)
    assert len(sites) == 2
    weights = 2 * 2 * batch["attention_mask"].sum(-1).square()  # layers, heads, queries and keys
    return (likelihood + 0.01 * (kl / weights).sum()) / len(batch["labels"])


def test_loss_equals_a_loop_written_by_hand():
    model, batch = classifier(), examples()
    guide = AttentionGuide(model, Weibull(10.0))
    torch.manual_seed(0)
    expected = written_by_hand(model, guide, batch)
    expected.backward()
    by_hand = gradients(model)
    model.zero_grad()
    torch.manual_seed(0)
    output = ELBOModel(model, guide)(**batch)
    output["loss"].backward()
    torch.testing.assert_close(output["loss"], expected, atol=1e-6, rtol=1e-6)
    assert_equal_gradients(gradients(model), by_hand)
    assert output["logits"].shape == (4, 3)
    assert not output["logits"].requires_grad


@pytest.mark.parametrize("count", [None, 0])
def test_a_batch_without_labels_that_count_has_the_kl_alone(count):
    """Divided by the number of labels its loss and gradients were infinite."""
    model, batch = classifier(), examples() | {"labels": torch.full((4,), -100)}
    output = ELBOModel(model, AttentionGuide(model, Weibull(10.0)))(**batch, num_items_in_batch=count)
    output["loss"].backward()
    assert 0 < output["loss"] < torch.inf
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_evidence_by_single_runs(chunk_size):
    """Models of transformers have no dimension for draws."""
    model, batch = classifier(prior=lambda _: ScorePrior(LogNormal(scale=0.5))), examples()
    guide, rows, leaves = AttentionGuide(model, FromPrior()), [], list(model.parameters())
    torch.manual_seed(0)
    for _ in range(3):
        logits = guide.run(**{name: tensor for name, tensor in batch.items() if name != "labels"}).output
        rows.append(torch.distributions.Categorical(logits=logits).log_prob(batch["labels"]))
    expected = -(torch.stack(rows).logsumexp(0) - torch.tensor(3.0).log()).sum()
    torch.manual_seed(0)
    elbo = EvidenceELBO(3, correction=None, chunk_size=chunk_size, max_plate_nesting=1)
    with pytest.warns(BroadcastWarning, match="draws go one by one"):
        loss = elbo.differentiable_loss(model, guide, **batch)
    torch.testing.assert_close(loss, expected)
    found, wanted = (torch.autograd.grad(each, leaves, allow_unused=True) for each in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    report = check_model(model, guide, elbo=elbo, **batch)
    assert report.ok
    assert "one by one" in report.notes[0]


@pytest.mark.parametrize("loop", ["plain", "trainer"])
def test_accumulation_counts_the_kl_once(loop):
    """Two micro batches of other padding give the gradient of one batch; noise is at its mean."""
    model, batch = classifier(), examples()
    objective = ELBOModel(model, AttentionGuide(model, Weibull(10.0)))
    with AtMean():
        objective(**batch)["loss"].backward()
        whole = gradients(model)
        model.zero_grad()
        parts = micro_batches(batch)
        items = sum(rows["labels"].ne(-100).sum() for rows in parts)
        for rows in parts:
            if loop == "trainer":  # as Trainer.compute_loss does for a model with accepts_loss_kwargs
                objective(**rows, num_items_in_batch=items)["loss"].backward()
            else:
                (objective(**rows)["loss"] / len(parts)).backward()
    assert objective.accepts_loss_kwargs
    assert_equal_gradients(gradients(model), whole)


def trained_rows(family, cls, labels):
    """A tiny model of a class in ELBOModel, and its examples."""
    torch.manual_seed(0)
    kind = getattr(transformers, cls)
    model = bayesian(kind(kind.config_class(**FAMILIES[family].options)))
    batch = FAMILIES[family].batch(model, 4)
    if labels == ["labels"]:
        batch["labels"] = batch.pop("decoder_input_ids", batch.get("input_ids"))
    else:
        batch |= {name: torch.arange(4) for name in labels}
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(4)]
    return ELBOModel(model, AttentionGuide(model, Weibull(10.0, learnable=True))), rows


@pytest.mark.parametrize(
    ("family", "cls", "labels"),
    [
        ("gpt2", "GPT2LMHeadModel", ["labels"]),
        ("whisper", "WhisperForConditionalGeneration", ["labels"]),
        ("bert", "BertForQuestionAnswering", ["start_positions", "end_positions"]),
    ],
)
def test_trainer_goes_on_from_its_checkpoint(family, cls, labels, tmp_path):
    """Most of these share the matrix of the embeddings with the head, which safetensors refuses to write twice."""
    arguments = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=MICRO, max_steps=4, save_steps=2, eval_strategy="steps", eval_steps=2,
        remove_unused_columns=False, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    weights = []
    for resume in (None, f"{tmp_path}/checkpoint-2"):
        objective, rows = trained_rows(family, cls, labels)
        trainer = transformers.Trainer(objective, arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        assert all(row["eval_loss"] > 0 for row in trainer.state.log_history if "eval_runtime" in row)
        weights.append({name: value.clone() for name, value in objective.named_parameters(remove_duplicate=False)})
    assert trainer.label_names == labels
    torch.testing.assert_close(*weights)


IDS = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]])


def head(cls: str, family: str = "bert", **options):
    torch.manual_seed(0)
    made = getattr(transformers, cls)
    return bayesian(made(made.config_class(**FAMILIES[family].options, **options)).eval())


SHARED_POSITIONS = {"position_ids": torch.arange(4)[None]}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_trainer_is_told_that_checkpointing_would_draw_anew(tmp_path):
    pytest.importorskip("accelerate")
    options = {"max_steps": 1, "report_to": [], "remove_unused_columns": False, "use_cpu": True}
    arguments = transformers.TrainingArguments(str(tmp_path), gradient_checkpointing=True, **options)
    model = head("BertForSequenceClassification")
    data = [{"input_ids": ids, "labels": torch.tensor(0)} for ids in IDS]
    trainer = transformers.Trainer(ELBOModel(model, AttentionGuide(model, Soft())), arguments, train_dataset=data)
    with pytest.raises(ValueError, match="the weights would be drawn anew; leave gradient_checkpointing=True"):
        trainer.train()


TRAINING = {"max_steps": 1, "report_to": [], "remove_unused_columns": False, "use_cpu": True, "disable_tqdm": True}


def sizes(evaluated):
    """Count what Trainer hands to metrics."""
    inputs = {} if evaluated.inputs is None else {"input_width": evaluated.inputs.shape[-1]}
    return {"items": len(evaluated.label_ids)} | inputs


def trained(folder, objective, rows, **options):
    """A trainer after one step and an evaluation."""
    arguments = transformers.Seq2SeqTrainingArguments(folder, per_device_train_batch_size=MICRO, **TRAINING | options)
    trainer = transformers.Seq2SeqTrainer(
        objective, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=sizes
    )
    trainer.train()
    return trainer.evaluate()


@pytest.mark.parametrize(
    "option",
    [
        {"neftune_noise_alpha": 5.0},
        {"train_sampling_strategy": "group_by_length"},
        {"include_for_metrics": ["inputs", "loss"]},
        {"predict_with_generate": True, "generation_max_length": 6},
        {"bf16": True},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_trainer(option, tmp_path):
    """Trainer asks its model for what any model of transformers has."""
    pytest.importorskip("accelerate")
    objective, rows = trained_rows("bart", "BartForConditionalGeneration", ["labels"])
    scores = trained(tmp_path, objective, rows, **option)
    assert scores["eval_loss"] > 0
    assert scores["eval_items"] == len(rows)
    assert objective.get_input_embeddings() is objective.model.get_input_embeddings()


def test_inputs_of_images_for_metrics(tmp_path):
    """Their name is not input_ids."""
    pytest.importorskip("accelerate")
    model = head("ViTForImageClassification", "vit")
    rows = [{"pixel_values": torch.randn(3, 8, 8), "labels": torch.tensor(0)} for _ in range(4)]
    objective = ELBOModel(model, AttentionGuide(model, Weibull(10.0)))
    assert trained(tmp_path, objective, rows, include_for_metrics=["inputs"])["eval_input_width"] == 8


@pytest.mark.parametrize("option", ["label_smoothing_factor", "compute_loss_func"])
def test_losses_without_a_kl_are_named(option, tmp_path):
    """Trainer takes the labels out of the batch, to make a loss of the logits alone."""
    pytest.importorskip("accelerate")
    model = head("BertForSequenceClassification")
    arguments = transformers.TrainingArguments(tmp_path, **TRAINING, **{option: 0.1} if "label" in option else {})
    rows = [{"input_ids": ids, "labels": torch.tensor(0)} for ids in IDS]
    trainer = transformers.Trainer(
        ELBOModel(model, AttentionGuide(model, Soft())), arguments, train_dataset=rows,
        **{option: lambda outputs, *_, **__: outputs["logits"].sum()} if "compute" in option else {},
    )  # fmt: skip
    with pytest.raises(TypeError, match="takes them out for label_smoothing_factor= and compute_loss_func="):
        trainer.train()


def test_smoothed_labels_by_a_likelihood_of_ones_own():
    """What the message above advises: each class has a share of the smoothing, as in torch's cross entropy."""

    def smoothed(output, labels):
        logits = output.logits.log_softmax(-1)
        target = functional.one_hot(labels["labels"], 3) * 0.9 + 0.1 / 3
        pyro.factor("labels", (target * logits).sum(-1))

    config = transformers.BertConfig(**FAMILIES["bert"].options, num_labels=3)
    torch.manual_seed(0)
    model = bayesian(transformers.BertForSequenceClassification(config).eval(), likelihood=smoothed)
    labels = torch.tensor([0, 2, 1])
    loss = ELBOModel(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)["loss"]
    expected = functional.cross_entropy(model(input_ids=IDS).logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_embeddings_in_place_of_tokens(family):
    """With the same positions for all of the batch, which stand before them among the arguments of some models."""
    cls = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[family]
    model = head(cls, family)
    loss, guide = AttentionELBO(kl_weight=0.0), AttentionGuide(model, Soft())
    embedded = {"inputs_embeds": model.get_input_embeddings()(IDS), **SHARED_POSITIONS}
    torch.testing.assert_close(
        loss.loss(model, guide, **embedded, labels=IDS), loss.loss(model, guide, input_ids=IDS, labels=IDS)
    )


@pytest.mark.parametrize(
    ("cls", "labels"),
    [
        ("BertForSequenceClassification", torch.tensor([0, 2, 1])),
        ("BertForSequenceClassification", torch.tensor([0, -100, 1])),
        ("BertForSequenceClassification", torch.eye(3)),
        ("BertForTokenClassification", torch.tensor([[1, -100, 2, -100], [-100, 0, -100, 1], [2, 2, -100, -100]])),
        ("GPT2LMHeadModel", torch.tensor([[7, 8, 9, 10], [11, -100, 13, 14], [-100, -100, 17, 18]])),
        ("LlamaForCausalLM", torch.tensor([[7, 8, 9, 10], [11, -100, 13, 14], [-100, -100, 17, 18]])),
    ],
)
def test_trainer_counts_what_the_model_counts(cls, labels, tmp_path):
    """The loss of a batch is the same, whether Trainer passes the number of its observations or not."""
    family = next(name for name in ("bert", "gpt2", "llama") if cls.lower().startswith(name))
    options = {} if family != "bert" else {"num_labels": 3}
    model = head(cls, family, **options)
    objective, batch = ELBOModel(model, AttentionGuide(model, Weibull(10.0))), {"input_ids": IDS, "labels": labels}
    arguments = transformers.TrainingArguments(tmp_path, report_to=[], use_cpu=True, remove_unused_columns=False)
    trainer = transformers.Trainer(objective, arguments, train_dataset=[{}])
    _, count = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
    with AtMean():
        losses = [objective(**batch, **given)["loss"] for given in ({}, {"num_items_in_batch": count})]
    torch.testing.assert_close(losses[1], losses[0])


def normal(logits, target):
    return 0.5 * (logits - target).square().sum() + target.numel() * 0.5 * torch.log(torch.tensor(2 * torch.pi))


def cross_entropy(logits, target):
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum")


def several(logits, target):
    return functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")


MASKED = torch.tensor([[1, -100, 2, -100], [-100, 0, -100, 1], [2, 2, -100, -100]])
NUMBERS, SEVERAL = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]])
CASES = [
    ("BertForSequenceClassification", {"num_labels": 3}, torch.tensor([0, 2, 1]), cross_entropy),
    ("BertForSequenceClassification", {"num_labels": 1}, NUMBERS, lambda x, target: normal(x[..., 0], target)),
    ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "regression"}, SEVERAL, normal),
    ("BertForSequenceClassification", {"num_labels": 3}, SEVERAL, several),
    ("BertForSequenceClassification", {"num_labels": 3}, torch.tensor([0, -100, 1]), cross_entropy),
    ("BertForMaskedLM", {}, MASKED, cross_entropy),
]


@pytest.mark.parametrize(("cls", "options", "labels", "expected"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_loss_of_a_head(cls, options, labels, expected):
    model = head(cls, **options)
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, expected(model(input_ids=IDS).logits, labels))


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_a_pair_that_classifies(name):
    """Its decoder reads the text of the encoder, which has to hold the end of a sentence."""
    model, end = head(f"{name}ForSequenceClassification", name.lower(), num_labels=3), {"Bart": 2, "T5": 1}[name]
    inputs, labels = {"input_ids": IDS.clone().index_fill_(1, torch.tensor([2]), end)}, torch.tensor([0, 2, 1])
    loss = ELBOModel(model, AttentionGuide(model, Soft()))(**inputs, labels=labels, return_dict=True)["loss"]
    torch.testing.assert_close(loss, functional.cross_entropy(model(**inputs).logits, labels))


def test_next_tokens_are_those_of_transformers():
    model = head("GPT2LMHeadModel", "gpt2")
    labels = IDS.masked_fill(IDS > 16, -100)
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, model(input_ids=IDS, labels=labels).loss * (labels[:, 1:] != -100).sum())


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_decoders_read_the_labels(name):
    model = head(f"{name}ForConditionalGeneration", name.lower())
    labels = torch.tensor([[5, 6, 7], [8, 9, -100], [5, -100, -100]])
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, model(input_ids=IDS, labels=labels).loss * (labels != -100).sum())


@pytest.mark.parametrize("name", ["Bart", "T5", "Whisper"])
@pytest.mark.parametrize("given", ["labels", "decoder_input_ids", "decoder_attention_mask"])
def test_padding_of_a_decoder_has_no_part_in_the_kl(name, given):
    """Neither in its self-attention nor in its cross-attention, whoever makes the inputs of the decoder."""
    model, family = head(f"{name}ForConditionalGeneration", name.lower()), FAMILIES[name.lower()]
    inputs = {name: tensor for name, tensor in family.batch(model, 3).items() if "decoder" not in name}
    labels = torch.tensor([[5, 6, 7, 8], [5, -100, 7, 8], [8, 9, 5, -100]])[:, :3]
    record, losses = [], []
    for padding in (0, 2):
        padded = functional.pad(labels, (0, padding), value=-100)
        batch = inputs | {"labels": padded}
        if given != "labels":
            batch["decoder_input_ids"] = functional.pad(padded, (1, -1), value=1).clamp(min=0)
        if given == "decoder_attention_mask":
            batch["decoder_attention_mask"] = (torch.arange(3 + padding) < 3).long().expand(3, -1)
        elbo = AttentionELBO()
        torch.manual_seed(0)
        elbo.loss(model, AttentionGuide(model, Weibull(1e4)), **batch)  # hardly any noise, whose draws differ in number
        record.append(elbo.kl_record)
        losses.append(AttentionELBO().loss(model, AttentionGuide(model, Soft()), **batch))
    assert len(record[0]) == 6
    torch.testing.assert_close(record[0], record[1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(losses[0], losses[1])


def test_answers():
    model = head("BertForQuestionAnswering")
    guide = AttentionGuide(model, Soft())
    ends = {"start_positions": torch.tensor([0, 1, 4]), "end_positions": torch.tensor([2, 1, 4])}  # 4 is outside
    loss = AttentionELBO()(model, guide)(input_ids=IDS, **ends)
    output = model(input_ids=IDS)
    expected = cross_entropy(output.start_logits[:2], ends["start_positions"][:2])
    expected = expected + cross_entropy(output.end_logits[:2], ends["end_positions"][:2])
    torch.testing.assert_close(loss, expected)
    mean = predict(guide, input_ids=IDS, num_samples=1).mean
    torch.testing.assert_close(mean, torch.stack([output.start_logits, output.end_logits], 1))


def test_labels_that_do_not_fit():
    model = head("BertForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match=r"labels lie in 0 \.\. 3, expected classes 0 \.\. 2; .*num_labels="):
        AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=torch.tensor([0, 1, 3]))


@pytest.mark.parametrize(("family", "context"), [("bert", 40), ("roberta", 38)])
def test_texts_over_the_context(family, context):
    """RoBERTa's table of 40 positions begins behind the padding."""
    cls = {"bert": "BertForSequenceClassification", "roberta": "RobertaForSequenceClassification"}[family]
    guide = AttentionGuide(head(cls, family, num_labels=3), Weibull(10.0))
    assert predict(guide, input_ids=torch.full((2, context), 7), num_samples=1).mean.shape == (2, 3)
    message = (
        rf"texts have {context + 1} tokens, more than the context of \w+, {context} tokens; shorten them by .*{context}"
    )
    with pytest.raises(ValueError, match=message):
        predict(guide, input_ids=torch.full((2, context + 1), 7), num_samples=1)
    with pytest.raises(ValueError, match=r"input_ids lie in 7 \.\. 60, expected tokens 0 \.\. 59"):
        predict(guide, input_ids=torch.tensor([[7, 60]]), num_samples=1)


def test_other_errors_of_a_model_stay_what_they_are():
    guide = AttentionGuide(head("BertForSequenceClassification"), Weibull(10.0))
    with pytest.raises(RuntimeError, match=r"(?i)size|shape"):
        predict(guide, input_ids=IDS, token_type_ids=torch.zeros(3, 9, dtype=torch.int64), num_samples=1)
