"""Attention normalized over the words before: the closed form, searches, and nothing from later words."""

import pytest
import torch
from torch import nn

from models.decoding import beam_search, target_alignments, target_log_probs
from models.nmt import Translation, TranslationSizes
from models.temporal import TemporalNormalizer
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal

SIZES = TranslationSizes(embedding=3, memory=4, decoder=5, attention=4)


def make(share):
    torch.manual_seed(0)
    model = Translation(6, 5, sizes=SIZES, dropout=0.0, normalizer=TemporalNormalizer(share)).double().eval()
    for name, parameter in model.named_parameters():
        if not name.startswith("normalizer"):
            nn.init.normal_(parameter)
    model.output.bias.data[1] -= 3.0  # sentences long enough for hypotheses to change places
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


@pytest.mark.parametrize("share", [None, 0.3])
def test_temporal(share):
    scores, mask = 3 * torch.randn(5, 2, 4, dtype=torch.float64), torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]]).bool()
    normalizer, before, share = TemporalNormalizer(share).double(), None, 1 if share is None else share
    for i in range(len(scores)):
        found, before = normalizer(scores[i], before, mask)
        exponentials = scores.exp() * mask
        plain = exponentials[i] / exponentials[i].sum(-1, keepdim=True)
        past = exponentials[i] / exponentials[:i].sum(0).where(mask, 1) if i else plain
        expected = share * past / past.sum(-1, keepdim=True) + (1 - share) * plain
        torch.testing.assert_close(found.masked_fill(~mask, -torch.inf).softmax(-1), expected)


@pytest.mark.parametrize("share", [None, 0.3])
def test_beam_search_scores_as_teacher_forcing(share):
    """One sentence at a time, without padding; and the evidence is the sum over words."""
    model, (source, mask, *target) = make(share), batch()
    total = target_log_probs(model, source, mask, *target).sum().item()
    evidence = -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), source, mask, *target)
    assert evidence == pytest.approx(total, rel=1e-9)
    found = beam_search(model, source, mask, begin=0, end=1, beam=3, keep=2, max_length=5, length_penalty=0.0)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            said, sides = torch.tensor([one.tokens]), (source[row : row + 1, mask[row]], mask[row : row + 1, mask[row]])
            words = torch.cat([torch.zeros(1, 1, dtype=torch.int64), said[:, :-1]], 1)
            log_probs = target_log_probs(model, *sides, words, said, torch.ones_like(said, dtype=torch.bool))
            assert log_probs.sum().item() == pytest.approx(one.score, rel=1e-9)
            state = model.start(model.encode(*sides), sides[1])
            torch.testing.assert_close(one.alignments, target_alignments(model, state, words, said)[0])


def test_no_word_depends_on_later_ones():
    model, (source, mask, words, target, real) = make(0.3), batch()
    before = target_log_probs(model, source, mask, words, target, real)
    changed = torch.cat([words[:, :3], 4 - words[:, 3:]], 1)
    after = target_log_probs(model, source, mask, changed, target, real)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:1, 3], after[:1, 3])
