"""The order of two segments beside hidden tokens: the loss by hand, and where it is read."""

import pyro
import pytest
import torch
from torch.nn.functional import cross_entropy

from models.text import MaskedLanguageModel, TextEncoder
from pyro_attention import AttentionELBO, AttentionGuide, FixedGammaPrior, Soft, Weibull, predict


def make_model(**options):
    pyro.set_rng_seed(0)
    encoder = TextEncoder(11, width=8, heads=2, layers=2, positions=12, dropout=0.0, prior=lambda *_: FixedGammaPrior())
    return MaskedLanguageModel(encoder, **options).double()


def make_batch():
    """Three pairs <s> A </s> B </s>, of which the second and third are padded."""
    tokens = torch.tensor([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 10, 2, 0, 0], [1, 4, 2, 5, 6, 2, 0]])
    hidden = torch.zeros(3, 7, dtype=torch.bool)
    hidden[0, 1] = hidden[0, 4] = hidden[1, 3] = hidden[2, 1] = True
    return tokens, tokens > 0, hidden, torch.tensor([5, 7, 10, 4]), torch.tensor([0, 1, 1])


def test_the_loss_is_the_sum_of_both_means_times_the_hidden_tokens():
    """As BERT and ALBERT add them; divided by the hidden tokens it is the sum of the means."""
    model, (tokens, mask, hidden, target, order) = make_model(sentence_order=True), make_batch()
    loss = AttentionELBO().loss(model, AttentionGuide(model, Soft()), tokens, mask, hidden, target, order)
    with torch.no_grad():
        states = encoded(model, tokens, mask)
        words = torch.stack([states[0, 1], states[0, 4], states[1, 3], states[2, 1]])
        logits = words @ model.encoder.tokens.weight.T + model.bias
        inside, _, outside = model.order
        swapped = outside(torch.tanh(inside(states[:, 0])))
        expected = cross_entropy(logits, target) + cross_entropy(swapped, order)
    assert loss / len(target) == pytest.approx(expected.item(), rel=1e-9)


def encoded(model, tokens, mask):
    """Features of every token under soft attention."""
    every = torch.ones_like(tokens, dtype=torch.bool)
    bare = MaskedLanguageModel(model.encoder).double()
    features = predict(AttentionGuide(bare, Soft()), tokens, mask, every, num_samples=1, noise="none").mean
    return features.unflatten(0, tokens.shape)


def test_features_of_first_tokens_stand_behind_those_of_hidden_ones():
    model, (tokens, mask, hidden, *_) = make_model(sentence_order=True), make_batch()
    features = predict(AttentionGuide(model, Soft()), tokens, mask, hidden, num_samples=1, noise="none").mean
    states = encoded(model, tokens, mask)
    torch.testing.assert_close(features, torch.cat([states[hidden], states[:, 0]]))
    assert model.order_logits(features[4:]).shape == (3, 2)


def test_a_model_without_it_is_as_before():
    model, (tokens, mask, hidden, target, _) = make_model(), make_batch()
    with_order = make_model(sentence_order=True)
    assert {name for name, _ in with_order.named_parameters()} - {name for name, _ in model.named_parameters()} == {
        "order.0.weight", "order.0.bias", "order.2.weight", "order.2.bias",
    }  # fmt: skip
    assert predict(AttentionGuide(model, Soft()), tokens, mask, hidden, target, num_samples=1).mean.shape == (4, 8)
    with pytest.raises(TypeError, match="sentence_order=True"):
        model.order_logits(torch.zeros(3, 8))


def test_the_order_is_learned_with_random_attention():
    """The first of two marks says it, and attention has to look."""
    model = make_model(sentence_order=True).float()
    guide = AttentionGuide(model, Weibull(50.0))
    elbo = AttentionELBO(kl_weight=0.0)(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.01)
    order = torch.tensor([0, 1] * 4)
    marks = torch.tensor([[4, 5], [5, 4]] * 4)
    two, one = torch.full((8, 1), 2), torch.ones(8, 1, dtype=torch.int64)
    tokens = torch.cat([one, marks[:, :1], two, marks[:, 1:], torch.full((8, 1), 6), two], 1)
    hidden = tokens == 6
    arguments = tokens, tokens > 0, hidden, torch.full((8,), 6), order
    for _ in range(150):
        optimizer.zero_grad()
        elbo(*arguments).backward()
        optimizer.step()
    features = predict(guide, *arguments, num_samples=1, noise="none").mean
    assert model.order_logits(features[8:]).argmax(-1).equal(order)
