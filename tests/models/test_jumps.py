"""Jumps: the hidden Markov model of alignments, against a sum over all alignments of a sentence."""

import itertools
import math

import pytest
import torch
from torch import nn

from models.decoding import smoothed_alignments, target_alignments
from models.diagonal import DiagonalBias
from models.jumps import Jumps
from models.nmt import Translation
from models.null_word import PROBABILITY
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal, SparseAlignmentPrior
from tests.models.test_diagonal import evidence, make

MOST = 2
OPTIONS = {"words_from": "context", "encoder": "words", "input_feed": "none"}


def hidden_markov(*, null=False, diagonal=False):
    bias = DiagonalBias(3.0, 1.2) if diagonal else None
    model = make(prior_from="place", jumps=Jumps(MOST), null_word=null, diagonal=bias, **OPTIONS)
    nn.init.normal_(model.jumps.log_weight)
    if null:
        model.null_word.probability = PROBABILITY
    return model


def batch():
    """Sentences of 3, 2 and 1 source words, padded, and of 4, 3 and 1 target words."""
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(6, (3, 3), generator=generator), torch.randint(5, (3, 4), generator=generator)
    source_mask = torch.arange(3) < torch.tensor([3, 2, 1])[:, None]
    target_mask = torch.arange(4) < torch.tensor([4, 3, 1])[:, None]
    words = torch.cat([torch.zeros(3, 1, dtype=torch.int64), target[:, :-1]], 1)
    return source, source_mask, words, target, target_mask


def joint(model, source, target, alignment, *, null):
    """Log p(y, z) of one alignment, whose places count from 0, NULL being -1; by definition, one word at a time."""
    log_f = model.output(model.from_context(model.encoder(model.source_embedding(source))).tanh()).log_softmax(-1)
    weights, last, total, real = model.jumps.log_weight, -1, 0.0, torch.ones(1, len(source), dtype=torch.bool)
    for j, (word, place) in enumerate(zip(target, alignment, strict=True)):
        if place < 0:
            of_null = model.output(model.from_context(model.null_word.vector).tanh()).log_softmax(-1)
            total = total + math.log(PROBABILITY) + of_null[word]
            continue
        scores = torch.stack([weights[max(-MOST, min(MOST, i - last)) + MOST] for i in range(len(source))])
        scores = scores if model.diagonal is None else scores + model.diagonal(real, j)[0]
        total = total + scores.log_softmax(0)[place] + log_f[place, word]
        total = total + (math.log(1 - PROBABILITY) if null else 0.0)
        last = place
    return total


def joints(model, source, target, *, null):
    """Log p(y, z) of every alignment."""
    places = range(-1 if null else 0, len(source))
    found = {z: joint(model, source, target, z, null=null) for z in itertools.product(places, repeat=len(target))}
    return list(found), torch.stack(list(found.values()))


def posterior_of(word, model, source, target, *, null):
    """Probability of every place of one word, NULL first, by a sum over all alignments."""
    alignments, log_joint = joints(model, source, target, null=null)
    places = torch.tensor([alignment[word] for alignment in alignments]) + (1 if null else 0)
    return torch.zeros(len(source) + (1 if null else 0)).double().index_add(0, places, log_joint.softmax(0))


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_evidence_and_its_gradient_are_those_of_the_hidden_markov_model(null, diagonal):
    model, arguments = hidden_markov(null=null, diagonal=diagonal), batch()
    source, source_mask, _, target, target_mask = arguments
    expected = sum(
        joints(model, source[b, source_mask[b]], target[b, target_mask[b]], null=null)[1].logsumexp(0) for b in range(3)
    )
    assert evidence(model, arguments) == pytest.approx(expected.item(), rel=1e-10)
    parameters = [model.jumps.log_weight, model.source_embedding.weight, model.output.weight]
    gradients = torch.autograd.grad(expected, parameters)
    AlignmentELBO(max_plate_nesting=2).differentiable_loss(
        model, AttentionGuide(model, Marginal()), *arguments
    ).backward()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, -gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_posterior_of_a_word_is_that_given_the_words_up_to_it(null, diagonal):
    model = hidden_markov(null=null, diagonal=diagonal).eval()
    source, source_mask, words, target, target_mask = batch()
    state = model.start(model.encode(source, source_mask), source_mask)
    found = target_alignments(model, state, words, target)
    for b in range(3):
        for j in range(int(target_mask[b].sum())):
            own = source[b, source_mask[b]]
            expected = posterior_of(j, model, own, target[b, : j + 1], null=null)
            torch.testing.assert_close(found[b, j, : len(expected)], expected)
            assert found[b, j, len(expected) :].count_nonzero() == 0


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_words_to_come_tell_of_an_alignment_too(null, diagonal):
    model = hidden_markov(null=null, diagonal=diagonal).eval()
    source, source_mask, words, target, target_mask = batch()
    state = model.start(model.encode(source, source_mask), source_mask)
    found = smoothed_alignments(model, state, words, target, target_mask)
    for b in range(3):
        own, length = source[b, source_mask[b]], int(target_mask[b].sum())
        for j in range(length):
            expected = posterior_of(j, model, own, target[b, :length], null=null)
            torch.testing.assert_close(found[b, j, : len(expected)], expected)
            assert found[b, j, len(expected) :].count_nonzero() == 0
        assert found[b, length:].count_nonzero() == 0


def test_half_precision_around_them():
    model, arguments = hidden_markov().float(), batch()
    exact = evidence(model, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        assert evidence(model, arguments) == pytest.approx(exact, rel=0.02)


# bad input


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Jumps(0), "most is 0, expected at least 1"),
        (lambda: Translation(5, 5, jumps=Jumps()), "jumps do not go with words_from='both'"),
        (
            lambda: Translation(5, 5, jumps=Jumps(), words_from="context", prior=SparseAlignmentPrior()),
            "jumps do not go with a sparse prior",
        ),
        (
            lambda: Translation(5, 5, jumps=Jumps(), words_from="context", input_feed="sampled"),
            "jumps do not go with input_feed='sampled'",
        ),
    ],
)
def test_what_can_not_be(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_without_jumps_nothing_is_smoothed():
    model, (source, mask, words, target, real) = make(**OPTIONS).eval(), batch()
    state = model.start(model.encode(source, mask), mask)
    with pytest.raises(ValueError, match="the model has no jumps"):
        smoothed_alignments(model, state, words, target, real)


def test_a_step_needs_the_last_word():
    model, (source, mask, words, *_) = hidden_markov().eval(), batch()
    step = model.read(model.start(model.encode(source, mask), mask), words[:, 0])
    with pytest.raises(ValueError, match="log_f is missing, which jumps need"):
        model.step(step.state, model.embed(words[:, 1]))
