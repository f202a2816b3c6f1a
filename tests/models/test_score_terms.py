"""What a decoder adds to its attention's scores: closed forms, sums over all alignments of a sentence, and searches."""

import itertools
import math

import pytest
import torch
from torch import nn

from guides.inference_network import AlignmentNetwork
from models.decoding import (
    beam_search,
    smoothed_alignments,
    target_alignments,
    target_log_probs,
)
from models.nmt import Translation, TranslationSizes
from models.score_terms import PROBABILITY, DiagonalBias, Jumps, NullWord, TemporalNormalizer
from pyro_attention import (
    AlignmentELBO,
    Amortized,
    AttentionGuide,
    Categorical,
    Marginal,
)

SIZES, MOST = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4), 2
ALIGNER = {"words_from": "context", "encoder": "words", "input_feed": "none"}


def make(**options):
    torch.manual_seed(0)
    model = Translation(6, 5, sizes=SIZES, dropout=0.0, **options).double()
    for name, parameter in model.named_parameters():
        if not name.startswith(("diagonal", "normalizer")):
            nn.init.normal_(parameter)
    return model


def batch():
    """Sentences of 3, 2 and 1 source words, padded, and of 4, 3 and 1 target words."""
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(6, (3, 3), generator=generator), torch.randint(2, 5, (3, 4), generator=generator)
    source_mask = torch.arange(3) < torch.tensor([3, 2, 1])[:, None]
    target_mask = torch.arange(4) < torch.tensor([4, 3, 1])[:, None]
    words = torch.cat([torch.zeros(3, 1, dtype=torch.int64), target[:, :-1]], 1)
    return source, source_mask, words, target, target_mask


def start(model, source, mask):
    return model.start(model.encode(source, mask), mask)


def evidence(model, arguments):
    return -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)


# closed forms


@pytest.mark.parametrize(("strength", "ratio"), [(4.0, 1.0), (2.5, 1.5)])
def test_diagonal(strength, ratio):
    mask, bias = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool(), DiagonalBias(strength, ratio).double()
    for place in range(8):
        for row, count in enumerate((4, 2)):
            for i in range(count):
                distance = abs((i + 0.5) / count - min((place + 0.5) / (ratio * count), 1.0))
                assert bias(mask, place)[row, i].item() == pytest.approx(-strength * distance, rel=1e-6)
    bias(mask, 1)[0, 0].backward()
    assert bias.log_strength.grad.item() == pytest.approx(bias(mask, 1)[0, 0].item())
    assert bias.log_ratio.grad.item() > 0


def test_null():
    scores, mask = torch.tensor([[9.0, 1.0, 0.5, 7.0]]).double(), torch.tensor([[True, True, True, False]])
    probabilities = NullWord(2, 0.3)(scores, mask).masked_fill(~mask, -math.inf).softmax(-1)
    words = torch.tensor([1.0, 0.5]).double().softmax(-1)
    torch.testing.assert_close(probabilities, torch.tensor([[0.3, 0.7 * words[0], 0.7 * words[1], 0.0]]).double())
    assert NullWord(2)(scores, mask) is scores


@pytest.mark.parametrize("share", [None, 0.3])
def test_temporal(share):
    scores, mask = 3 * torch.randn(5, 2, 4, dtype=torch.float64), torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]]).bool()
    normalizer, seen, share = TemporalNormalizer(share).double(), None, 1 if share is None else share
    for i in range(len(scores)):
        found, seen = normalizer(scores[i], seen, mask)
        exponentials = scores.exp() * mask
        plain = exponentials[i] / exponentials[i].sum(-1, keepdim=True)
        past = exponentials[i] / exponentials[:i].sum(0).where(mask, 1) if i else plain
        expected = share * past / past.sum(-1, keepdim=True) + (1 - share) * plain
        torch.testing.assert_close(found.masked_fill(~mask, -torch.inf).softmax(-1), expected)


# sums over all alignments


def joint(model, source, target, alignment):
    """Log p(y, z) of one alignment, whose places count from 0, NULL being -1; by definition, one word at a time."""
    log_f = model.output(model.from_context(model.encoder(model.source_embedding(source))).tanh()).log_softmax(-1)
    last, total, real = -1, 0.0, torch.ones(1, len(source), dtype=torch.bool)
    for j, (word, place) in enumerate(zip(target, alignment, strict=True)):
        if place < 0:
            of_null = model.output(model.from_context(model.null_word.vector).tanh()).log_softmax(-1)
            total = total + math.log(PROBABILITY) + of_null[word]
            continue
        scores = torch.zeros(len(source)).double()
        if model.jumps is not None:
            jumps = [max(-MOST, min(MOST, i - last)) + MOST for i in range(len(source))]
            scores = scores + model.jumps.log_weight[jumps]
        scores = scores if model.diagonal is None else scores + model.diagonal(real, j)[0]
        total = total + scores.log_softmax(0)[place] + log_f[place, word]
        total = total + (math.log(1 - PROBABILITY) if model.null_word is not None else 0.0)
        last = place
    return total


def joints(model, source, target):
    """Every alignment, and its log p(y, z)."""
    places = range(0 if model.null_word is None else -1, len(source))
    alignments = list(itertools.product(places, repeat=len(target)))
    return alignments, torch.stack([joint(model, source, target, z) for z in alignments])


def posteriors(model, source, target, words):
    """Probability of every place of some words, NULL first, by a sum over all alignments: ``[words, N]``."""
    first = 0 if model.null_word is None else 1
    alignments, log_joint = joints(model, source, target)
    rows = []
    for word in words:
        places = torch.tensor([alignment[word] for alignment in alignments]) + first
        rows.append(torch.zeros(len(source) + first).double().index_add(0, places, log_joint.softmax(0)))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("jumps", "null", "diagonal"),
    [(True, False, False), (True, True, True), (False, True, True), (False, False, True)],
    ids=["hidden Markov", "with NULL and a diagonal", "fast_align", "model 2"],
)
def test_evidence_gradient_and_posteriors_are_those_of_the_aligner(jumps, null, diagonal):
    options = {"jumps": Jumps(MOST) if jumps else None, "diagonal": DiagonalBias(3.0, 1.2) if diagonal else None}
    model = make(prior_from="place", null_word=null, **options, **ALIGNER).eval()
    if null:
        model.null_word.probability = PROBABILITY
    source, source_mask, words, target, target_mask = arguments = batch()
    assert len(model.decoder) == 0  # the words before change nothing, and there are no weights for them
    pairs = [(source[b, source_mask[b]], target[b, target_mask[b]]) for b in range(3)]
    expected = sum(joints(model, *pair)[1].logsumexp(0) for pair in pairs)
    loss = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, AttentionGuide(model, Marginal()), *arguments)
    assert -loss.item() == pytest.approx(expected.item(), rel=1e-10)
    parameters = [model.source_embedding.weight, model.output.weight]
    parameters += [model.jumps.log_weight] if jumps else [model.diagonal.log_ratio]
    gradients = [torch.autograd.grad(value, parameters) for value in (-loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    state = start(model, source, source_mask)
    found = target_alignments(model, state, words, target)
    smoothed = smoothed_alignments(model, state, words, target, target_mask) if jumps else None
    for b, (own, said) in enumerate(pairs):
        for j in range(len(said)):  # given the words up to it
            row = posteriors(model, own, said[: j + 1], [j])[0]
            torch.testing.assert_close(found[b, j, : len(row)], row)
        if jumps:  # given all words
            rows = posteriors(model, own, said, range(len(said)))
            torch.testing.assert_close(smoothed[b, : len(said), : rows.size(1)], rows)
            assert smoothed[b, :, rows.size(1) :].count_nonzero() == smoothed[b, len(said) :].count_nonzero() == 0


def test_elbo_of_an_inference_network_with_null():
    """Word by word, without padding."""
    model, (source, source_mask, words, target, target_mask) = make(null_word=True, **ALIGNER).eval(), batch()
    network = AlignmentNetwork(
        model.source_embedding, model.target_embedding, hidden=4, layers=1, dropout=0.0, null_word=True
    ).double()
    nn.init.normal_(network.null)
    guide, expected = AttentionGuide(model, Amortized(network, Categorical())), 0.0
    arguments = source, source_mask, words, target, target_mask
    for row, scores in enumerate(network(*arguments).squeeze(2)):
        size, length = int(source_mask[row].sum()), int(target_mask[row].sum())
        real = torch.ones(1, size, dtype=torch.bool)
        memory = model.encode(source[row : row + 1, :size], real)
        contexts = torch.cat([model.null_word.vector.expand(1, 1, -1), memory], 1)
        for place, step in enumerate(model.steps(model.start(memory, real), words[row : row + 1, :length])):
            log_f = model.likelihood(step.queries.unsqueeze(1), contexts).logits[0, :, target[row, place]]
            log_p, log_q = step.scores[0].log_softmax(-1), scores[place, : size + 1].log_softmax(-1)
            expected += (log_q.exp() * (log_f + log_p - log_q)).sum().item()
    found = -AlignmentELBO(max_plate_nesting=2).loss(model, guide, *arguments)
    assert found == pytest.approx(expected, rel=1e-9)


# decoding is teacher forcing


ALIGNERS = {
    "diagonal": {"diagonal": True},
    "context": {"words_from": "context", "null_word": True},
    "all": {"diagonal": True, "null_word": True, **ALIGNER},
    "hidden Markov": {"words_from": "context", "prior_from": "place", "jumps": Jumps(2).double(), "null_word": True},
    "temporal": {"normalizer": TemporalNormalizer(0.3), "null_word": True},
    "temporal without a share": {"normalizer": TemporalNormalizer(), "diagonal": True, "null_word": True},
}


def aligner(name):
    options = dict(ALIGNERS[name])
    model = make(**options | ({"diagonal": DiagonalBias()} if options.pop("diagonal", False) else {})).eval()
    model.output.bias.data[1] -= 3.0  # sentences long enough for hypotheses to change places
    return model


@pytest.mark.parametrize("name", ALIGNERS)
def test_beam_search_scores_as_teacher_forcing(name):
    """One sentence at a time, without padding; and the evidence is the sum over words."""
    model, (source, mask, *target) = aligner(name), batch()
    total = target_log_probs(model, source, mask, *target).sum().item()
    assert evidence(model, (source, mask, *target)) == pytest.approx(total, rel=1e-9)
    found = beam_search(model, source, mask, begin=0, end=1, beam=3, keep=2, max_length=5, length_penalty=0.0)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            said, sides = torch.tensor([one.tokens]), (source[row : row + 1, mask[row]], mask[row : row + 1, mask[row]])
            words = torch.cat([torch.zeros(1, 1, dtype=torch.int64), said[:, :-1]], 1)
            log_probs = target_log_probs(model, *sides, words, said, torch.ones_like(said, dtype=torch.bool))
            assert log_probs.sum().item() == pytest.approx(one.score, rel=1e-9)
            rows = target_alignments(model, start(model, *sides), words, said)[0]
            torch.testing.assert_close(one.alignments, rows[:, 0 if model.null_word is None else 1 :])


def test_no_word_depends_on_later_ones():
    model, (source, mask, words, target, real) = make(normalizer=TemporalNormalizer(0.3)), batch()
    before = target_log_probs(model, source, mask, words, target, real)
    changed = torch.cat([words[:, :3], 4 - words[:, 3:]], 1)
    after = target_log_probs(model, source, mask, changed, target, real)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:1, 3], after[:1, 3])


# scores of a model


def scores_of(model, source, mask, words):
    return torch.stack([step.scores for step in model.steps(start(model, source, mask), words)])


def test_scores_are_those_without_a_diagonal_and_null_and_these():
    """Without an input feed the decoder does not see where it looked, so nothing else changes."""
    bias, (source, mask, words, *_) = DiagonalBias(3.0).double(), batch()
    plain, biased, null = (make(input_feed="none", **more) for more in
                           ({}, {"diagonal": bias}, {"diagonal": bias, "null_word": True}))  # fmt: skip
    for model in (biased, null):
        model.load_state_dict(plain.state_dict(), strict=False)
    found, without = scores_of(biased, source, mask, words), scores_of(plain, source, mask, words)
    torch.testing.assert_close(found, without + torch.stack([bias(mask, place) for place in range(4)]))
    of_null = scores_of(null, source, mask, words)
    torch.testing.assert_close(of_null[..., 1:], found)
    prior = of_null.masked_fill(~nn.functional.pad(mask, (1, 0), value=True), -math.inf).softmax(-1)
    torch.testing.assert_close(prior[..., 0], torch.full((4, 3), PROBABILITY).double())


# bad input


def test_jumps_need_words_of_the_context_alone():
    for options in ({}, {"words_from": "context", "input_feed": "sampled"}):
        with pytest.raises(ValueError, match="jumps do not go with"):
            make(jumps=Jumps(), **options)
