import ast
import copy
import pickle
import sys
from functools import partial
from pathlib import Path

import pyro
import pytest
import torch
from pyro import poutine

pytest.importorskip("transformers")

import transformers

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dirichlet,
    FixedGammaPrior,
    Gaussian,
    LogNormal,
    Soft,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from pyro_attention.families.base import PRIORS
from pyro_attention.integrations import huggingface
from pyro_attention.integrations.huggingface import bayesian, deterministic
from pyro_attention.integrations.huggingface.attention import attend
from tests.integrations.tiny_transformers import SUPPORTED

GENERATORS = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
}
SELF_ATTENTION = {
    "gpt2": "transformer.h.0.attn",
    "llama": "model.layers.0.self_attn",
    "bart": "model.decoder.layers.0.self_attn",
    "t5": "decoder.block.0.layer.0.SelfAttention",
}
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


def test_outside_pyro_it_is_the_original():
    model, inputs = classifier(), batch()
    before = model(**inputs)
    after = bayesian(model)(**inputs)
    assert type(after) is type(before)
    torch.testing.assert_close(after.loss, before.loss)
    torch.testing.assert_close(after.logits, before.logits)


def test_training_reaches_prior_and_encoder():
    """A KL that were detached would leave the priors without a gradient, as the likelihood does not read them."""
    model, inputs = bayesian(classifier()), batch()
    AttentionELBO()(model, AttentionGuide(model, Weibull(10.0)))(**inputs).backward()
    prior = [p for name, p in model.named_parameters() if ".prior." in name]
    assert len(prior) == 6
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in prior)
    with_kl = model.bert.encoder.layer[0].attention.self.query.weight.grad.clone()
    model.zero_grad()
    torch.manual_seed(0)
    AttentionELBO(kl_weight=0.0)(model, AttentionGuide(model, Soft()))(**inputs).backward()
    assert (with_kl - model.bert.encoder.layer[0].attention.self.query.weight.grad).abs().max() > 0
    assert all(parameter.grad is None for parameter in prior)


def test_kl_gradient_of_the_encoder_is_not_that_of_the_likelihood():
    model, inputs = bayesian(classifier()), without_labels(batch())
    AttentionELBO()(model, AttentionGuide(model, Weibull(10.0)))(**inputs).backward()  # nothing is observed: KL alone
    for name in ("query", "key"):
        assert getattr(model.bert.encoder.layer[0].attention.self, name).weight.grad.abs().sum() > 0
    assert model.bert.embeddings.word_embeddings.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("prior", "family"),
    [
        ("gamma_fixed", Weibull(10.0)),
        ("gamma_contextual", LogNormal(0.1)),
        (FixedGammaPrior, Weibull(10.0)),
        (partial(ContextualGammaPrior, rate=2.0), Weibull(10.0)),
        (lambda width: ContextualGammaPrior(width, heads=2), Weibull(10.0)),
        ("lognormal_fixed", LogNormal(0.5)),
        ("lognormal_contextual", LogNormal(0.5)),
        ("dirichlet", Dirichlet()),
        ("gaussian_contextual", Gaussian()),
    ],
    ids=[
        "gamma fixed",
        "gamma",
        "class",
        "partial",
        "function",
        "lognormal fixed",
        "lognormal",
        "dirichlet",
        "gaussian",
    ],
)
def test_priors_and_families(prior, family):
    inputs = batch()
    expected = classifier()(**inputs).logits
    model = bayesian(classifier(), prior=prior)
    elbo = None if "enumerate" in family.infer else AttentionELBO(kl_weight=0.01, kl_mean=True)
    report = check_model(model, AttentionGuide(model, family), **inputs, elbo=elbo)
    assert report.problems == ()
    with torch.no_grad():
        soft = AttentionGuide(model, Soft()).run(**inputs).output if family.kind == "log_weights" else expected
    torch.testing.assert_close(soft, expected, atol=1e-5, rtol=0)


def test_alignments_are_refused():
    with pytest.raises(ValueError, match="alignment"):
        bayesian(classifier(), prior=next(name for name in PRIORS if "align" in name))


def test_sites_choose_and_the_rest_is_ordinary_attention():
    model, inputs = bayesian(classifier(), sites="*.layer.1.*"), batch()
    run = AttentionGuide(model, Weibull(10.0)).run(**inputs)
    assert SITES[1] in run.trace
    assert SITES[0] not in run.trace
    torch.testing.assert_close(model(**inputs).logits, classifier()(**inputs).logits)


def test_deterministic_gives_the_original_back():
    original, inputs = classifier(), batch()
    model = deterministic(bayesian(classifier(), sites=["bert.*"]))
    assert type(model) is type(original)
    assert model.config.to_dict() == original.config.to_dict()
    assert model.config._attn_implementation == original.config._attn_implementation
    assert model.state_dict().keys() == original.state_dict().keys()
    assert torch.equal(model(**inputs).logits, original(**inputs).logits)
    bayesian(model)


@pytest.mark.parametrize("pickled", [False, True])
def test_copies(pickled):
    model, inputs = bayesian(classifier()), batch()
    other = pickle.loads(pickle.dumps(model)) if pickled else copy.deepcopy(model)
    assert type(other) is type(model)
    assert torch.equal(other(**inputs).logits, model(**inputs).logits)
    assert SITES[0] in AttentionGuide(other, Weibull()).run(**inputs).trace


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


def test_shared_layers_have_a_site_a_call():
    model = bayesian(FAMILIES["albert"].make())
    run = AttentionGuide(model, Weibull(10.0)).run(**FAMILIES["albert"].batch(model, 2))
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert [name for name in run.trace if "albert" in name] == [path, f"{path}.1"]


def test_a_plate_of_the_user_takes_the_place_of_ours():
    model, inputs = bayesian(classifier()), batch()

    def part(**inputs):
        with pyro.plate("data", 40, subsample_size=4):
            return model(**inputs)

    trace = AttentionGuide(part, Weibull(10.0)).run(**inputs).trace
    assert "batch" not in trace
    assert trace.nodes[SITES[0]]["scale"] == 10


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


def test_samples_in_one_pass_are_refused():
    model, inputs = bayesian(classifier()), without_labels(batch())
    with pytest.raises(ValueError, match="chunk_size=1"):
        predict(AttentionGuide(model, Weibull()), **inputs, num_samples=4, chunk_size=2)


def test_attention_dropout_is_noise_of_predict():
    model = bayesian(classifier(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5))
    guide = AttentionGuide(model, Weibull(10.0))
    inputs = without_labels(batch())
    assert (predict(guide, **inputs, num_samples=3, noise="dropout").variance > 0).all()
    assert (predict(guide, **inputs, num_samples=3, noise="none").variance == 0).all()


def test_half_precision():
    model, inputs = bayesian(classifier().bfloat16()), batch()
    loss = AttentionELBO()(model, AttentionGuide(model, Weibull(10.0)))(**inputs)
    assert loss.isfinite()
    with torch.autocast("cpu", torch.bfloat16):
        single = bayesian(classifier())
        assert AttentionELBO()(single, AttentionGuide(single, Weibull(10.0)))(**inputs).isfinite()


def test_output_attentions_are_the_drawn_weights():
    model, inputs = bayesian(classifier()), batch()
    run = AttentionGuide(model, Weibull(1.0)).run(**inputs, output_attentions=True, return_dict=True)
    site = run.trace.nodes[SITES[0]]
    valid = site["fn"].layout.mask.expand(4, 2, 7, 7)
    torch.testing.assert_close(run.output.attentions[0][valid], site["fn"].weights(site["value"])[valid])


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"sites": "decoder.*"},
            ValueError,
            r"matches 'decoder\.\*'; .* 'bert\.encoder",
        ),
        ({"sites": []}, ValueError, "sites is empty"),
        ({"prior": "gama_fixed"}, ValueError, "did you mean 'gamma_fixed'"),
        ({"prior": FixedGammaPrior()}, TypeError, "every site needs a prior of its own"),
        ({"prior": lambda width: torch.nn.Linear(width, 1)}, TypeError, "made a Linear, expected a Prior"),
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


def test_other_models_are_refused():
    with pytest.raises(TypeError, match=r"expected a PreTrainedModel .*torch_nn"):
        bayesian(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"expected one of bayesian\(model\)"):
        deterministic(classifier())
    with pytest.raises(ValueError, match="Bayesian already"):
        bayesian(bayesian(classifier()))


def test_transformers_is_imported_where_it_is_used():
    for file in Path(huggingface.__file__).parent.glob("*.py"):
        top = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        named = {alias.name for node in top for alias in node.names} | {getattr(node, "module", "") for node in top}
        assert not {name for name in named if name.startswith(("transformers", "safetensors"))}, file


def test_transformers_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-attention\[transformers\]'"):
        bayesian(torch.nn.Linear(2, 2))


def test_a_causal_module_without_its_mask():
    module = torch.nn.Module()
    module.is_causal = True
    states = torch.zeros(1, 1, 2, 4)
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


def test_plain_traces_draw_from_the_prior():
    model, inputs = bayesian(classifier()), batch()
    trace = poutine.trace(model).get_trace(**inputs)
    assert [name for name in trace.nodes if "attention" in name] == SITES
    assert trace.nodes["_RETURN"]["value"].shape == (4, 3)
