"""A decoder for aligners: the diagonal bias, no input feed, and words read from the context alone."""

import math

import pytest
import torch
from torch import nn

from models.captioning import Captioning
from models.decoding import Inference, beam_search
from models.decoding.next_word import next_word_log_probs, target_alignments, target_log_probs
from models.diagonal import DiagonalBias
from models.jumps import Jumps
from models.nmt import Translation, TranslationSizes
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4)


def make(**options):
    torch.manual_seed(0)
    model = Translation(6, 5, sizes=SIZES, dropout=0.0, **options).double()
    for name, parameter in model.named_parameters():
        if not name.startswith("diagonal"):
            nn.init.normal_(parameter)
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(6, (3, 4), generator=generator)
    target = torch.randint(2, 5, (3, 6), generator=generator)
    source_mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    words = torch.cat([torch.zeros(3, 1, dtype=torch.int64), target[:, :-1]], 1)
    return source, source_mask, words, target, torch.ones(3, 6, dtype=torch.bool)


# the bias


@pytest.mark.parametrize(("strength", "ratio"), [(4.0, 1.0), (2.5, 1.5)])
def test_closed_form(strength, ratio):
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    bias = DiagonalBias(strength, ratio).double()
    for place in range(8):
        found = bias(mask, place)
        for row, count in enumerate((4, 2)):
            for i in range(count):
                target = min((place + 0.5) / (ratio * count), 1.0)
                expected = -strength * abs((i + 0.5) / count - target)
                assert found[row, i].item() == pytest.approx(expected, rel=1e-6)


def test_both_numbers_are_trained():
    bias = DiagonalBias().double()
    bias(torch.ones(1, 3, dtype=torch.bool), 1)[0, 0].backward()
    # -s |1/6 - 1.5 / (3 r)| with s = 4 and r = 1: the derivatives by log s and log r
    assert bias.log_strength.grad.item() == pytest.approx(-4 / 3)
    assert bias.log_ratio.grad.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiagonalBias(0.0), "strength is 0.0, expected a positive"),
        (lambda: DiagonalBias(ratio=math.inf), "ratio is inf, expected a positive"),
        (lambda: Translation(5, 5, prior_from="keys"), "prior_from is 'keys', expected 'words' or 'place'"),
        (lambda: Translation(5, 5, words_from="query"), "words_from is 'query', expected 'both' or 'context'"),
        (lambda: Translation(5, 5, encoder="gru"), "encoder is 'gru', expected 'lstm' or 'words'"),
        (lambda: Captioning(4, 5, input_feed="none"), "input_feed is 'none', expected one of expected, sampled"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_scores_of_a_model_are_those_without_it_and_the_bias():
    """Without an input feed the decoder does not see where it looked, so its scores are the same but for the bias."""
    plain, biased = make(input_feed="none"), make(input_feed="none", diagonal=DiagonalBias())
    source, mask, words, *_ = batch()
    found = []
    for model in (plain, biased):
        found.append([step.scores for step in model.steps(model.start(model.encode(source, mask), mask), words)])
    for place, (without, with_bias) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(with_bias, without + biased.diagonal(mask, place))


def test_the_numbers_keep_their_start_under_an_init_range():
    model = Translation(6, 5, sizes=SIZES, init_range=0.1, diagonal=DiagonalBias(4.0))
    assert model.diagonal.log_strength.exp().item() == pytest.approx(4.0)


# decoding is teacher forcing


ALIGNERS = {
    "diagonal": {"diagonal": True},
    "no feed": {"input_feed": "none"},
    "context": {"words_from": "context"},
    "words": {"encoder": "words"},
    "place": {"diagonal": True, "prior_from": "place"},
    "all": {"diagonal": True, "input_feed": "none", "words_from": "context", "encoder": "words"},
    "hidden Markov": {"words_from": "context", "prior_from": "place", "jumps": Jumps(2).double(), "null_word": True},
    "model 2": {"diagonal": True, "input_feed": "none", "words_from": "context", "prior_from": "place"},
}


def aligner(name):
    options = dict(ALIGNERS[name])
    return make(**options | ({"diagonal": DiagonalBias()} if options.pop("diagonal", False) else {})).eval()


@pytest.mark.parametrize("name", ALIGNERS)
def test_beam_search_scores_as_teacher_forcing(name):
    model, (source, mask, *_) = aligner(name), batch()
    found = beam_search(model, source, mask, begin=0, end=1, beam=3, max_length=5, length_penalty=0.0)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = torch.tensor([one.tokens])
            words = torch.cat([torch.zeros(1, 1, dtype=torch.int64), target[:, :-1]], 1)
            count = int(mask[row].sum())
            sides = source[row : row + 1, :count], mask[row : row + 1, :count]
            log_probs = target_log_probs(model, *sides, words, target, torch.ones_like(target, dtype=torch.bool))
            assert log_probs.sum().item() == pytest.approx(one.score, rel=1e-9)


@pytest.mark.parametrize("name", ALIGNERS)
def test_evidence_is_the_sum_over_words(name):
    model, arguments = aligner(name), batch()
    evidence = -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)
    assert evidence == pytest.approx(target_log_probs(model, *arguments).sum().item(), rel=1e-9)


# no feed


@pytest.mark.parametrize(("feed", "same"), [("none", True), ("expected", False)])
def test_without_a_feed_queries_know_the_words_alone(feed, same):
    model, (source, mask, words, *_) = make(input_feed=feed), batch()
    queries = []
    for sentence in (source, source.flip(1)):
        state = model.start(model.encode(sentence, mask), mask)
        queries.append(torch.stack([step.queries for step in model.steps(state, words)]))
    assert torch.equal(*queries) == same
    assert torch.equal(queries[0][0], queries[1][0])  # the first word has nothing before it


# words by themselves


@pytest.mark.parametrize(("encoder", "same"), [("words", True), ("lstm", False)])
def test_a_word_by_itself_stands_for_itself_alone(encoder, same):
    model, (source, mask, *_) = make(encoder=encoder), batch()
    turned = source.clone()
    turned[0] = source[0].flip(0)
    first, second = model.encode(source, mask), model.encode(turned, mask)
    assert first[0].flip(0).allclose(second[0]) == same
    assert not first[~mask].any()


# words from the context alone


def test_words_from_the_context_are_those_of_a_decoder_that_is_not_heard():
    model, both = make(words_from="context"), make()
    both.load_state_dict(model.state_dict(), strict=False)
    nn.init.zeros_(both.from_query.weight)
    nn.init.zeros_(both.from_query.bias)
    torch.testing.assert_close(target_log_probs(model, *batch()), target_log_probs(both, *batch()))


@pytest.mark.parametrize(("words_from", "rows"), [("context", (4, 3, 1)), ("both", (4, 3, 6))])
def test_alignments_share_their_logits_between_words(words_from, rows):
    """Of 4 source words, 3 sentences and 6 target words."""
    model = make(words_from=words_from)
    likelihood = model.likelihood(torch.randn(3, 6, 5).double(), torch.randn(4, 3, 1, 4).double())
    assert tuple(likelihood.features.shape[:-1]) == rows


def evidence(model, arguments):
    return -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)


def explicit_model_2(model, source, target_in, target_out):
    """Log evidence of one sentence pair: a word table and fast_align's prior, one word at a time."""
    table = model.output(model.from_context(model.encoder(model.source_embedding(source))).tanh()).log_softmax(-1)
    strength, ratio = model.diagonal.log_strength.exp(), model.diagonal.log_ratio.exp()
    places, total = (torch.arange(len(source)) + 0.5) / len(source), 0.0
    for place, word in enumerate(target_out):
        distance = (places - min((place + 0.5) / (len(source) * ratio), torch.tensor(1.0))).abs()
        total += ((-strength * distance).softmax(0) * table[:, word].exp()).sum().log()
    return total


def test_a_prior_of_the_places_makes_model_2_of_fast_align():
    """The words before change nothing, and the network has no weights for them."""
    model = make(prior_from="place", words_from="context", encoder="words", input_feed="none", diagonal=DiagonalBias())
    source, source_mask, words, target, target_mask = arguments = batch()
    expected = sum(
        explicit_model_2(model, source[b, source_mask[b]], words[b], target[b, target_mask[b]])
        for b in range(len(source))
    )
    assert evidence(model, arguments) == pytest.approx(expected.item(), rel=1e-6)
    others = source, source_mask, words.flip(1), target, target_mask
    assert evidence(model, others) == evidence(model, arguments)
    assert len(model.decoder) == 0


def test_the_posterior_of_words_from_the_context():
    """p(z | y) is the softmax of the scores and of each source word's log probability of the word."""
    model, (source, mask, words, target, _) = make(words_from="context").eval(), batch()
    with torch.no_grad():
        memory = model.encode(source, mask)
        state = model.start(memory, mask)
        found = target_alignments(model, state, words, target, Inference())
        log_f = model.output(model.from_context(memory).tanh()).log_softmax(-1)
        for j, step in enumerate(model.steps(state, words)):
            joint = (
                step.scores.masked_fill(~mask, -math.inf)
                + log_f.gather(-1, target[:, None, j : j + 1].expand(-1, 4, 1))[..., 0]
            )
            torch.testing.assert_close(found[:, j], joint.softmax(-1))
        assert next_word_log_probs(model, step).exp().sum(-1).tolist() == pytest.approx([1.0] * 3)
