"""The writer of headlines: padding, sites, causality, torch's own layers, and word by word as all at once."""

import itertools

import pytest
import torch
from torch import nn

from models.decoding import search_words
from models.headlines import HeadlineWriter
from models.text import TextEncoder
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    DoublyNormalized,
    Gamma,
    Hybrid,
    Soft,
    Softmax,
    Weibull,
    predict,
    sample_posterior,
)

VOCABULARY, WIDTH, HEADS, LAYERS = 7, 8, 2, 2
NORMALIZERS = {"softmax": lambda heads: Softmax(), "doubly": lambda heads: DoublyNormalized(), "hybrid": Hybrid}
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
@pytest.mark.parametrize("more", [1, 2])
def test_padding_and_the_other_headlines_change_nothing(normalizer, more):
    model, arguments, long = make(normalizer), batch(), batch(more=more)
    torch.testing.assert_close(mean_features(model, arguments), mean_features(model, long))
    found = features(model, *arguments)
    torch.testing.assert_close(found[arguments[-1]], mean_features(model, arguments))
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(features(model, *(one[order] for one in arguments)), found[order])
    for row, (length, words) in enumerate(((5, 3), (3, 4), (4, 1))):
        alone = [one[row : row + 1, :size] for one, size in zip(arguments, (length,) * 2 + (words,) * 3, strict=True)]
        torch.testing.assert_close(features(model, *alone)[0], found[row, :words])


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_word_sees_those_before_it_alone(normalizer):
    model, arguments = make(normalizer), batch()
    changed = [one.clone() for one in arguments]
    changed[2][1, 2] = 3 + (changed[2][1, 2] - 2) % 4
    before, after = features(model, *arguments), features(model, *changed)
    torch.testing.assert_close(after[1, :2], before[1, :2])
    torch.testing.assert_close(after[0], before[0])
    assert (after[1, 2:] - before[1, 2:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_word_by_word_is_as_all_at_once(normalizer):
    model = make(normalizer).eval()
    source, source_mask, read, said, mask = batch()
    expected = model.likelihood(features(model, source, source_mask, read, said, mask)).logits
    state = model.start(source, source_mask)
    for place, words in enumerate(read.unbind(1)):
        log_probs, state = model.advance(state, words)
        real = mask[:, place]
        torch.testing.assert_close(log_probs[real], expected[real, place])
        # hypotheses change places, as a search has them do: the rest goes on as before
        state = state.reorder(torch.arange(3))
    chosen = torch.tensor([2, 0, 2])
    one, two = model.start(source, source_mask).select(chosen), model.start(source[chosen], source_mask[chosen])
    for _ in range(2):
        (first, one), (second, two) = model.advance(one, read[chosen, 0]), model.advance(two, read[chosen, 0])
        torch.testing.assert_close(first, second)


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


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_search_that_drops_nothing_finds_the_best_headline(normalizer):
    model, most, others = make(normalizer, positions=3).eval(), 3, [word for word in range(VOCABULARY) if word != END]
    source, source_mask, *_ = batch()
    found = search_words(
        model.start(source, source_mask), model.advance, begin=BEGIN, end=END, beam=400, max_length=most,
        length_penalty=0.0,
    )  # fmt: skip
    for row, (best,) in enumerate(found):
        states = {(): model.start(source[row : row + 1], source_mask[row : row + 1])}
        totals, finished = {(): 0.0}, {}
        for length in range(most):
            for prefix in itertools.product(others, repeat=length):
                log_probs, state = model.advance(states[prefix], torch.tensor([prefix[-1] if prefix else BEGIN]))
                words = (totals[prefix] + log_probs[0]).tolist()
                finished[(*prefix, END)] = words[END]
                totals |= {(*prefix, word): words[word] for word in others}
                states |= {(*prefix, word): state for word in others}
        expected = max(finished, key=finished.get)
        assert best.tokens == expected
        assert best.log_prob == pytest.approx(finished[expected])


def test_sites():
    guide = AttentionGuide(make(), Weibull())
    sites = guide.run(*batch()).trace.nodes
    for layer in range(LAYERS):
        for name, shape in (
            (f"layers.{layer}", (5, 5)),
            (f"decoder.{layer}.words", (4, 4)),
            (f"decoder.{layer}.text", (4, 5)),
        ):
            fn = sites[name]["fn"]
            assert (fn.batch_shape, fn.event_shape) == ((3,), (HEADS, *shape))
    assert sites["target"]["fn"].batch_shape == (8,)
    assert sites["target"]["is_observed"]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_the_loss_is_the_cross_entropy_of_real_words(normalizer):
    model, arguments = make(normalizer), batch()
    loss = AttentionELBO().loss(model, guided(model), *arguments)
    logits = features(model, *arguments) @ model.encoder.tokens.weight.T + model.bias
    real, said = arguments[-1], arguments[-2]
    assert loss == pytest.approx(nn.functional.cross_entropy(logits[real], said[real], reduction="sum").item())


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("family", "decoder"), [(Soft, Soft), (Weibull, Soft), (Weibull, Weibull), (Gamma, Soft)])
def test_every_parameter_trains(normalizer, family, decoder):
    options = {"prior": ContextualGammaPrior} if decoder is Weibull else {}
    model = make(normalizer, dropout=0.1, **options)
    loss = AttentionELBO()(model, guided(model, family, decoder))(*batch())
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        if family is Soft and ".prior." in name:
            continue  # a point mass has no prior term
        if name.endswith("positions.weight"):
            parameter = parameter[:1]  # the others are of longer sentences
        gradient = parameter.grad if parameter.is_leaf else model.get_parameter(name).grad[:1]
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        # one number more in all scores of a query cancels; with normalisation over queries, also of a key
        cancels = ("k_proj.bias", "q_proj.bias") if normalizer == "doubly" else ("k_proj.bias",)
        assert gradient.abs().max() > 1e-12 or name.endswith(cancels), name


def test_padding_does_not_take_part_in_the_kl():
    model, records = make(prior=ContextualGammaPrior), []
    for more in (0, 2):
        elbo = AttentionELBO()
        # so little noise that the words' likelihood, and with it the KL, is the same
        elbo.loss(model, AttentionGuide(model, Weibull(concentration=1e6)), *batch(more=more))
        records.append(elbo.kl_record)
    assert records[0].keys() == {f"{part}" for layer in range(LAYERS) for part in (
        f"layers.{layer}", f"decoder.{layer}.words", f"decoder.{layer}.text")}  # fmt: skip
    torch.testing.assert_close(*records)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_vectorised_particles_and_chunks(normalizer):
    model = make(normalizer)
    losses = [
        AttentionELBO(num_particles=3, vectorize_particles=vectorised).loss(model, guided(model), *batch())
        for vectorised in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1])
    guide = guided(model, lambda: Weibull(concentration=2.0))
    samples = predict(guide, *batch(), num_samples=4, keep_samples=True, chunk_size=4).samples
    assert samples.shape == (4, 8, WIDTH)
    assert samples.std(0).min() > 0
    weights = sample_posterior(guide, *batch(), num_samples=2)["decoder.1.text"]
    assert weights.shape == (2, 3, HEADS, 4, 5)


def test_a_drawn_headline():
    assert guided(model := make())(*batch()[:3])["target"].shape == (12,)
    assert predict(guided(model), *batch()[:3], num_samples=1).mean.shape == (12, WIDTH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arguments: [*arguments[:4], arguments[4][:, :2]], "boolean mask of the same shape"),
        (lambda arguments: [*arguments[:4], arguments[4].long()], "mask is torch.int64"),
        (
            lambda arguments: [*arguments[:2], *(one.repeat(1, 2) for one in arguments[2:])],
            "has 8 words, expected 6 at",
        ),
        (lambda arguments: [arguments[0].repeat(1, 3), arguments[1].repeat(1, 3), *arguments[2:]], "has 15 tokens"),
    ],
    ids=["mask", "no booleans", "headline", "text"],
)
def test_wrong_input(change, message):
    with pytest.raises(ValueError, match=message):
        guided(make())(*change(batch()))


def test_a_search_for_more_words_than_there_are_positions():
    model = make(positions=2).eval()
    model.bias.data[END] = -100.0
    source, source_mask, *_ = batch()
    with pytest.raises(ValueError, match="a headline has 3 words, expected 2 at most"):
        search_words(model.start(source, source_mask), model.advance, begin=BEGIN, end=END, beam=2, max_length=3)
