"""The text encoder, the masked language model and the classifier: padding, sites, and torch's own layers."""

import pyro
import pytest
import torch
from torch import nn

from models.text import MaskedLanguageModel, TextClassifier, TextEncoder
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    DoublyNormalized,
    FixedGammaPrior,
    Gamma,
    Hybrid,
    Soft,
    Softmax,
    Weibull,
    predict,
    sample_posterior,
)

VOCABULARY, WIDTH, HEADS, LAYERS = 11, 8, 2, 2
NORMALIZERS = {"softmax": lambda heads: Softmax(), "doubly": lambda heads: DoublyNormalized(), "hybrid": Hybrid}


def make_encoder(normalizer="softmax", **options):
    options = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "positions": 12, "dropout": 0.0} | options
    encoder = TextEncoder(VOCABULARY, normalizer=NORMALIZERS[normalizer], **options).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    return encoder


def batch(lengths=(5, 3, 4), *, more=0):
    """Sentences of these lengths, their mask, and hidden tokens; padding has ids like any other."""
    generator = torch.Generator().manual_seed(0)
    longest = max(lengths) + more
    rows = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]
    tokens = torch.stack([nn.functional.pad(row, (0, longest - len(row)), value=7) for row in rows])
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    hidden = torch.zeros_like(mask)
    hidden[0, 1] = hidden[0, 4] = hidden[2, 0] = True
    return tokens, mask, hidden, torch.tensor([3, 1, 9])


def mean_output(model, *arguments):
    return predict(AttentionGuide(model, Soft()), *arguments, num_samples=1, noise="none").mean


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("more", [1, 5])
def test_padding_changes_nothing(normalizer, more):
    encoder = make_encoder(normalizer)
    language, classifiers = MaskedLanguageModel(encoder).double(), {}
    for pooling in ("mean", "first"):
        classifiers[pooling] = TextClassifier(encoder, 3, pooling=pooling).double().eval()
    short, long = batch(), batch(more=more)
    torch.testing.assert_close(mean_output(language, *short), mean_output(language, *long))
    for classifier in classifiers.values():
        torch.testing.assert_close(mean_output(classifier, *short[:2]), mean_output(classifier, *long[:2]))
    # nor does it take part in the KL
    losses, records = [], []
    for arguments in (short, long):
        elbo = AttentionELBO()
        torch.manual_seed(0)
        losses.append(elbo.loss(language, AttentionGuide(language, Soft()), *arguments))
        elbo.loss(language, AttentionGuide(language, Weibull(concentration=1e6)), *arguments)
        records.append(elbo.kl_record["layers.0"])
    assert losses[0] == pytest.approx(losses[1])
    torch.testing.assert_close(*records)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_sentences_do_not_depend_on_each_other(normalizer):
    encoder = make_encoder(normalizer)
    classifier = TextClassifier(encoder, 3, dropout=0.0).double()
    tokens, mask, *_ = batch()
    together = mean_output(classifier, tokens, mask)
    for row, (sentence, kept) in enumerate(zip(tokens, mask, strict=True)):
        alone = mean_output(classifier, sentence[kept][None], kept[kept][None])
        torch.testing.assert_close(alone[0], together[row])


def test_soft_attention_is_torch_s_encoder():
    encoder = make_encoder()
    tokens, mask, *_ = batch()
    hidden = (encoder.tokens(tokens) + encoder.positions.weight[: tokens.size(1)]) * WIDTH**0.5
    for ours in encoder.layers:
        theirs = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        attention, projections = ours.attention, [getattr(ours.attention, f"{name}_proj") for name in "qkv"]
        with torch.no_grad():
            theirs.self_attn.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
            theirs.self_attn.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        pairs = [
            (theirs.self_attn.out_proj, attention.out_proj), (theirs.norm1, ours.attention_norm),
            (theirs.norm2, ours.feed_forward_norm), (theirs.linear1, ours.feed_forward[0]),
            (theirs.linear2, ours.feed_forward[2]),
        ]  # fmt: skip
        for to, source in pairs:
            to.load_state_dict(source.state_dict())
        hidden = theirs(hidden, src_key_padding_mask=~mask)
    expected = encoder.norm(hidden)
    guide = AttentionGuide(lambda: _in_plate(encoder, tokens, mask), Soft())
    torch.testing.assert_close(guide.run().output[mask], expected[mask])


def _in_plate(encoder, tokens, mask):
    with pyro.plate("sentences", len(tokens)):
        return encoder(tokens, mask)


def test_sites():
    model = MaskedLanguageModel(make_encoder())
    guide = AttentionGuide(model, Weibull())
    sites = guide.run(*batch()).trace.nodes
    for layer in range(LAYERS):
        fn = sites[f"layers.{layer}"]["fn"]
        assert (fn.batch_shape, fn.event_shape) == ((3,), (HEADS, 5, 5))
    assert sites["target"]["fn"].batch_shape == (3,)
    assert sites["target"]["is_observed"]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_loss_is_the_cross_entropy_of_hidden_tokens(normalizer):
    model = MaskedLanguageModel(make_encoder(normalizer)).double()
    nn.init.normal_(model.bias)
    tokens, mask, hidden, target = batch()
    loss = AttentionELBO().loss(model, AttentionGuide(model, Soft()), tokens, mask, hidden, target)
    guide = AttentionGuide(lambda: _in_plate(model.encoder, tokens, mask), Soft())
    logits = guide.run().output @ model.encoder.tokens.weight.T + model.bias
    assert loss == pytest.approx(nn.functional.cross_entropy(logits[hidden], target, reduction="sum").item())


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("family", [Soft, Weibull, Gamma])
def test_every_parameter_trains(normalizer, family):
    encoder = make_encoder(normalizer, dropout=0.1)
    tokens, mask, hidden, target = batch()
    for model, observed in (
        (MaskedLanguageModel(encoder).double(), (tokens, mask, hidden, target)),
        (TextClassifier(encoder, 3).double(), (tokens, mask, torch.tensor([0, 2, 1]))),
    ):
        model.zero_grad()
        loss = AttentionELBO()(model, AttentionGuide(model, family()))(*observed)
        loss.backward()
        assert loss.isfinite()
        for name, parameter in model.named_parameters():
            if family is Soft and ".prior." in name:
                continue  # a point mass has no prior term
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            # one number more in all scores of a query cancels, so keys' biases need no gradient; with normalisation
            # over queries, nor do the queries'
            cancels = ("k_proj.bias", "q_proj.bias") if normalizer == "doubly" else "k_proj.bias"
            assert parameter.grad.abs().max() > 1e-12 or name.endswith(cancels), name


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_vectorised_particles_and_chunks(normalizer):
    model = MaskedLanguageModel(make_encoder(normalizer)).double()
    losses = [
        AttentionELBO(num_particles=3, vectorize_particles=vectorised).loss(
            model, AttentionGuide(model, Soft()), *batch()
        )
        for vectorised in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1])
    classifier = TextClassifier(model.encoder, 3).double()
    guide, arguments = AttentionGuide(classifier, Weibull(concentration=2.0)), batch()[:2]
    options = {"num_samples": 4, "keep_samples": True, "chunk_size": 4}
    samples = predict(guide, *arguments, **options).samples
    assert samples.shape == (4, 3, 3)
    assert samples.std(0).min() > 0
    weights = sample_posterior(guide, *arguments, num_samples=2)["layers.1"]
    assert weights.shape == (2, 3, HEADS, 5, 5)


def test_the_prior_is_an_argument():
    encoder = make_encoder(prior=lambda width, heads: FixedGammaPrior())
    assert not any(".prior." in name for name, _ in encoder.named_parameters())


@pytest.mark.parametrize(
    ("model", "site"), [(MaskedLanguageModel, "target"), (lambda encoder: TextClassifier(encoder, 3), "labels")]
)
def test_a_drawn_target_and_label(model, site):
    arguments = batch()[: 3 if site == "target" else 2]
    assert AttentionGuide(model(make_encoder()).double(), Soft())(*arguments)[site].shape == (3,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda make, tokens, mask: mean_output(make(), tokens, mask), "a sentence has 5 tokens, expected 4 at most"),
        (lambda make, tokens, mask: mean_output(make(), tokens, mask[:, :3]), "boolean mask of the same shape"),
        (lambda make, *_: make(pooling="last"), "pooling is 'last'"),
    ],
    ids=["length", "mask", "pooling"],
)
def test_wrong_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(lambda **options: TextClassifier(make_encoder(positions=4), 3, **options).double(), *batch()[:2])
