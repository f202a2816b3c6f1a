"""The next word: against explicit sums, one sentence, one word and one alignment at a time."""

import math
from functools import partial

import pytest
import torch

from models.decoding import Inference, next_word_log_probs, next_word_mixture
from models.decoding.next_word import word_alignment
from pyro_attention import LogNormal, Marginal, Soft, SparseAlignmentPrior
from pyro_attention.ops.sparsemax import sparsemax
from tests.models.decoding.small_translation import BAYESIAN, BEGIN, batch, explicit, make


@pytest.mark.parametrize("k_max", [None, 1, 2, 5, 9])
@pytest.mark.parametrize("soft", [False, True])
def test_next_words_are_the_explicit_sum(k_max, soft):
    model, (source, mask), prefix = make().eval(), batch(), (2, 3, 0)
    state = model.start(model.encode(source, mask), mask)
    for word in (BEGIN, *prefix):
        ids = torch.full((3,), word)
        step = model.step(state, model.embed(ids), k_max=k_max)
        state = step.state
    inference = Inference(k_max=k_max, family=Soft() if soft else None)
    log_probs = next_word_log_probs(model, step, inference)
    chunked = next_word_log_probs(model, step, inference, chunk_rows=1)
    torch.testing.assert_close(log_probs, chunked)
    for b in range(3):
        words = source[b, : mask[b].sum()]
        expected = explicit(model, words, prefix, k=k_max, soft=soft)[2]
        torch.testing.assert_close(log_probs[b], expected)
        if k_max == 5:  # as many as there are
            torch.testing.assert_close(expected, explicit(model, words, prefix, soft=soft)[2])
        if k_max == 1 and not soft:  # hard attention
            log_f, log_p, _ = explicit(model, words, prefix, k=1)
            torch.testing.assert_close(log_probs[b], log_f[log_p.argmax()])


@pytest.mark.parametrize("terms", [1, 2, 5, 9])
def test_the_most_probable_terms_are_renormalised_and_the_feed_is_that_of_all(terms):
    model, (source, mask), prefix = make().eval(), batch(), (2, 3, 0)
    state = model.start(model.encode(source, mask), mask)
    for word in (BEGIN, *prefix):
        step = model.step(state, model.embed(torch.full((3,), word)))
        state = step.state
    log_probs = next_word_log_probs(model, step, Inference(terms=terms))
    for b in range(3):
        log_f, log_p, exact = explicit(model, source[b, : mask[b].sum()], prefix)
        kept = log_p.argsort(descending=True)[:terms]
        expected = (log_f[kept] + log_p[kept].log_softmax(0)[:, None]).logsumexp(0)
        torch.testing.assert_close(log_probs[b], expected)
        if terms >= len(log_p):
            torch.testing.assert_close(log_probs[b], exact)


@pytest.mark.parametrize("k_max", [None, 1, 3])
@pytest.mark.parametrize("top", [None, 2])
def test_a_sparse_prior_is_summed_over_its_support(top, k_max):
    model, (source, mask), prefix = make(prior=SparseAlignmentPrior(k=top)).eval(), batch(), (2, 3, 0)
    state = model.start(model.encode(source, mask), mask)
    for word in (BEGIN, *prefix):
        step = model.step(state, model.embed(torch.full((3,), word)), k_max=k_max)
        state = step.state
    inference = Inference(k_max=k_max, family=Marginal())
    log_probs = next_word_log_probs(model, step, inference)
    mixture, log_weights = next_word_mixture(model, step, inference)
    rows = word_alignment(model, step, torch.full((3,), 2), inference)
    sizes = []
    for b in range(3):
        words = source[b, : mask[b].sum()]
        log_f, log_p, expected = explicit(model, words, prefix, k=k_max, normalize=partial(sparsemax, k=top))
        torch.testing.assert_close(log_probs[b], expected)
        torch.testing.assert_close(rows[b, : len(words)], (log_p + log_f[:, 2]).softmax(0))
        sizes.append(log_p.isfinite().sum())
    assert mixture.size(1) == log_weights.size(1) == max(sizes)


def test_draws_of_the_weights_are_averaged():
    """The mean probability over draws of a narrow posterior is near that of the mean, of a wide one it is not."""
    model, (source, mask) = make(**BAYESIAN).eval(), batch()
    state = model.start(model.encode(source, mask), mask)
    step = model.step(state, model.embed(torch.full((3,), BEGIN)))
    torch.manual_seed(0)
    family, count = LogNormal(scale=2.0).double(), 4000
    wide = next_word_log_probs(model, step, Inference(family=family, samples=count)).exp()
    # E[S] = exp(score) for every scale
    log_s = step.scores.masked_fill(~mask, -math.inf) - 2.0 + 2.0 * torch.randn(count, 3, 5, dtype=torch.float64)
    contexts = torch.einsum("sbn,bnd->sbd", log_s.softmax(-1), state.memory)
    f = model.likelihood(step.queries, contexts).logits.exp()
    error = (2 * f.var(0) / count).sqrt()
    assert ((wide - f.mean(0)).abs() <= 4 * error + 1e-9).all()
    mean = next_word_log_probs(model, step).exp()
    assert ((wide - mean).abs() > 4 * error)[:2].any()
    narrow = next_word_log_probs(model, step, Inference(family=LogNormal(scale=1e-6).double(), samples=3))
    torch.testing.assert_close(narrow.exp(), mean, rtol=0, atol=1e-5)
    words = torch.zeros(3, dtype=torch.int64)
    rows = word_alignment(model, step, words, Inference(family=family, samples=3, k_max=2))
    torch.testing.assert_close(rows.sum(1), torch.ones(3, dtype=torch.float64))
    assert ((rows > 0) <= mask).all()
