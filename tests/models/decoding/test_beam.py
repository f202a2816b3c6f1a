"""Beam search and greedy search: against exhaustive search and Bayes' rule."""

import itertools
import math
from functools import cache

import pytest
import torch
from torch import nn

from models.decoding import Inference, beam_search, sample, target_log_probs
from models.decoding.hypotheses import largest, length_divisor
from pyro_attention import AlignmentELBO, Amortised, AttentionGuide, Gamma, Marginal, Soft, Weibull
from tests.models.decoding.small_translation import BAYESIAN, BEGIN, END, IDS, approx, batch, explicit, make, scores_of


def exhaustive(model, words, max_length):
    """Log probabilities of all sequences that end by `max_length` and of all cut there.

    Third: how long the first sequence is that ends and has the highest log probability of its length, where a search
    that takes this for a sign would stop.
    """
    finished, live, top = {}, {(): 0.0}, None
    for _ in range(max_length):
        grown = {}
        for prefix, total in live.items():
            log_probs = (explicit(model, words, prefix)[2] + total).tolist()
            grown |= {(*prefix, word): value for word, value in enumerate(log_probs)}
        best = max(grown, key=grown.get)
        top = len(best) if top is None and best[-1] == END else top
        finished |= {tokens: value for tokens, value in grown.items() if tokens[-1] == END}
        live = {tokens: value for tokens, value in grown.items() if tokens[-1] != END}
    return finished, live, top


def ranked(sequences, length_penalty):
    """(score, tokens, log probability), best first."""
    scores = [
        (value / length_divisor(len(tokens), length_penalty), tokens, value) for tokens, value in sequences.items()
    ]
    return sorted(scores, reverse=True)


@cache
def random_sequences(length, max_length):
    return exhaustive(make(2), batch()[0][1, :length], max_length)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("max_length", [1, 4])
def test_a_beam_that_drops_nothing_is_exhaustive_search(length_penalty, max_length):
    source, mask = batch()[0][1:2].expand(2, -1), torch.arange(5) < torch.tensor([[3], [2]])
    options = {**IDS, "beam": 108, "max_length": max_length, "length_penalty": length_penalty}
    found = beam_search(make(2), source, mask, keep=5, **options)
    first = beam_search(make(2), source, mask, **options)  # stops earlier
    for hypotheses, (best,), length in zip(found, first, (3, 2), strict=True):
        finished, live, _ = random_sequences(length, max_length)
        expected = [*ranked(finished, length_penalty), *ranked(live, length_penalty)]
        assert len(hypotheses) == min(5, len(expected))
        for one, (score, tokens, value) in zip(hypotheses, expected, strict=False):
            assert (one.tokens, one.finished) == (tokens, tokens[-1] == END)
            assert (one.score, one.log_prob) == pytest.approx((score, value), rel=1e-10)
        assert scores_of([[best]]) == approx(scores_of([hypotheses[:1]]))


def all_different(tokens, size):
    """Whether no so many tokens in a row come twice, the begin token among them."""
    rows = [(BEGIN, *tokens)[i : i + size] for i in range(len(tokens) - size + 2)]
    return len(set(rows)) == len(rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_tokens_in_a_row_come_twice(size):
    """Exhaustive search among the sentences that do not repeat themselves."""
    source, mask = batch()[0][1:2, :3], torch.ones(1, 3, dtype=torch.bool)
    (found,) = beam_search(make(2), source, mask, **IDS, beam=108, max_length=4, keep=20, no_repeat=size)
    finished, live, _ = random_sequences(3, 4)
    kept = [[one for one in ranked(some, 1.0) if all_different(one[1], size)] for some in (finished, live)]
    expected = [tokens for _, tokens, _ in [*kept[0], *kept[1]]][:20]
    assert [one.tokens for one in found] == expected
    assert size > 2 or any(not all_different(tokens, size) for _, tokens, _ in ranked(finished, 1.0))


def test_an_end_with_the_highest_log_probability_does_not_stop_the_search():
    """Trained on 8 empty sentences, 7 of three words and 5 of one: the empty one leads at first, and then loses."""
    model = make(std=0.5, dropout=0.0)
    target = torch.tensor([[END, 0, 0, 0]] * 8 + [[2, 3, 3, END]] * 7 + [[0, END, 0, 0]] * 5)
    mask = (target == END).cumsum(1) - (target == END).long() == 0
    before = nn.functional.pad(target, (1, -1), value=BEGIN)
    source = torch.tensor([[3, 4]])
    real = torch.ones(20, 2, dtype=torch.bool)
    loss = AlignmentELBO(max_plate_nesting=2)(model, AttentionGuide(model, Marginal()))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss(source.expand(20, -1), real, before, target, mask).backward()
        optimiser.step()
    finished, _, top = exhaustive(model, source[0], 4)
    for length_penalty, expected in ((0.0, (END,)), (1.0, (2, 3, 3, END)), (2.0, (2, 3, 3, END))):
        assert ranked(finished, length_penalty)[0][1] == expected
        found = beam_search(model, source, real[:1], **IDS, beam=4, max_length=4, length_penalty=length_penalty)
        assert found[0][0].tokens == expected
    assert top == 1


@pytest.mark.parametrize("k_max", [None, 2])
def test_alignments_are_by_bayes_rule(k_max):
    model, (source, mask) = make(), batch(more=2)
    found = beam_search(model, source, mask, inference=Inference(k_max=k_max), **IDS, beam=4, keep=2, max_length=5)
    for b, hypotheses in enumerate(found):
        words = source[b, : mask[b].sum()]
        for one in hypotheses:
            assert one.alignments.shape == (len(one.tokens), len(words))
            total = 0.0
            for j, token in enumerate(one.tokens):
                log_f, log_p, log_probs = explicit(model, words, one.tokens[:j], k=k_max)
                total += log_probs[token].item()
                posterior = log_p.exp() * log_f[:, token].exp() / log_probs[token].exp()
                torch.testing.assert_close(one.alignments[j], posterior)
            assert one.log_prob == pytest.approx(total, rel=1e-10)
            torch.testing.assert_close(one.alignments.sum(1), torch.ones(len(one.tokens), dtype=torch.float64))


@pytest.mark.parametrize("seed", range(4))
def test_a_search_by_the_most_probable_alignments(seed):
    """By as many as there are it is exact; by half of them its sentences are about as likely."""
    model, (source, mask) = make(seed, end_bias=-1.0), batch((9, 8, 9), more=2)
    options = {**IDS, "beam": 4, "max_length": 6, "length_penalty": 0.0, "alignments": False}
    exact = beam_search(model, source, mask, **options)
    found = beam_search(model, source, mask, inference=Inference(terms=9), **options)
    assert scores_of(found) == approx(scores_of(exact))
    for b, ((best,), (found,)) in enumerate(
        zip(exact, beam_search(model, source, mask, inference=Inference(terms=5), **options), strict=True)
    ):
        words = torch.tensor([[BEGIN, *found.tokens]])
        arguments = source[b : b + 1], mask[b : b + 1], words[:, :-1], words[:, 1:]
        likelihood = target_log_probs(model.eval(), *arguments, torch.ones_like(words[:, 1:]).bool()).sum()
        assert likelihood > best.log_prob - 0.1


def test_soft_attention_and_bayesian_attention_at_its_mean_agree():
    model, other, (source, mask) = make(), make(**BAYESIAN), batch()
    other.load_state_dict(model.state_dict(), strict=False)
    options = {**IDS, "beam": 3, "max_length": 5}
    first = beam_search(model, source, mask, inference=Inference(family=Soft()), **options)
    network = Amortised(nn.Linear(1, 1), Gamma())
    for family in (None, Soft(), Weibull(), network):
        found = beam_search(other, source, mask, inference=Inference(family=family), **options)
        assert scores_of(found) == approx(scores_of(first))
    again = beam_search(other, source, mask, inference=Inference(family=Soft(), samples=2), **options)
    assert scores_of(again) == approx(scores_of(first))
    # the row of one hypothesis: attention weights before the first word
    state = model.eval().start(model.encode(source, mask), mask)
    scores = model.step(state, model.embed(torch.full((3,), BEGIN))).scores
    torch.testing.assert_close(first[1][0].alignments[0], scores[1].softmax(0))


@pytest.mark.parametrize("k_max", [None, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_takes_the_most_probable_word(k_max, seed):
    model, (source, mask) = make(seed), batch()
    options = {"beam": 1, "length_penalty": 0.0, "max_length": 6, "inference": Inference(k_max=k_max)}
    for row, (one,) in enumerate(beam_search(model, source, mask, **IDS, **options)):
        path, total = (), 0.0
        while len(path) < 6 and END not in path:
            log_prob, word = explicit(model, source[row, : mask[row].sum()], path, k=k_max)[2].max(0)
            path, total = (*path, word.item()), total + log_prob.item()
        assert (one.tokens, one.finished) == (path, path[-1] == END)
        assert one.score == one.log_prob == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("beam", [10, 1])
def test_batches_and_padding_change_nothing(beam):
    model, (source, mask) = make(1), batch()
    options = {**IDS, "beam": beam, "max_length": 7}
    together = beam_search(model, source, mask, **options)
    padded = beam_search(model, *batch(more=4), **options)
    single = [
        beam_search(model, source[b : b + 1, :n], mask[b : b + 1, :n], **options)[0]
        for b, n in ((0, 3), (1, 5), (2, 1))
    ]
    for others in (padded, single):
        for one, other in zip(itertools.chain(*together), itertools.chain(*others), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, rel=1e-10)
            torch.testing.assert_close(one.alignments, other.alignments)


def test_ties_go_to_the_first():
    model, (source, mask) = make(), batch((2,))
    for parameter in model.output.parameters():
        nn.init.zeros_(parameter)  # all words are equally probable
    options = {"beam": 6, "keep": 3, "max_length": 3, "length_penalty": 0.0}
    found = beam_search(model, source, mask, **IDS, **options, inference=Inference(family=Soft()))
    assert [one.tokens for one in found[0]] == [(1,), (0, 1), (2, 1)]
    values = torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0], [-math.inf, 0.0, -math.inf, 0.0, 1.0]])
    assert largest(values, 3)[1].tolist() == [[0, 2, 1], [4, 1, 3]]
    assert largest(values, 5)[1].tolist() == [[0, 2, 1, 3, 4], [4, 1, 3, 0, 2]]


@pytest.mark.cuda
def test_a_gpu_finds_the_same():
    model, (source, mask) = make(), batch()
    options = {**IDS, "beam": 4, "keep": 2, "max_length": 6}
    first = beam_search(model, source, mask, **options)
    model, source, mask = model.cuda(), source.cuda(), mask.cuda()
    second = beam_search(model, source, mask, **options)
    assert scores_of(first) == approx(scores_of(second))
    assert second[0][0].alignments.is_cuda
    assert sample(model, source, mask, **IDS, seed=0) == sample(model, source, mask, **IDS, seed=0)
