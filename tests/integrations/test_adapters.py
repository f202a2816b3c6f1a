"""Adapters of PEFT on Bayesian models, in every order of calls: priors train and come back, or an error tells why."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("peft")

import transformers
from peft import (
    IA3Config,
    LoraConfig,
    PeftMixedModel,
    PeftModel,
    PromptTuningConfig,
    get_peft_model,
    get_peft_model_state_dict,
)

from pyro_attention import AttentionELBO, AttentionGuide, Soft, Weibull, predict, sample_posterior
from pyro_attention import bayesian as one_call
from pyro_attention.integrations.huggingface import ELBOModel, bayesian, deterministic, load_adapter
from tests.integrations.tiny_transformers import REFUSED, SUPPORTED

FAMILIES = {family.name: family for family in SUPPORTED}
CHILD = "latent_attention"
IDS, LABELS = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]]), torch.tensor([0, 2, 1])


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    """A saved plain classifier."""
    folder = tmp_path_factory.mktemp("models") / "base"
    torch.manual_seed(0)
    config = transformers.BertConfig(**FAMILIES["bert"].options, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def load(folder, seed=0):
    """The classifier; other seeds give other fresh priors."""
    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification.from_pretrained(folder)


def lora(**options):
    return LoraConfig(**{"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query", "value"]} | options)


def loss_of(model):
    """The negative ELBO of a batch, of which the KL reads the priors."""
    model.eval()
    torch.manual_seed(0)
    loss = AttentionELBO(kl_weight=0.1, kl_mean=True)(model, AttentionGuide(model, Weibull(10.0)))
    return loss(input_ids=IDS, labels=LABELS).item()


def priors(model):
    return {name: value for name, value in model.named_parameters() if f".{CHILD}." in name and value.requires_grad}


def train(model):
    """Train what takes gradients, so far that all of it moves."""
    before = {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}
    assert priors(model)
    optimizer = torch.optim.Adam([value for value in model.parameters() if value.requires_grad], 0.05)
    objective = AttentionELBO(kl_weight=0.1, kl_mean=True)(model.train(), AttentionGuide(model, Weibull(10.0)))
    for _ in range(4):
        optimizer.zero_grad()
        objective(input_ids=IDS, labels=LABELS).backward()
        optimizer.step()
    unmoved = [name for name, value in model.named_parameters() if name in before and value.equal(before[name])]
    assert not [name for name in unmoved if "score" not in name]
    return model


def peft_first(folder, **options):
    return bayesian(get_peft_model(load(folder), lora()), **options)


def bayesian_first(folder, **options):
    return get_peft_model(bayesian(load(folder), **options), lora(modules_to_save=[CHILD]))


def inside(folder, **options):
    """The model inside the PeftModel, which shares its modules, was made Bayesian."""
    outer = get_peft_model(load(folder), lora())
    bayesian(outer.get_base_model(), **options)
    return outer


ORDERS = pytest.mark.parametrize("order", [peft_first, bayesian_first, inside], ids=lambda order: order.__name__)


@ORDERS
@pytest.mark.parametrize("prior", ["gamma_contextual", "lognormal_contextual"])
def test_save_and_load(order, prior, base_folder, tmp_path):
    model = train(order(base_folder, prior=prior))
    expected = loss_of(model)
    model.save_pretrained(tmp_path)
    assert loss_of(load_adapter(bayesian(load(base_folder, 7), prior=prior), tmp_path)) == pytest.approx(expected, 1e-6)
    stock = PeftModel.from_pretrained(bayesian(load(base_folder, 8), prior=prior), tmp_path)
    assert loss_of(stock) == pytest.approx(expected, 1e-6)


@ORDERS
def test_merge(order, base_folder, tmp_path):
    model = train(order(base_folder))
    expected = loss_of(model)
    merged = model.merge_and_unload()
    assert loss_of(merged) == pytest.approx(expected, 1e-5)
    merged.save_pretrained(tmp_path)
    again = bayesian(transformers.BertForSequenceClassification.from_pretrained(tmp_path))
    assert loss_of(again) == pytest.approx(expected, 1e-5)
    logits = merged(input_ids=IDS).logits
    torch.testing.assert_close(deterministic(merged)(input_ids=IDS).logits, logits)


def test_orders_agree(base_folder):
    """The sites, what trains, and the numbers, under the same priors."""
    models = [order(base_folder) for order in (peft_first, bayesian_first, inside)]
    for model in models:
        torch.manual_seed(1)
        for _, value in sorted(priors(model).items()):
            torch.nn.init.normal_(value)
    assert priors(models[0]).keys() == priors(models[1]).keys() == priors(models[2]).keys()
    losses = [loss_of(model) for model in models]
    assert losses[1:] == pytest.approx(losses[:1] * 2, 1e-6)
    sites = [sorted(sample_posterior(AttentionGuide(m, Weibull(10.0)), input_ids=IDS, num_samples=1)) for m in models]
    assert sites[0] == sites[1] == sites[2] == [f"bert.encoder.layer.{i}.attention.self" for i in (0, 1)]


def test_soft_equals_the_adapted_model(base_folder):
    plain = get_peft_model(load(base_folder), lora(init_lora_weights=False)).eval()
    expected = plain(input_ids=IDS).logits
    model = bayesian(plain)
    torch.testing.assert_close(model(input_ids=IDS).logits, expected)
    torch.testing.assert_close(predict(AttentionGuide(model, Soft()), input_ids=IDS, num_samples=1).mean, expected)


@pytest.mark.slow
def test_another_process(base_folder, tmp_path):
    model = train(peft_first(base_folder))
    model.save_pretrained(tmp_path)
    script = (
        "import sys; from tests.integrations.test_adapters import *\n"
        "print('loss', repr(loss_of(load_adapter(bayesian(load(sys.argv[1], 3)), sys.argv[2]))))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(base_folder), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert float(run.stdout.rpartition("loss ")[2]) == pytest.approx(loss_of(model), 1e-6)


@ORDERS
def test_trainer(order, base_folder, tmp_path):
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(IDS, LABELS, strict=True)]
    arguments = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=2, max_steps=2, save_steps=2, remove_unused_columns=False, report_to=[],
        use_cpu=True, disable_tqdm=True, learning_rate=0.05,
    )  # fmt: skip
    model = order(base_folder)
    before = {name: value.detach().clone() for name, value in priors(model).items()}
    objective = ELBOModel(model, AttentionGuide(model, Weibull(10.0)))
    transformers.Trainer(objective, arguments, train_dataset=rows).train()
    assert not any(value.equal(before[name]) for name, value in priors(model).items())
    objective.model.save_pretrained(tmp_path / "adapter")
    loaded = load_adapter(bayesian(load(base_folder, 5)), tmp_path / "adapter", is_trainable=True)
    assert priors(loaded).keys() == before.keys()
    assert loss_of(loaded) == pytest.approx(loss_of(model), 1e-6)


@pytest.mark.parametrize(
    ("task", "cls", "family", "targets", "labels"),
    [
        ("CAUSAL_LM", "GPT2LMHeadModel", "gpt2", ["c_attn"], {"labels": IDS}),
        ("CAUSAL_LM", "LlamaForCausalLM", "llama", ["q_proj"], {"labels": IDS}),
        ("SEQ_2_SEQ_LM", "T5ForConditionalGeneration", "t5", ["q"], {"labels": IDS}),
        ("QUESTION_ANS", "BertForQuestionAnswering", "bert", ["query"],
         {"start_positions": LABELS, "end_positions": LABELS}),
        (None, "BertForSequenceClassification", "bert", ["query"], {"labels": torch.tensor([0, 1, 1])}),
    ],
)  # fmt: skip
def test_heads(task, cls, family, targets, labels, tmp_path):
    """Losses of Trainer's module before saving and after loading; a task that PEFT is not told of too."""
    kind = getattr(transformers, cls)
    torch.manual_seed(0)
    kind(kind.config_class(**FAMILIES[family].options)).save_pretrained(tmp_path / "base")
    fan = family == "gpt2"
    config = LoraConfig(task_type=task, r=2, target_modules=targets, fan_in_fan_out=fan, init_lora_weights=False)

    def loss(model):
        torch.manual_seed(0)
        with torch.no_grad():
            return ELBOModel(model.eval(), AttentionGuide(model, Weibull(10.0)))(input_ids=IDS, **labels)["loss"]

    model = bayesian(get_peft_model(kind.from_pretrained(tmp_path / "base"), config))
    for value in priors(model).values():
        torch.nn.init.normal_(value)
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_adapter(bayesian(kind.from_pretrained(tmp_path / "base")), tmp_path / "adapter")
    torch.testing.assert_close(loss(loaded), loss(model))


def test_generate(tmp_path):
    """Soft weights give the tokens of the adapted model itself."""
    torch.manual_seed(0)
    model = FAMILIES["llama"]
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**model.options))
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = get_peft_model(plain, config).eval()
    options = {"input_ids": IDS, "max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    expected = adapted.generate(**options)
    adapted = bayesian(adapted)
    assert adapted.generate(**options).equal(expected)
    with torch.no_grad():
        assert AttentionGuide(adapted.generate, Soft()).run(**options).output.equal(expected)


def test_an_adapter_of_transformers_own(base_folder, tmp_path):
    """PreTrainedModel.add_adapter puts layers of PEFT into a model without a PeftModel around it."""
    model = load(base_folder)
    model.add_adapter(lora())
    model = train(bayesian(model))
    model.save_pretrained(tmp_path)
    loaded = bayesian(load(base_folder, 4))
    loaded.load_adapter(str(tmp_path))
    for name, tensor in get_peft_model_state_dict(model).items():
        assert get_peft_model_state_dict(loaded)[name].equal(tensor), name


def test_other_adapters(base_folder, tmp_path):
    config = IA3Config(task_type="SEQ_CLS", target_modules=["key", "value"], feedforward_modules=[])
    model = train(bayesian(get_peft_model(load(base_folder), config)))
    model.save_pretrained(tmp_path)
    assert loss_of(load_adapter(bayesian(load(base_folder, 2)), tmp_path)) == pytest.approx(loss_of(model), 1e-6)


def test_two_adapters_have_priors_of_their_own(base_folder):
    model = get_peft_model(load(base_folder), lora())
    model.add_adapter("second", lora())
    model = bayesian(model)
    first = loss_of(train(model))
    model.set_adapter("second")
    train(model)
    model.set_adapter("default")
    assert loss_of(model) == pytest.approx(first, 1e-6)


def test_priors_that_would_be_lost(base_folder):
    """The error says three lines, which work."""
    model = get_peft_model(bayesian(load(base_folder)), lora())
    with pytest.raises(ValueError, match=r"priors of 2 attention sites.*modules_to_save=\['latent_attention'\](.|\n)*"):
        loss_of(model)
    with torch.no_grad():  # predictions need no prior
        assert loss_of(model) > 0
    for value in model.parameters():  # they train, but PEFT leaves them out of its file
        value.requires_grad_(True)
    with pytest.raises(ValueError, match="save_pretrained leaves them out"):
        loss_of(model)


def test_a_second_adapter_without_the_priors(base_folder):
    model = bayesian(get_peft_model(load(base_folder), lora()))
    model.add_adapter("second", lora())
    model.set_adapter("second")
    with pytest.raises(ValueError, match="not part of the active adapter"):
        loss_of(model)
    with model.disable_adapter():
        assert loss_of(model) > 0


def test_priors_of_the_base_may_stay_frozen(base_folder, tmp_path):
    bayesian(load(base_folder)).save_pretrained(tmp_path / "trained")
    model = get_peft_model(bayesian(load(tmp_path / "trained")), lora(init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(bayesian(load(tmp_path / "trained", 9)), tmp_path / "adapter")
    assert loss_of(loaded) == pytest.approx(loss_of(model), 1e-6)


def test_a_prior_without_parameters_has_nothing_to_lose(base_folder):
    assert loss_of(get_peft_model(bayesian(load(base_folder), prior="gamma_fixed"), lora())) > 0


@pytest.fixture(scope="module")
def adapter(base_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "adapter"
    peft_first(base_folder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("loader", ["peft", "transformers"])
def test_loaded_before_bayesian(loader, base_folder, adapter):
    if loader == "peft":
        model = PeftModel.from_pretrained(load(base_folder), adapter)
    else:
        model = transformers.BertForSequenceClassification.from_pretrained(adapter, num_labels=3)
    with pytest.raises(ValueError, match=r"saved with priors.*load_adapter\(bayesian\(model\), folder\)"):
        bayesian(model)


@pytest.mark.parametrize("options", [{"sites": "*layer.1*"}, {"prior": "lognormal_fixed"}, {"prior": "gamma_fixed"}])
def test_other_priors_than_the_adapters(options, base_folder, adapter):
    """PEFT loads the adapter of all sites onto one of them without a word."""
    model = bayesian(load(base_folder), **options)
    with pytest.raises(ValueError, match=r"are not those of the model: .* give bayesian\(\) the prior= and sites="):
        load_adapter(model, adapter)


def test_an_adapter_of_another_base(base_folder, adapter, tmp_path):
    load(base_folder).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"was trained on '.*base', but the model was loaded from '.*other'"):
        load_adapter(bayesian(load(tmp_path / "other")), adapter)
    load(base_folder).save_pretrained(tmp_path / "base")  # moved
    assert load_adapter(bayesian(load(tmp_path / "base")), adapter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_hidden_layers": 3}, "priors of the adapter .* are not those of the model"),
        ({"num_hidden_layers": 1}, "priors of the adapter .* are not those of the model"),
        ({"hidden_size": 32, "num_attention_heads": 4}, r"'.*query\.lora_A.*|has shape .* in the model"),
    ],
)
def test_an_adapter_of_a_base_of_other_sizes(options, message, adapter):
    """A model that was not loaded from a folder has no name to compare."""
    config = transformers.BertConfig(**FAMILIES["bert"].options | options, num_labels=3)
    model = bayesian(transformers.BertForSequenceClassification(config))
    with pytest.raises(ValueError, match=message):
        load_adapter(model, adapter)


def test_an_adapter_without_priors(base_folder, tmp_path):
    get_peft_model(load(base_folder), lora()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds no priors"):
        load_adapter(bayesian(load(base_folder)), tmp_path)
    plain = PeftModel.from_pretrained(load(base_folder), tmp_path, is_trainable=True)
    assert train(bayesian(plain))  # what the message says


def test_models_that_take_no_adapter(base_folder, adapter):
    with pytest.raises(ValueError, match=r"no latent attention, expected a result of bayesian\(model\)"):
        load_adapter(load(base_folder), adapter)
    with pytest.raises(ValueError, match="has an adapter already"):
        load_adapter(peft_first(base_folder), adapter)
    with pytest.raises(ValueError, match="Bayesian already"):
        bayesian(peft_first(base_folder))
    with pytest.raises(ValueError, match=r"deterministic\(model\.merge_and_unload\(\)\)"):
        deterministic(peft_first(base_folder).get_base_model())


def test_adapters_outside_the_layers(base_folder):
    prompts = get_peft_model(load(base_folder), PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="PROMPT_TUNING, which changes no module"):
        bayesian(prompts)
    mixed = get_peft_model(load(base_folder), lora(task_type=None), mixed=True)
    assert isinstance(mixed, PeftMixedModel)
    with pytest.raises(ValueError, match="PEFT can neither save nor load"):
        bayesian(mixed)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_quantized_base(adapted, base_folder):
    """What a loader of transformers leaves on a model whose weights it quantized."""
    model = load(base_folder)
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    with pytest.raises(ValueError, match=r"is quantized.*load it without quantization_config="):
        bayesian(get_peft_model(model, lora()) if adapted else model)


def test_a_base_without_attention_that_can_be_reached():
    family = next(family for family in REFUSED if family.name == "fnet")
    model = get_peft_model(family.make(), LoraConfig(target_modules=["dense"], r=2))
    with pytest.raises(ValueError, match="never called the attention interface of transformers"):
        bayesian(model)


def test_the_file_names_what_it_holds(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert CHILD in config["modules_to_save"]


@pytest.mark.parametrize("mixed", [False, True])
def test_an_adapted_model_in_one_call(base_folder, mixed):
    """The same losses as by the single calls; a model with mixed adapters is named."""
    if mixed:
        with pytest.raises(ValueError, match="PeftMixedModel, which PEFT can neither save nor load"):
            one_call(get_peft_model(load(base_folder), lora(), mixed=True))
        return
    torch.manual_seed(0)
    model, guide, loss = one_call(get_peft_model(load(base_folder), lora()), "weibull", prior="fixed")
    assert isinstance(model, PeftModel)
    other = bayesian(get_peft_model(load(base_folder), lora()), prior="gamma_fixed")
    losses = []
    for each in (loss, ELBOModel(other, AttentionGuide(other, Weibull(10.0)))):
        torch.manual_seed(1)
        losses.append(each.eval()(input_ids=IDS, labels=LABELS)["loss"])
    torch.testing.assert_close(*losses)
    assert predict(guide, input_ids=IDS, num_samples=2).mean.shape == (3, 3)
