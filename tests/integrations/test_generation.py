"""Generated text: its attention against the model's own weights, its doubt against single passes, and errors."""

import math

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from pyro_attention import AttentionGuide, LogNormal, Soft, Weibull
from pyro_attention.analysis import decompose_uncertainty, rauq
from pyro_attention.integrations.huggingface import answer_uncertainty, bayesian, deterministic, generated_view
from pyro_attention.integrations.huggingface.generation import draw_answer, read_answer
from pyro_attention.viewer import write_viewer
from tests.integrations.tiny_transformers import SUPPORTED

FAMILIES = {family.name: family for family in SUPPORTED}
OPTIONS = {"max_new_tokens": 6, "pad_token_id": 0, "eos_token_id": None}
TEXT = "w7 w8 w9 w10 w11"
GIVEN = torch.tensor([[7, 8, 9, 10, 11]])


@pytest.fixture(scope="module")
def tokenizer():
    words = {f"w{place}": place for place in range(60)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="w0")


def decoder(name, cls, **options):
    torch.manual_seed(0)
    kind = getattr(transformers, cls)
    model = kind(kind.config_class(**FAMILIES[name].options | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return bayesian(model)


DECODERS = pytest.mark.parametrize(
    ("name", "cls"), [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("gemma2", "Gemma2ForCausalLM")]
)


@DECODERS
def test_the_view_is_that_of_the_models_own_weights(name, cls, tokenizer):
    """A row is the last one of what generate() computes for that token."""
    model = decoder(name, cls)
    output = model.generate(
        GIVEN, attention_mask=torch.ones_like(GIVEN), do_sample=False, output_attentions=True,
        return_dict_in_generate=True, **OPTIONS,
    )  # fmt: skip
    view = generated_view(AttentionGuide(model, Soft()), tokenizer, TEXT, sites="*", num_samples=2, **OPTIONS)
    assert view.rows == [f"w{token}" for token in output.sequences[0, 5:].tolist()]
    assert view.columns == TEXT.split()
    expected = []
    for layer in range(2):
        rows = torch.zeros(2, 6, 5)
        for number, step in enumerate(output.attentions):
            weights = step[layer][0, :, -1]  # on position 4 + number and those before it in the window
            first = 5 + number - weights.size(-1)
            rows[:, number, first:] = weights[:, : max(0, 5 - first)]
        expected += rows.unbind()
    assert len(view.panels) == len(expected) == 4
    for panel, head in zip(view.panels, expected, strict=True):
        assert panel.samples.shape == (2, 6, 5)
        torch.testing.assert_close(panel.samples, head.expand(2, -1, -1), atol=1e-5, rtol=1e-4)


def test_the_page(tokenizer, tmp_path):
    guide = AttentionGuide(decoder("llama", "LlamaForCausalLM"), Weibull(2.0))
    view = generated_view(guide, tokenizer, TEXT, num_samples=20, seed=0, return_dict_in_generate=True, **OPTIONS)
    assert {panel.group for panel in view.panels} == {"model.layers.1.self_attn"}  # the last site
    assert [panel.name for panel in view.panels] == ["head 0", "head 1"]
    samples = view.panels[0].samples
    assert samples.std(0).max() > 0.01
    again = generated_view(guide, tokenizer, TEXT, num_samples=20, seed=0, **OPTIONS)
    assert again.panels[0].samples.equal(samples)
    write_viewer(tmp_path / "answer.html", [view], title="An answer")
    assert "generated" in (tmp_path / "answer.html").read_text()


@DECODERS
def test_draws_at_no_width_are_the_models_own_predictions(name, cls):
    model = decoder(name, cls)
    guide = AttentionGuide(model, Soft())
    answer = read_answer(guide, GIVEN, **OPTIONS)
    expected = model(input_ids=torch.cat([GIVEN[0], answer.tokens])[None]).logits[0, 4:-1].log_softmax(-1)
    chosen = expected.gather(-1, answer.tokens[:, None])[:, 0]
    torch.testing.assert_close(answer.log_probs, chosen, atol=1e-5, rtol=1e-4)
    assert expected.argmax(-1).equal(answer.tokens)
    torch.testing.assert_close(answer.entropy, torch.special.entr(expected.exp()).sum(-1), atol=1e-5, rtol=1e-4)
    drawn = draw_answer(guide, answer, num_samples=3)
    torch.testing.assert_close(drawn, expected.exp().expand(3, -1, -1), atol=1e-5, rtol=1e-4)


def test_one_given_token():
    guide = AttentionGuide(decoder("llama", "LlamaForCausalLM"), Soft())
    answer = read_answer(guide, GIVEN[:, :1], **OPTIONS)
    assert answer.cache is None
    torch.testing.assert_close(draw_answer(guide, answer, num_samples=1)[0].log().gather(
        -1, answer.tokens[:, None])[:, 0], answer.log_probs, atol=1e-5, rtol=1e-4)  # fmt: skip


def test_each_row_of_the_batch_is_a_draw_of_its_own():
    """Mean and spread over one batch of draws are those over single draws, within their standard errors."""
    guide = AttentionGuide(decoder("llama", "LlamaForCausalLM"), LogNormal(scale=1.0))
    answer = read_answer(guide, GIVEN, **OPTIONS)
    batch = draw_answer(guide, answer, num_samples=400, seed=0)
    single = torch.cat([draw_answer(guide, answer, num_samples=1, seed=seed) for seed in range(100, 300)])
    error = (batch.var(0) / len(batch) + single.var(0) / len(single)).sqrt()
    assert ((batch.mean(0) - single.mean(0)).abs() <= 5 * error + 1e-6).all()
    assert batch.var(0).sum() == pytest.approx(single.var(0).sum().item(), rel=0.2)


def test_the_answer_with_its_parts():
    guide = AttentionGuide(decoder("llama", "LlamaForCausalLM"), Weibull(1.0))
    answer, parts = answer_uncertainty(guide, GIVEN, num_samples=5, seed=3, **OPTIONS)
    expected = decompose_uncertainty(draw_answer(guide, answer, num_samples=5, seed=3))
    assert parts.total.equal(expected.total)
    assert parts.mutual_information.min() >= 0
    assert parts.mutual_information.max() > 1e-4


@DECODERS
def test_rauq_of_generated_weights(name, cls):
    """The formula by hand, on the weights of a pass without a cache: token t looks back at token t - 1."""
    model = decoder(name, cls, **{"n_layer" if name == "gpt2" else "num_hidden_layers": 3})
    answer = read_answer(AttentionGuide(model, Soft()), GIVEN, **OPTIONS)
    whole = model(input_ids=torch.cat([GIVEN[0], answer.tokens])[None], output_attentions=True)
    layer = whole.attentions[1][0]  # the middle third of three
    back = torch.stack([layer[:, 5 + t, 4 + t] for t in range(1, 6)], -1)  # [heads, T - 1]
    head = back[back.mean(-1).argmax()]
    probs, confidences = answer.log_probs.exp(), [answer.log_probs[0].exp()]
    for t in range(1, 6):
        confidences.append(0.2 * probs[t] + 0.8 * head[t - 1] * confidences[-1])
    assert answer.rauq == pytest.approx(-torch.stack(confidences).log().mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("log_probs", "previous", "alpha", "message"),
    [
        ([-0.1, math.nan], [[[0.5]]], 0.2, "log_probs hold nan, expected log probabilities"),
        ([-0.1, -math.inf], [[[0.5]]], 0.2, "log_probs hold -inf, expected log probabilities"),
        ([0.9, 0.5], [[[0.5]]], 0.2, "log_probs hold 0.9, expected log probabilities"),
        ([-0.1, -0.1], [[[-0.5]]], 0.2, "previous hold -0.5, expected attention weights"),
        ([-0.1, -0.1], [[[math.nan]]], 0.2, "previous hold nan, expected attention weights"),
        ([-0.1, -0.1], [[[0.5, 0.5]]], 0.2, "expected .*heads, T - 1"),
        ([-0.1, -0.1], [[[0.5]]], 0.0, "alpha is 0.0, expected a number above 0"),
    ],
)
def test_rauq_of_numbers_that_are_none(log_probs, previous, alpha, message):
    with pytest.raises(ValueError, match=message):
        rauq(torch.tensor(log_probs), torch.tensor(previous), alpha=alpha)


def test_rauq_takes_the_least_sure_layer():
    log_probs = torch.tensor([0.5, 0.8]).log()
    layers = torch.tensor([[[0.1], [0.9]], [[0.2], [0.3]]])
    assert rauq(log_probs, layers) == rauq(log_probs, layers[1:]) > rauq(log_probs, layers[:1])
    assert rauq(log_probs[:1], layers[..., :0]) == pytest.approx(-log_probs[0].item())
    assert rauq(log_probs, layers, alpha=1.0) == pytest.approx(-log_probs.mean().item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 36}, "the text has 5 tokens, and with 36 .* longer than the context .*, 40 tokens"),
        ({"max_new_tokens": None, "max_length": 41}, "the text has 5 tokens, and with 36 .* longer than the context"),
        ({"generation_config": transformers.GenerationConfig(num_beams=3)}, "num_beams is 3, expected 1"),
        ({"use_cache": False}, "would read the whole text anew"),
        ({"num_beams": 2}, "num_beams is 2, expected 1"),
        ({"sites": "encoder.*"}, r"expected patterns of attention sites, such as 'model\.layers\.1"),
    ],
)
def test_bad_options(options, message, tokenizer):
    guide = AttentionGuide(decoder("llama", "LlamaForCausalLM"), Soft())
    with pytest.raises(ValueError, match=message):
        generated_view(guide, tokenizer, TEXT, **OPTIONS | options)
    if "sites" not in options:
        with pytest.raises(ValueError, match=message):
            read_answer(guide, GIVEN, **OPTIONS | options)


def test_models_that_generate_nothing(tokenizer):
    torch.manual_seed(0)
    encoder = bayesian(transformers.BertForSequenceClassification(transformers.BertConfig(**FAMILIES["bert"].options)))
    pair = bayesian(transformers.T5ForConditionalGeneration(transformers.T5Config(**FAMILIES["t5"].options)))
    for model in (encoder, pair):
        with pytest.raises(ValueError, match="does not continue the text that it is given, expected a decoder"):
            generated_view(AttentionGuide(model, Soft()), tokenizer, TEXT)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FAMILIES["llama"].options))
    with pytest.raises(TypeError, match=r"guide's model is a LlamaForCausalLM, expected AttentionGuide"):
        generated_view(AttentionGuide(plain, Soft()), tokenizer, TEXT)
    with pytest.raises(ValueError, match=r"input_ids have shape \(2, 5\), expected \[1, L\]"):
        read_answer(AttentionGuide(decoder("llama", "LlamaForCausalLM"), Soft()), GIVEN.expand(2, -1))


def test_generation_without_its_past():
    """Every step would draw the weights of all earlier tokens anew."""
    model = decoder("llama", "LlamaForCausalLM")
    guide = AttentionGuide(model.generate, Weibull(1.0))
    with torch.no_grad(), pytest.raises(ValueError, match=r"use_cache=False would draw .* leave it out"):
        guide.run(input_ids=GIVEN, attention_mask=torch.ones_like(GIVEN), use_cache=False, do_sample=False, **OPTIONS)


@pytest.mark.parametrize(("name", "cls"), [("llama", "LlamaForCausalLM"), ("t5", "T5ForConditionalGeneration")])
@pytest.mark.parametrize("by", ["assistant", "Bayesian assistant", "prompt lookup"])
def test_assisted_generation(name, cls, by):
    """Its forward passes ask for no return_dict; at the mean weights it gives what generation without help gives."""
    model, assistant = decoder(name, cls), decoder(name, cls)
    options = {"prompt_lookup_num_tokens": 2} if by == "prompt lookup" else {"assistant_model": assistant}
    if by == "assistant":
        deterministic(assistant)
    inputs = {"input_ids": torch.tensor([[7, 8, 9, 7, 8]]), "do_sample": False, **OPTIONS}
    expected = model.generate(**inputs)
    with torch.no_grad():
        assert torch.equal(AttentionGuide(model.generate, Soft()).run(**inputs, **options).output, expected)
        drawn = AttentionGuide(model.generate, Weibull(1.0)).run(
            **inputs, **options, return_dict_in_generate=True, output_attentions=True
        )
    assert drawn.output.sequences.shape == expected.shape


def test_inputs_that_a_decoder_does_not_read():
    """Tokenizers add them, and Trainer passes labels to generate; the model hands them on to its attention."""
    model = decoder("llama", "LlamaForCausalLM")
    inputs = {"input_ids": GIVEN, "token_type_ids": torch.zeros_like(GIVEN)}
    guide = AttentionGuide(model, Soft())
    torch.testing.assert_close(guide.run(**inputs).output, model(input_ids=GIVEN).logits)
    torch.testing.assert_close(model(**inputs).logits, model(input_ids=GIVEN).logits)
    pair = decoder("bart", "BartForConditionalGeneration")
    expected = pair.generate(input_ids=GIVEN, **OPTIONS)
    assert torch.equal(pair.generate(input_ids=GIVEN, labels=GIVEN, **OPTIONS), expected)
