"""Log probabilities of given translations: against those of the next word, and against the log evidence."""

import pytest
import torch

from models.decoding import Inference
from models.decoding.next_word import next_word_log_probs, target_alignments, target_log_probs, word_alignment
from pyro_attention import Dirichlet, DirichletPrior, Soft, Weibull
from pyro_attention.posterior.predictive import seeded
from tests.models.test_nmt import ContextualGammaPrior, batch, evidence, make

MEMORY = 8
CASES = {
    "alignment": (None, None, 0),
    "soft": (ContextualGammaPrior(MEMORY), Soft(), 0),
    "weibull at its mean": (ContextualGammaPrior(MEMORY), Weibull(2.0), 0),
    "weibull": (ContextualGammaPrior(MEMORY), Weibull(2.0), 7),
    "dirichlet": (DirichletPrior(), Dirichlet(), 7),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("k_max", [None, 2])
@pytest.mark.parametrize("words_from", ["both", "context"])
def test_words_one_by_one(case, k_max, words_from):
    prior, family, samples = CASES[case]
    model = make(prior=prior, words_from=words_from).eval()
    source, source_mask, target_in, target_out, target_mask = arguments = batch()
    inference = Inference(k_max=k_max, family=family, samples=samples)
    with seeded(0):
        found = target_log_probs(model, *arguments, inference=inference)
    state = model.start(model.encode(source, source_mask), source_mask)
    with seeded(0):
        for place, word in enumerate(model.embed(target_in).unbind(1)):
            step = model.step(state, word, k_max=k_max)
            state, log_probs = step.state, next_word_log_probs(model, step, inference)
            expected = log_probs.gather(1, target_out[:, place, None]).squeeze(1).where(target_mask[:, place], 0)
            torch.testing.assert_close(found[:, place], expected)


@pytest.mark.parametrize("terms", [None, 2])
@pytest.mark.parametrize("words_from", ["both", "context"])
def test_alignments_one_by_one(terms, words_from):
    model, inference = make(words_from=words_from, null_word=True).eval(), Inference(terms=terms)
    source, source_mask, target_in, target_out, _ = batch()
    state = model.start(model.encode(source, source_mask), source_mask)
    found = target_alignments(model, state, target_in, target_out, inference)
    for place, step in enumerate(model.steps(state, target_in)):
        expected = word_alignment(model, step, target_out[:, place], inference)
        torch.testing.assert_close(found[:, place], expected)


@pytest.mark.parametrize("more", [0, 2])
def test_their_sum_is_the_log_evidence(more):
    model, arguments = make().eval(), batch(more=more)
    total = target_log_probs(model, *arguments).sum().item()
    assert total == pytest.approx(evidence(model, arguments), rel=1e-10)


@pytest.mark.parametrize("case", ["alignment", "soft", "weibull at its mean"])
def test_padding_changes_nothing(case):
    prior, family, _ = CASES[case]
    model, inference = make(prior=prior).eval(), Inference(family=family)
    short, long = (target_log_probs(model, *batch(more=more), inference=inference) for more in (0, 3))
    torch.testing.assert_close(long[:, : short.size(1)], short, rtol=1e-10, atol=0)
    assert long[:, short.size(1) :].count_nonzero() == 0
