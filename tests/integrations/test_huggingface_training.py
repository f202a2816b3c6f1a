from functools import partial

import pytest
import torch
from torch.distributions import kl_divergence
from torch.nn import functional

pytest.importorskip("transformers")

import transformers

from pyro_attention import AttentionELBO, AttentionGuide, Soft, Weibull
from pyro_attention.integrations.huggingface import ELBOModel, bayesian
from pyro_attention.integrations.huggingface.likelihoods import likelihood_of
from pyro_attention.posterior.sampling import AtMean
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


def part(batch, start, length):
    """Examples as a collator pads them: to the longest of their own."""
    rows = {name: tensor[start : start + MICRO] for name, tensor in batch.items()}
    return {name: tensor[:, :length] if tensor.dim() > 1 else tensor for name, tensor in rows.items()}


def micro_batches(batch):
    return [part(batch, 0, 4), part(batch, 2, 7)]


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


def test_a_kl_weight_weighs_the_kl_alone():
    model, batch = classifier(), examples()
    guide = AttentionGuide(model, Weibull(10.0))
    with AtMean(), torch.no_grad():
        full, none, half = (
            ELBOModel(model, guide, AttentionELBO(kl_weight=weight))(**batch)["loss"] for weight in (1.0, 0.0, 0.5)
        )
    torch.testing.assert_close(half, (full + none) / 2)
    assert full > none


def test_lightning_accumulates():
    lightning = pytest.importorskip("lightning.pytorch")
    model, batch = classifier(), examples()
    objective = ELBOModel(model, AttentionGuide(model, Weibull(10.0)))
    with AtMean():
        objective(**batch)["loss"].backward()
    expected = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    class Training(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.objective = objective

        def training_step(self, rows, _):
            with AtMean():
                return self.objective(**rows)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Training(), torch.utils.data.DataLoader(micro_batches(batch), batch_size=None))
    after = dict(model.named_parameters())
    for name, parameter in expected.items():
        torch.testing.assert_close(after[name], parameter, atol=1e-6, rtol=1e-5)


def test_trainer_accumulates(tmp_path):
    model, batch = classifier(), examples()
    objective = ELBOModel(model, AttentionGuide(model, Weibull(1e8)))  # next to no noise
    objective(**batch)["loss"].backward()
    expected = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(4)]
    arguments = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=MICRO, gradient_accumulation_steps=2, max_steps=1, learning_rate=0.1,
        optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0, remove_unused_columns=False, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(objective, arguments, train_dataset=rows).train()
    after = dict(model.named_parameters())
    for name, parameter in expected.items():
        torch.testing.assert_close(after[name], parameter, atol=1e-4, rtol=1e-3)


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
        ("t5", "T5ForConditionalGeneration", ["labels"]),
        ("bert", "BertForMaskedLM", ["labels"]),
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


def test_tokens_that_do_not_count_are_no_observations():
    torch.manual_seed(0)
    model = bayesian(transformers.GPT2LMHeadModel(transformers.GPT2Config(**FAMILIES["gpt2"].options)).eval())
    objective = ELBOModel(model, AttentionGuide(model, Weibull(10.0)), AttentionELBO(kl_weight=0.0))
    ids = torch.tensor([[7, 8, 9, 10]])
    labels = ids.masked_fill(ids == 9, -100)
    with AtMean(), torch.no_grad():
        loss = objective(input_ids=ids, labels=labels)["loss"]
    logits = model(input_ids=ids).logits[:, :-1]
    torch.testing.assert_close(loss, functional.cross_entropy(logits[0], labels[0, 1:]), atol=1e-4, rtol=1e-4)


def test_a_likelihood_that_has_no_name():
    """As a callable object, or functools.partial."""
    models = classifier(), classifier(likelihood=partial(likelihood_of(classifier())))
    losses = [ELBOModel(model, AttentionGuide(model, Soft()))(**examples())["loss"] for model in models]
    torch.testing.assert_close(*losses)


def test_a_batch_without_labels():
    model, batch = classifier(), examples()
    del batch["labels"]
    with pytest.raises(TypeError, match="the batch has input_ids, attention_mask, expected labels"):
        ELBOModel(model, AttentionGuide(model, Weibull()))(**batch)
