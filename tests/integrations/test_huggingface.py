"""Conversion of models of transformers: numbers, sites, gradients, masks, files, and the committed table."""

import copy
import json
import pickle
import re
from functools import partial

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dirichlet,
    FixedGammaPrior,
    LaplacePosterior,
    LogNormal,
    Soft,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from pyro_attention.families.gaussian import Gaussian
from pyro_attention.guide import attention_weights
from pyro_attention.integrations.huggingface import bayesian, deterministic
from pyro_attention.integrations.huggingface.attention import attend
from tests.integrations.huggingface_table import DOCUMENT, measure
from tests.integrations.tiny_transformers import REFUSED, SUPPORTED, Family

GENERATORS = {"llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration"}
SELF_ATTENTION = {"llama": "model.layers.0.self_attn", "t5": "decoder.block.0.layer.0.SelfAttention"}
SITES = [f"bert.encoder.layer.{layer}.attention.self" for layer in range(2)]
FAMILIES = {family.name: family for family in SUPPORTED}


def classifier(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(**FAMILIES["bert"].options, num_labels=3, **options)
    return transformers.BertForSequenceClassification(config).eval()


def batch(size=4):
    torch.manual_seed(1)
    inputs = FAMILIES["bert"].batch(None, size)
    return inputs | {"labels": torch.randint(3, (size,))}


def without_labels(inputs):
    return {name: value for name, value in inputs.items() if name != "labels"}


def test_it_is_a_pyro_model():
    model, inputs = bayesian(classifier()), batch()
    guide = AttentionGuide(model, Weibull(10.0))
    report = check_model(model, guide, **inputs, elbo=AttentionELBO(kl_weight=0.01, kl_mean=True))
    assert report.problems == ()
    assert [site.name for site in report.sites] == SITES
    assert [(site.batch_shape, site.event_shape) for site in report.sites] == [((4,), (2, 7, 7))] * 2
    prediction = predict(guide, **without_labels(inputs), num_samples=3, seed=0)
    assert prediction.mean.shape == (4, 3)
    assert (prediction.variance > 0).all()
    samples = sample_posterior(guide, **without_labels(inputs), num_samples=3, seed=0)
    assert samples[SITES[0]].shape == (3, 4, 2, 7, 7)


class LowRank(torch.nn.Module):
    """LoRA of a square weight, as a parametrisation of it."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.randn(*shape) / width) for shape in ((width, 2), (2, width)))

    def forward(self, weight):
        return weight + self.a @ self.b


@pytest.mark.parametrize(
    ("pattern", "size", "changed"),
    [("*layer.1.*.query.weight", 256, SITES[1:]), ("*.query.parametrizations.*.b", 64, SITES)],
)
def test_a_posterior_of_what_makes_the_scores(pattern, size, changed):
    """Of the last layer's queries, or of LoRA; a draw moves the attention of its layers alone, beside that of S."""
    model, inputs = bayesian(classifier()), batch()
    if "parametrizations" in pattern:
        for layer in model.bert.encoder.layer:
            query = layer.attention.self.query
            torch.nn.utils.parametrize.register_parametrization(query, "weight", LowRank(16))
    soft, random = (AttentionGuide(model, family) for family in (Soft(), LogNormal(0.1)))
    loss = AttentionELBO(kl_weight=0.0)(model, soft)
    rows = [({name: value[i : i + 1] for name, value in inputs.items()},) for i in range(4)]
    posterior = LaplacePosterior(model, pattern, lambda row: loss(**row), rows, prior_scale=1.0, curvature="fisher")
    assert posterior.covariance.shape == (size, size)
    spread = {
        name: {site: draws.var(0).sum() for site, draws in
               sample_posterior(guide, **without_labels(inputs), num_samples=30, seed=0).items()}
        for name, guide in (("scores", posterior(soft)), ("noise", random), ("both", posterior(random)))
    }  # fmt: skip
    assert [site for site in SITES if spread["scores"][site] > 1e-8] == changed
    assert all(spread["both"][site] > max(spread["noise"][site], spread["scores"][site]) for site in changed)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(duplicate):
    """A copy is a Bayesian model of its own, with the priors of the original, and can be made deterministic."""
    model, inputs = bayesian(classifier(), prior=FixedGammaPrior, sites=SITES[0]), without_labels(batch())
    twin = duplicate(model)
    assert type(twin) is type(model)
    draws = [predict(AttentionGuide(each, Weibull(2.0)), **inputs, num_samples=3, seed=0) for each in (model, twin)]
    assert draws[0].mean.equal(draws[1].mean)
    assert draws[0].variance.equal(draws[1].variance)
    expected = model(**inputs).logits
    torch.testing.assert_close(deterministic(twin)(**inputs).logits, expected)
    assert len(sample_posterior(AttentionGuide(model, Weibull()), **inputs, num_samples=1)) == 1


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("number", [-1e4, -1e9, -torch.inf])
def test_masks_of_ones_own(family, number):
    """Whatever stands for -inf in a mask with four dimensions, the key has no weight and no part in the KL."""
    model, inputs = bayesian(FAMILIES[family].make()), FAMILIES[family].batch(None, 2)
    allowed = inputs["attention_mask"].bool()[:, None, None, :] & torch.ones(7, 7, dtype=torch.bool).tril()
    guide, losses = AttentionGuide(model, Weibull(10.0)), []
    for masked in (torch.finfo(torch.float32).min, number):
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, masked)
        torch.manual_seed(0)
        losses.append(AttentionELBO().loss(model, guide, input_ids=inputs["input_ids"], attention_mask=mask))
    assert losses[1] == pytest.approx(losses[0])


def test_training_reaches_prior_and_encoder():
    """A KL that were detached would leave the priors without a gradient, as the likelihood does not read them."""
    model, inputs = bayesian(classifier()), batch()
    AttentionELBO()(model, AttentionGuide(model, Weibull(10.0)))(**inputs).backward()
    prior = [p for name, p in model.named_parameters() if ".prior." in name]
    assert len(prior) == 6
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in prior)
    model.zero_grad()
    unobserved = without_labels(inputs)
    AttentionELBO()(model, AttentionGuide(model, Weibull(10.0)))(**unobserved).backward()  # the KL alone
    attention = model.bert.encoder.layer[0].attention.self
    assert all(layer.weight.grad.abs().sum() > 0 for layer in (attention.query, attention.key))


@pytest.mark.parametrize(
    ("prior", "family"),
    [
        ("gamma_contextual", LogNormal(0.1)),
        (FixedGammaPrior, Weibull(10.0)),
        (partial(ContextualGammaPrior, rate=2.0), Weibull(10.0)),
        (lambda width: ContextualGammaPrior(width, heads=2), Weibull(10.0)),
        ("dirichlet", Dirichlet()),
        ("gaussian_contextual", Gaussian()),
    ],
    ids=["name", "class", "partial", "function", "dirichlet", "gaussian"],
)
def test_priors_and_families(prior, family):
    inputs = batch()
    expected = classifier()(**inputs).logits
    model = bayesian(classifier(), prior=prior)
    torch.testing.assert_close(model(**inputs).logits, expected)
    elbo = None if "enumerate" in family.infer else AttentionELBO(kl_weight=0.01, kl_mean=True)
    report = check_model(model, AttentionGuide(model, family), **inputs, elbo=elbo)
    assert report.problems == ()
    with torch.no_grad():
        soft = AttentionGuide(model, Soft()).run(**inputs).output if family.kind == "log_weights" else expected
    torch.testing.assert_close(soft, expected, atol=1e-5, rtol=0)


def test_a_forward_that_was_replaced_on_the_model_is_refused():
    """As accelerate does: it would run the network's own forward, which observes nothing; afterwards it may."""
    model, inputs = classifier(), batch()
    expected = bayesian(classifier(), prior=FixedGammaPrior)
    replaced = model.forward
    model.forward = lambda *args, **kwargs: replaced(*args, **kwargs)
    with pytest.raises(ValueError, match=r"forward of this BertForSequenceClassification was replaced .* accelerate"):
        bayesian(model)
    del model.forward
    converted = bayesian(model, prior=FixedGammaPrior)
    forward = converted.forward
    converted.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    losses = [AttentionELBO().loss(each, AttentionGuide(each, Soft()), **inputs) for each in (converted, expected)]
    assert losses[0] == pytest.approx(losses[1])


def test_another_attention_afterwards_is_named():
    model, inputs = bayesian(classifier()), batch()
    guide = AttentionGuide(model, Soft())
    expected = guide.run(**inputs).output
    model.set_attn_implementation("eager")
    with pytest.raises(
        ValueError, match=r"set to 'eager' after bayesian\(\), and draws nothing; call .*'pyro_attention'"
    ):
        guide.run(**inputs)
    model.set_attn_implementation("pyro_attention")
    torch.testing.assert_close(guide.run(**inputs).output, expected)


def test_deterministic_gives_the_original_back():
    original, inputs = classifier(), batch()
    model = deterministic(bayesian(classifier(), sites=["bert.*"]))
    assert type(model) is type(original)
    assert model.config.to_dict() == original.config.to_dict()
    assert model.config._attn_implementation == original.config._attn_implementation
    assert model.state_dict().keys() == original.state_dict().keys()
    assert torch.equal(model(**inputs).logits, original(**inputs).logits)
    bayesian(model)


def test_padding_has_no_part_in_the_kl():
    model, inputs = bayesian(classifier()), without_labels(batch(1))
    short = {name: tensor[:, :4] for name, tensor in inputs.items()}
    elbo = AttentionELBO()
    record = []
    for given in (inputs, short):
        torch.manual_seed(0)
        elbo.loss(model, AttentionGuide(model, Weibull(10.0)), **given)
        record.append(elbo.kl_record[SITES[0]])
    torch.testing.assert_close(record[0], record[1])


@pytest.mark.parametrize("name", GENERATORS)
def test_generate(name):
    base = FAMILIES[name]
    torch.manual_seed(0)
    cls = getattr(transformers, GENERATORS[name])
    model = cls(cls.config_class(**base.options)).eval()
    inputs = without_labels(batch(2))
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if base.reads == "text":
        inputs = {name: tensor.flip(1) for name, tensor in inputs.items()}  # a decoder is padded on the left
    expected = model.generate(**inputs, **options)
    bayesian(model)
    assert torch.equal(model.generate(**inputs, **options), expected)
    soft = AttentionGuide(model.generate, Soft()).run(**inputs, **options)
    assert torch.equal(soft.output, expected)
    run = AttentionGuide(model.generate, Weibull(1.0)).run(**inputs, num_beams=2, **options)
    assert {SELF_ATTENTION[name] + step for step in ("", ".1", ".2")} <= set(run.trace)


def test_output_attentions_are_the_drawn_weights():
    model, inputs = bayesian(classifier()), batch()
    run = AttentionGuide(model, Weibull(1.0)).run(**inputs, output_attentions=True, return_dict=True)
    site = run.trace.nodes[SITES[0]]
    valid = site["fn"].layout.mask.expand(4, 2, 7, 7)
    torch.testing.assert_close(run.output.attentions[0][valid], attention_weights(site)[valid])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sites": "decoder.*"}, ValueError, r"matches 'decoder\.\*'; .* 'bert\.encoder"),
        ({"prior": FixedGammaPrior()}, TypeError, "every site needs a prior of its own"),
        ({"prior": lambda width: torch.nn.Linear(width, 1)}, TypeError, "made a Linear, expected a Prior"),
        ({"prior": "gama_fixed"}, ValueError, "unknown prior 'gama_fixed'"),
        ({"example": {"input_ids": torch.tensor([[99]])}}, ValueError, r"fails on a tiny batch of input_ids \(1, 1\)"),
    ],
)
def test_bad_arguments_leave_the_model_alone(options, error, message):
    model = classifier()
    with pytest.raises(error, match=message):
        bayesian(model, **options)
    assert model.config._attn_implementation == classifier().config._attn_implementation
    assert model.state_dict().keys() == classifier().state_dict().keys()
    bayesian(model)


def test_a_model_whose_inputs_cannot_be_made_up():
    """Its configuration is made of two, neither of which is that of the pictures by name."""
    vision, text = (FAMILIES[name] for name in ("vit", "gpt2"))
    configs = transformers.ViTConfig(**vision.options), transformers.GPT2Config(**text.options)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    with pytest.raises(ValueError, match=r"no inputs of VisionEncoderDecoderModel .*image_size.*pass bayesian"):
        bayesian(model)
    example = {"pixel_values": torch.randn(2, 3, 8, 8), "decoder_input_ids": torch.randint(5, 60, (2, 3))}
    expected = model(**example).logits
    guide = AttentionGuide(bayesian(model, example=example), Soft())
    torch.testing.assert_close(guide.run(**example).output, expected)


def test_a_causal_module_without_its_mask():
    module, states = torch.nn.Module(), torch.zeros(1, 1, 2, 4)
    module.is_causal = True
    with pytest.raises(ValueError, match="no attention mask"):
        attend(module, states, states, states, None)
    attend(module, states[:, :, :1], states, states, None)  # the last token may see all


def test_a_model_that_changes_scores_behind_our_back():
    model = FAMILIES["bert"].make()
    layer = model.encoder.layer[0].attention.self

    def forward(hidden_states, *args, **kwargs):
        scaled = hidden_states * (2 if layer.config._attn_implementation == "pyro_attention" else 1)
        return type(layer).forward(layer, scaled, *args, **kwargs)

    layer.forward = forward
    with pytest.raises(ValueError, match="gives other numbers"):
        bayesian(model)


LENGTH = 6
INPUTS = {
    "input_ids": torch.arange(3 * LENGTH).reshape(3, LENGTH),
    "attention_mask": (torch.arange(LENGTH) < torch.tensor([[6], [4], [2]])).long(),
}


def plain(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=8, **options)).eval()


@pytest.mark.parametrize(("decoder", "rows"), [(False, 1), (True, LENGTH)])
def test_one_row_where_all_queries_see_the_same_keys(decoder, rows):
    """So the contextual prior is one distribution a key, and padded queries still have no part in the KL."""
    model = bayesian(plain(is_decoder=decoder))
    trace = AttentionGuide(model, Weibull()).run(**INPUTS).trace
    site = trace.nodes["encoder.layer.0.attention.self"]
    prior, present = site["infer"]["prior"], INPUTS["attention_mask"].bool()
    assert prior.layout.mask.shape == (3, 1, rows, LENGTH)
    assert prior.log_concentration.shape == (3, 2, rows, LENGTH)
    assert prior.layout.counted_entries.any(-1).expand(3, 1, LENGTH)[:, 0].equal(present)


@pytest.mark.parametrize("value", [-1.5, torch.finfo(torch.float32).min])
def test_a_mask_of_the_users_own(value):
    """One that lowers scores, or hides some keys from some queries."""
    mask = torch.zeros(3, 1, LENGTH, LENGTH)
    mask[:, :, :2, 3:] = value
    theirs, mine = plain(), bayesian(plain())
    expected = theirs(INPUTS["input_ids"], attention_mask=mask).last_hidden_state
    run = AttentionGuide(mine, Soft()).run(INPUTS["input_ids"], attention_mask=mask)
    for output in (run.output, mine(INPUTS["input_ids"], attention_mask=mask).last_hidden_state):
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(theirs(INPUTS["input_ids"]).last_hidden_state, expected, atol=1e-3)


CALLS = {"albert": (1, 2), "clip": (4, 4), "pair": (6, 6), "speech": (6, 6)}


def by_name(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=lambda family: family.name)


@by_name(SUPPORTED)
def test_soft_equals_the_original(family):
    row = measure(family)
    assert max(row.differences) <= 1e-5 * max(1.0, row.scale)  # large numbers are rounded by more
    assert (row.modules, row.calls) == CALLS.get(family.name, CALLS.get(family.reads, (2, 2)))


@by_name(REFUSED)
def test_families_without_the_interface_are_refused_and_left_alone(family):
    model = family.make()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match="s_aux" if family.name == "gpt_oss" else f"'{model.config.model_type}'"):
        bayesian(model)
    assert model.config._attn_implementation == before
    assert not any("latent" in name for name in model.state_dict())


def test_the_committed_table_names_the_same_families_and_verdicts():
    rows = re.findall(r"^\| (\S+) \| (\w+) \| (yes|refused)", DOCUMENT.read_text(), re.MULTILINE)
    expected = [(f.name, f.cls, "yes") for f in SUPPORTED] + [(f.name, f.cls, "refused") for f in REFUSED]
    assert rows == expected


@pytest.fixture
def saved(tmp_path):
    model = bayesian(classifier(), prior=partial(ContextualGammaPrior, rate=2.0), sites="*.layer.1.*")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".prior." in name:
                parameter.add_(1)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def assert_same(model, other):
    assert model.state_dict().keys() == other.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_priors_and_sites_come_back(saved):
    model, folder = saved
    other = bayesian(AutoModelForSequenceClassification.from_pretrained(folder))
    assert_same(model, other)
    trace = AttentionGuide(other, Weibull()).run(**INPUTS).trace
    assert [name for name in trace if "attention" in name] == [SITES[1]]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_models_of_one_configuration():
    config = transformers.BertConfig(**FAMILIES["bert"].options, num_labels=3)
    models = [bayesian(transformers.BertForSequenceClassification(config)) for _ in range(2)]
    assert not hasattr(config, "pyro_attention")
    for model in models:
        assert all(module.config is model.config for module in model.modules() if hasattr(module, "config"))
    assert deterministic(models[1]).config._attn_implementation == "sdpa"


def test_shards(saved):
    model, folder = saved
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="5KB")
    assert (folder / "model.safetensors.index.json").exists()
    assert_same(model, bayesian(AutoModelForSequenceClassification.from_pretrained(folder)))


def test_another_head_keeps_the_priors(saved):
    model, folder = saved
    base = bayesian(AutoModel.from_pretrained(folder))
    assert_same(model.bert, base)
    base.save_pretrained(folder)
    other = bayesian(AutoModelForTokenClassification.from_pretrained(folder))
    assert torch.equal(
        other.bert.encoder.layer[1].attention.self.latent_attention.prior.network.hidden_bias,
        model.bert.encoder.layer[1].attention.self.latent_attention.prior.network.hidden_bias,
    )


def test_lost_priors(saved):
    folder = saved[1]
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "hidden_weight" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"1 of 4 prior parameters are missing in .*hidden_weight"):
        bayesian(AutoModelForSequenceClassification.from_pretrained(folder))
