"""Attention normalised over the words before: closed form, no look ahead, decoding, and every kind of guide."""

import math

import pytest
import torch
from torch import nn

from models.decoding import Inference, beam_search
from models.decoding.next_word import target_log_probs
from models.nmt import Translation, TranslationSizes
from models.temporal import TemporalNormalizer
from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Marginal,
    Soft,
    Weibull,
)

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4)


def make(share=None, **options):
    torch.manual_seed(0)
    model = Translation(6, 5, sizes=SIZES, dropout=0.0, normalizer=TemporalNormalizer(share), **options).double()
    for name, parameter in model.named_parameters():
        if not name.startswith("normalizer"):
            nn.init.normal_(parameter)
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(6, (3, 4), generator=generator)
    target = torch.randint(2, 5, (3, 6), generator=generator)
    source_mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    words = torch.cat([torch.zeros(3, 1, dtype=torch.int64), target[:, :-1]], 1)
    return source, source_mask, words, target, torch.ones(3, 6, dtype=torch.bool)


@pytest.mark.parametrize("share", [None, 0.3])
def test_closed_form(share):
    scores, mask = 3 * torch.randn(5, 2, 4, dtype=torch.float64), torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]]).bool()
    normalizer, seen, share = TemporalNormalizer(share).double(), None, 1 if share is None else share
    for i in range(len(scores)):
        found, seen = normalizer(scores[i], seen, mask)
        exponentials = scores.exp() * mask
        plain = exponentials[i] / exponentials[i].sum(-1, keepdim=True)
        past = exponentials[i] / exponentials[:i].sum(0).where(mask, 1) if i else plain
        expected = share * past / past.sum(-1, keepdim=True) + (1 - share) * plain
        torch.testing.assert_close(found.masked_fill(~mask, -torch.inf).softmax(-1), expected)


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_a_common_shift_of_a_query_changes_nothing(shift):
    """Softmax does not see it, and what comes later only as a factor of a key that all words before share."""
    scores = torch.randn(2, 1, 3)
    mask, normalizer = torch.ones(1, 3, dtype=torch.bool), TemporalNormalizer()
    _, seen = normalizer(scores[0], None, mask)
    weights = normalizer(scores[1] + shift, seen, mask)[0].softmax(-1)
    torch.testing.assert_close(weights, (scores[1] - scores[0]).softmax(-1))


@pytest.mark.parametrize("share", [None, 0.3])
def test_no_word_depends_on_later_ones(share):
    model, (source, mask, words, target, real) = make(share), batch()
    before = target_log_probs(model, source, mask, words, target, real, inference=Inference(family=Soft()))
    words[:, 4:], target[:, 3:] = 4, 4
    after = target_log_probs(model, source, mask, words, target, real, inference=Inference(family=Soft()))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("share", [None, 0.3])
def test_padding_changes_nothing(share):
    model, (source, mask, words, target, real) = make(share), batch()
    together = target_log_probs(model, source, mask, words, target, real, inference=Inference(family=Marginal()))
    for row, length in enumerate(mask.sum(1).tolist()):
        one = slice(row, row + 1)
        pair = source[one, :length], mask[one, :length], words[one], target[one], real[one]
        torch.testing.assert_close(
            target_log_probs(model, *pair, inference=Inference(family=Marginal())), together[one]
        )


@pytest.mark.parametrize("family", [Soft(), Marginal()])
def test_beam_search_keeps_what_its_hypotheses_have_seen(family):
    """The log probability of every hypothesis is that of its words, one sentence at a time."""
    model, (source, mask, *_) = make(0.3), batch()
    inference = Inference(family=family)
    options = {"begin": 0, "end": 1, "beam": 4, "max_length": 5}
    for row, found in enumerate(beam_search(model, source, mask, inference=inference, **options)):
        for hypothesis in found:
            target = torch.tensor([hypothesis.tokens])
            words = torch.cat([torch.zeros(1, 1, dtype=torch.int64), target[:, :-1]], 1)
            pair = source[row : row + 1], mask[row : row + 1], words, target, torch.ones_like(target).bool()
            expected = target_log_probs(model, *pair, inference=inference).sum().item()
            assert hypothesis.log_prob == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("family", "elbo", "options"),
    [
        (Soft(), AttentionELBO(), {}),
        (Marginal(), AlignmentELBO(max_plate_nesting=2), {}),
        (Weibull(), AttentionELBO(), {"prior": ContextualGammaPrior(4)}),
        (Weibull(), AttentionELBO(), {"prior": ContextualGammaPrior(4), "input_feed": "sampled"}),
    ],
)
def test_the_share_is_trained_under_every_guide(family, elbo, options):
    model = make(0.1, **options)
    loss = elbo(model, AttentionGuide(model, family))(*batch())
    loss.backward()
    assert math.isfinite(loss.item())
    assert model.normalizer.logit.grad.abs() > 0


def test_initial_weights_do_not_touch_the_share():
    assert make(0.1, init_range=0.1).normalizer.mixing_weight == pytest.approx(0.1)
    assert TemporalNormalizer().mixing_weight == 1
    assert "0.25" in repr(TemporalNormalizer(0.25))


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_bad_share(share):
    with pytest.raises(ValueError, match=f"share is {share}, expected a number between 0 and 1"):
        TemporalNormalizer(share)
