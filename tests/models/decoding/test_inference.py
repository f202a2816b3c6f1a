"""What decoding refuses, and what it leaves as it was."""

import math

import pytest
import torch
from torch import nn

from models.decoding import Inference, beam_search, sample
from pyro_attention import Amortised, Categorical, Gamma, Weibull
from tests.models.decoding.small_translation import BAYESIAN, IDS, batch, make, scores_of


def test_every_module_keeps_its_mode_and_nothing_needs_a_gradient():
    model, (source, mask) = make(), batch()
    model.encoder.eval()
    first = beam_search(model, source, mask, **IDS, max_length=4)
    assert model.training
    assert not model.encoder.training
    assert not first[0][0].alignments.requires_grad
    assert scores_of(first) == scores_of(beam_search(model, source, mask, **IDS, max_length=4))
    with pytest.raises(ValueError, match=r"sentences \[0\] of the batch have no words"):
        beam_search(model, source[:1], torch.zeros_like(mask[:1]), **IDS)
    assert model.training
    assert sample(model, source, mask, **IDS, alignments=False)[0].alignments is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 0}, "beam is 0, expected an integer of at least 1"),
        ({"max_length": 0}, "max_length is 0, expected an integer of at least 1"),
        ({"keep": 11}, "keep is 11, expected at most the 10 hypotheses"),
        ({"begin": 4}, r"begin is 4, expected an id in 0 \.\. 3"),
        ({"end": -1}, r"end is -1, expected an id in 0 \.\. 3"),
        ({"length_penalty": -1.0}, "length_penalty is -1.0, expected a number of at least 0"),
        ({"no_repeat": 0}, "no_repeat is 0, expected a number of tokens of at least 1"),
        ({"inference": Inference(samples=2)}, "samples is 2, expected 0: the sum over alignments is exact"),
        ({"inference": Inference(family=Weibull())}, "kind 'positive weights', which does not fit the model's prior"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        beam_search(make(), *batch(), **{**IDS, **changes})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k_max": 0}, ValueError, "k_max is 0, expected an integer of at least 1"),
        ({"terms": 0}, ValueError, "terms is 0, expected an integer of at least 1, or None for all alignments"),
        ({"samples": -1}, ValueError, "samples is -1, expected an integer of at least 0"),
        ({"family": "soft"}, TypeError, "family is 'soft', expected a Family"),
    ],
)
def test_bad_inference(options, error, message):
    with pytest.raises(error, match=message):
        Inference(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source, mask: (source, mask[:, 1:]), r"source_mask has shape \(3, 4\) and dtype torch.bool, expected"),
        (lambda source, mask: (source, mask.flip(1)), "source_mask has words behind padding"),
        (lambda source, mask: (source[0], mask[0]), r"source has shape \(5,\)"),
    ],
    ids=["shape", "padding", "no batch"],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        sample(make(), *change(*batch()), **IDS)


@pytest.mark.parametrize(
    ("inference", "message"),
    [
        (Inference(family=Categorical()), "which does not fit the model's prior ContextualGammaPrior"),
        (Inference(samples=2), "expected a family to draw from"),
        (Inference(family=Amortised(nn.Linear(1, 1), Gamma()), samples=2), "expected a family to draw from"),
    ],
    ids=["kind", "none", "amortised"],
)
def test_bad_inference_of_bayesian_attention(inference, message):
    with pytest.raises(ValueError, match=message):
        sample(make(**BAYESIAN), *batch(), inference=inference, **IDS)


@pytest.mark.parametrize("search", [beam_search, sample])
def test_nan_is_named(search):
    model = make()
    model.output.bias.data[2] = math.nan
    with pytest.raises(ValueError, match="log probabilities of 3 sentences are NaN"):
        search(model, *batch(), **IDS)
