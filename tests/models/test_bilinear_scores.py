"""Translation whose attention scores are bilinear: the scores by hand, and the sum over alignments."""

import pyro
import pytest
import torch

from models.decoding import target_log_probs
from models.nmt import Translation, TranslationSizes
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal

SIZES = TranslationSizes(embedding=6, memory=8, decoder=10, attention=7)


def make():
    pyro.set_rng_seed(0)
    return Translation(9, 11, sizes=SIZES, scores="bilinear", dropout=0.0).double()


def batch():
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(9, (2, 5), generator=generator), torch.randint(11, (2, 4), generator=generator)
    source_mask = torch.ones(2, 5, dtype=torch.bool)
    source_mask[1, 3:] = False
    return source, source_mask, target, target.flip(1), torch.ones(2, 4, dtype=torch.bool)


def test_the_scores_are_bilinear_in_query_and_memory():
    model, (source, mask, target, *_) = make(), batch()
    memory = model.encode(source, mask)
    step = next(iter(model.steps(model.start(memory, mask), target)))
    weight = model.score.projection.weight  # [memory, decoder]
    expected = torch.einsum("bd,md,bnm->bn", step.queries, weight, memory)
    torch.testing.assert_close(model.scores(step.state, step.queries), expected)
    log_prior = expected.masked_fill(~mask, -torch.inf).log_softmax(-1)
    torch.testing.assert_close(step.log_prior.where(mask, 0), log_prior.where(mask, 0))


def test_the_loss_is_the_sum_over_alignments():
    model, arguments = make(), batch()
    loss = AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)
    assert loss == pytest.approx(-target_log_probs(model, *arguments).sum().item(), rel=1e-9)
    assert "out" not in dict(model.score.named_children())
