"""The writer of headlines: padding, sites, causality, torch's own layers, and word by word as all at once."""

import pytest
import torch
from torch import nn

from models.headlines import HeadlineWriter
from models.text import TextEncoder
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Soft,
    Weibull,
    predict,
)
from tests.models.test_text_models import NORMALIZERS

VOCABULARY, WIDTH, HEADS, LAYERS = 7, 8, 2, 2
BEGIN, END = 1, 2


def make(normalizer="softmax", *, dropout=0.0, positions=6, **options):
    sizes = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "positions": 12, "dropout": dropout}
    encoder = TextEncoder(VOCABULARY, normalizer=NORMALIZERS[normalizer], **sizes)
    model = HeadlineWriter(encoder, layers=LAYERS, positions=positions, dropout=dropout, **options).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def batch(lengths=((5, 3), (3, 4), (4, 1)), *, more=0):
    """Texts and headlines of these lengths, as the arguments of a model; padding has ids like any other."""
    generator = torch.Generator().manual_seed(0)
    sides = []
    for side in zip(*lengths, strict=True):
        rows = [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in side]
        longest = max(side) + more
        tokens = torch.stack([nn.functional.pad(row, (0, longest - len(row)), value=4) for row in rows])
        sides.append((tokens, torch.arange(longest) < torch.tensor(side)[:, None]))
    (source, source_mask), (target, target_mask) = sides
    read = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], 1)
    return source, source_mask, read, target, target_mask


def guided(model, family=Soft, decoder=Soft):
    return AttentionGuide(model, {"layers.*": family(), "decoder.*": decoder()})


def mean_features(model, arguments):
    return predict(guided(model), *arguments, num_samples=1, noise="none").mean


def features(model, source, source_mask, target_in, target_out, target_mask):
    """As all at once, by the methods that evaluation uses, without Pyro."""
    return model.eval().decode(model.encoder(source, source_mask), source_mask, target_in, target_mask)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_padding_other_headlines_and_later_words_change_nothing(normalizer):
    model, arguments = make(normalizer), batch()
    torch.testing.assert_close(mean_features(model, arguments), mean_features(model, batch(more=2)))
    found = features(model, *arguments)
    torch.testing.assert_close(found[arguments[-1]], mean_features(model, arguments))
    for row, (length, words) in enumerate(((5, 3), (3, 4), (4, 1))):
        alone = [one[row : row + 1, :size] for one, size in zip(arguments, (length,) * 2 + (words,) * 3, strict=True)]
        torch.testing.assert_close(features(model, *alone)[0], found[row, :words])
    changed = [one.clone() for one in arguments]
    changed[2][1, 2] = 3 + (changed[2][1, 2] - 2) % 4
    after = features(model, *changed)
    torch.testing.assert_close(after[1, :2], found[1, :2])
    torch.testing.assert_close(after[0], found[0])
    assert (after[1, 2:] - found[1, 2:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_word_by_word_is_as_all_at_once(normalizer):
    """And the loss is the cross-entropy of real words."""
    model = make(normalizer).eval()
    source, source_mask, read, said, mask = arguments = batch()
    expected = model.likelihood(features(model, *arguments)).logits
    loss = AttentionELBO().loss(model, guided(model), *arguments)
    assert loss == pytest.approx(nn.functional.cross_entropy(expected[mask], said[mask], reduction="sum").item())
    state = model.start(source, source_mask)
    for place, words in enumerate(read.unbind(1)):
        log_probs, state = model.advance(state, words)
        torch.testing.assert_close(log_probs[mask[:, place]], expected[mask[:, place], place])
    chosen = torch.tensor([2, 0, 2])  # hypotheses change places, as a search has them do: the rest goes on as before
    one, two = model.start(source, source_mask).select(chosen), model.start(source[chosen], source_mask[chosen])
    for _ in range(2):
        (first, one), (second, two) = model.advance(one, read[chosen, 0]), model.advance(two, read[chosen, 0])
        torch.testing.assert_close(first, second)
        order = torch.tensor([2, 1, 0])  # of the same text
        one, two = one.reorder(order), two.reorder(order)


def test_soft_attention_is_torch_s_decoder():
    model = make().eval()
    source, source_mask, read, _, mask = batch()
    memory = model.encoder(source, source_mask)
    hidden = (model.encoder.tokens(read) + model.positions.weight[: read.size(1)]) * WIDTH**0.5
    for ours in model.layers:
        theirs = nn.TransformerDecoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        theirs.self_attn, theirs.multihead_attn = ours.words.to_torch(), ours.text.to_torch()
        pairs = [
            (theirs.norm1, ours.words_norm), (theirs.norm2, ours.text_norm), (theirs.norm3, ours.feed_forward_norm),
            (theirs.linear1, ours.feed_forward[0]), (theirs.linear2, ours.feed_forward[2]),
        ]  # fmt: skip
        for to, from_ in pairs:
            to.load_state_dict(from_.state_dict())
        causal = torch.ones(read.size(1), read.size(1), dtype=torch.bool).triu(1)
        hidden = theirs(hidden, memory, tgt_mask=causal, memory_key_padding_mask=~source_mask)
    found = model.decode(memory, source_mask, read, mask)
    torch.testing.assert_close(found[mask], model.norm(hidden)[mask])


def test_sites_kl_and_samples():
    """Padding has no part in the KL."""
    model, records = make(prior=ContextualGammaPrior), []
    guide = AttentionGuide(model, Weibull(concentration=1e6))  # with it the words' likelihood and the KL are the same
    for more in (0, 2):
        elbo = AttentionELBO()
        elbo.loss(model, guide, *batch(more=more))
        records.append(elbo.kl_record)
    torch.testing.assert_close(*records)
    sites = guide.run(*batch()).trace.nodes
    shapes = {"layers.1": (5, 5), "decoder.1.words": (4, 4), "decoder.1.text": (4, 5)}
    assert {name: sites[name]["fn"].event_shape[1:] for name in shapes} == shapes
    assert sites["target"]["fn"].batch_shape == (8,)
    losses = [
        AttentionELBO(num_particles=3, vectorize_particles=vectorized).loss(model, guided(model), *batch())
        for vectorized in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert guided(model)(*batch()[:3])["target"].shape == (12,)
