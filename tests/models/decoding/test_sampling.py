"""Sentences that are drawn, and what stops them."""

import math

import pytest
import torch

from models.decoding import beam_search, sample
from tests.models.decoding.small_translation import END, IDS, TARGET, batch, explicit, make


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_of_samples(temperature):
    model, (source, mask) = make(std=0.7), batch((3,))
    count, first, second = 4000, torch.zeros(TARGET), torch.zeros(TARGET)
    options = {**IDS, "temperature": temperature, "max_length": 2, "alignments": False}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    draws = sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert draws == sample(model, source.expand(count, -1), mask.expand(count, -1), seed=3, **options)
    for one in draws:
        first[one.tokens[0]] += 1
        if one.tokens[0] == 2:
            second[one.tokens[1]] += 1
    for seen, prefix in ((first, ()), (second, (2,))):
        log_probs = explicit(model, source[0], prefix)[2]
        p, n = (log_probs / temperature).softmax(0), seen.sum()
        assert n > 100
        assert ((seen / n - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all()
    one = next(one for one in draws if len(one.tokens) == 2)
    total = sum(explicit(model, source[0], one.tokens[:j])[2][one.tokens[j]].item() for j in range(2))
    assert one.log_prob == pytest.approx(total, rel=1e-10)


def test_cut_at_the_largest_length():
    model, (source, mask) = make(end_bias=-50.0), batch()
    cut = [best for best, *_ in beam_search(model, source, mask, **IDS, beam=1, max_length=3)]
    for one in (*cut, *sample(model, source, mask, **IDS, max_length=3)):
        assert not one.finished
        assert one.words == one.tokens
        assert len(one.tokens) == 3
    # finished ones come first, although the others score better
    for first, *others in beam_search(model, source, mask, **IDS, beam=16, keep=2, max_length=1):
        assert first.finished
        assert (first.tokens, first.words) == ((END,), ())
        assert not others[0].finished
        assert others[0].score > first.score


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_bad_temperature(temperature):
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive finite number"):
        sample(make(), *batch(), **IDS, temperature=temperature)
