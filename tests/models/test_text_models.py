"""The text encoder, the masked language model and the classifier: padding, sites, and torch's own layers."""

import pyro
import pytest
import torch
from torch import nn

from models.text import MaskedLanguageModel, TextClassifier, TextEncoder
from pyro_attention import AttentionELBO, AttentionGuide, DoublyNormalized, Hybrid, Soft, Weibull, predict
from pyro_attention.normalizers import Softmax

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
def test_padding_and_the_batch_change_nothing(normalizer):
    """Nor does padding take part in the KL."""
    encoder, (short, long) = make_encoder(normalizer), (batch(), batch(more=3))
    language = MaskedLanguageModel(encoder).double()
    torch.testing.assert_close(mean_output(language, *short), mean_output(language, *long))
    classifier = TextClassifier(encoder, 3).double().eval()
    together = mean_output(classifier, *short[:2])
    torch.testing.assert_close(mean_output(classifier, *long[:2]), together)
    for row, (sentence, kept) in enumerate(zip(*short[:2], strict=True)):
        torch.testing.assert_close(mean_output(classifier, sentence[kept][None], kept[kept][None])[0], together[row])
    records = []
    for arguments in (short, long):
        elbo = AttentionELBO()
        elbo.loss(language, AttentionGuide(language, Weibull(concentration=1e6)), *arguments)
        records.append(elbo.kl_record["layers.0"])
    torch.testing.assert_close(*records)


def test_soft_attention_is_torch_s_encoder_and_the_loss_the_cross_entropy_of_hidden_tokens():
    encoder = make_encoder()
    tokens, mask, masked, target = batch()
    hidden = (encoder.tokens(tokens) + encoder.positions.weight[: tokens.size(1)]) * WIDTH**0.5
    for ours in encoder.layers:
        theirs = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        theirs.self_attn = ours.attention.to_torch()
        pairs = [
            (theirs.norm1, ours.attention_norm), (theirs.norm2, ours.feed_forward_norm),
            (theirs.linear1, ours.feed_forward[0]), (theirs.linear2, ours.feed_forward[2]),
        ]  # fmt: skip
        for to, source in pairs:
            to.load_state_dict(source.state_dict())
        hidden = theirs(hidden, src_key_padding_mask=~mask)
    expected = encoder.norm(hidden)

    def in_plate():
        with pyro.plate("sentences", len(tokens)):
            return encoder(tokens, mask)

    torch.testing.assert_close(AttentionGuide(in_plate, Soft()).run().output[mask], expected[mask])
    model = MaskedLanguageModel(encoder).double()
    nn.init.normal_(model.bias)
    loss = AttentionELBO().loss(model, AttentionGuide(model, Soft()), tokens, mask, masked, target)
    logits = (expected @ encoder.tokens.weight.T + model.bias)[masked]
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, target, reduction="sum").item())


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_every_parameter_trains(normalizer):
    encoder = make_encoder(normalizer, dropout=0.1)
    tokens, mask, hidden, target = batch()
    for model, observed in (
        (MaskedLanguageModel(encoder).double(), (tokens, mask, hidden, target)),
        (TextClassifier(encoder, 3).double(), (tokens, mask, torch.tensor([0, 2, 1]))),
    ):
        model.zero_grad()
        AttentionELBO()(model, AttentionGuide(model, Weibull()))(*observed).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.isfinite().all(), name
            # one number more in all scores of a query cancels, so keys' biases need no gradient; with normalization
            # over queries, nor do the queries'
            cancels = ("k_proj.bias", "q_proj.bias") if normalizer == "doubly" else "k_proj.bias"
            assert parameter.grad.abs().max() > 1e-12 or name.endswith(cancels), name
