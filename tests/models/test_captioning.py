"""The captioning model: exact sums against explicit ones, sets of regions, padding, every scheme, and decoding."""

import pyro
import pytest
import torch
from torch import nn

from guides.inference_network import RegionNetwork
from guides.schemes import build_scheme
from models.captioning import Captioning
from models.decoder import DecoderSizes
from models.decoding import beam_search, sample, target_log_probs
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal

SIZES = DecoderSizes(embedding=6, memory=8, decoder=10, attention=7)
FEATURES, VOCABULARY = 5, 11


def make(dropout=0.0, **options):
    model = Captioning(FEATURES, VOCABULARY, sizes=SIZES, dropout=dropout, **options).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def batch(regions=(5, 3), words=(4, 2), *, more=0):
    """Random images and captions of these sizes, with as much additional padding as asked for."""
    generator = torch.Generator().manual_seed(0)
    most, longest = max(regions) + more, max(words) + more
    source = torch.full((len(regions), most, FEATURES), 7.0, dtype=torch.float64)
    target_in, target_out = (torch.full((len(words), longest), 7) for _ in range(2))
    for row, (count, length) in enumerate(zip(regions, words, strict=True)):
        source[row, :count] = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
        target_in[row, :length] = torch.randint(VOCABULARY, (length,), generator=generator)
        target_out[row, :length] = torch.randint(VOCABULARY, (length,), generator=generator)
    source_mask = torch.arange(most) < torch.tensor(regions)[:, None]
    target_mask = torch.arange(longest) < torch.tensor(words)[:, None]
    return source, source_mask, target_in, target_out, target_mask


def evidence(model, arguments):
    return -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)


def cell(model, word, region, hidden, cell):
    """The cell, gate by gate."""
    parts = (model.from_word(word) + model.from_state(hidden)).chunk(5, -1)
    enter, forget, leave = (part.sigmoid() for part in parts[:3])
    contexts = (model.from_context.weight @ region).chunk(2)
    inside = torch.stack([parts[3] + contexts[0], parts[4] + contexts[1]]).amax(0)
    cell = forget * cell + enter * inside
    return leave * cell.tanh(), cell


def explicit_evidence(model, source, source_mask, target_in, target_out, target_mask):
    """One image at a time, one word at a time, one region at a time."""
    total = 0.0
    for b in range(len(source)):
        memory = model.region(source[b, : source_mask[b].sum()])
        state = (torch.zeros(1, SIZES.decoder, dtype=torch.float64),) * 2
        for j in range(int(target_mask[b].sum())):
            word = model.embedding(target_in[b : b + 1, j])
            p = model.score(torch.cat([state[0], word], -1)[:, None], memory[None])[0, 0].softmax(-1)
            log_f = []
            for region in memory:
                hidden, _ = cell(model, word, region, *state)
                log_f.append(model.output(hidden).log_softmax(-1)[0, target_out[b, j]])
            total = total + (p.log() + torch.stack(log_f)).logsumexp(0)
            # the state goes on with the expected region
            state = cell(model, word, p @ memory, *state)
    return total.item()


@pytest.mark.parametrize("more", [0, 2])
def test_the_marginal_is_the_explicit_sum(more):
    model, arguments = make(), batch(more=more)
    expected = explicit_evidence(model, *arguments)
    assert evidence(model, arguments) == pytest.approx(expected, rel=1e-10)
    assert target_log_probs(model, *arguments).sum().item() == pytest.approx(expected, rel=1e-10)


def schemes(model, name):
    scheme = build_scheme(name, particles=2, kl_weight=0.1)
    network = RegionNetwork(FEATURES, model.embedding, hidden=8, dropout=0.0).double() if scheme.amortized else None
    return scheme, scheme.guide(model, network)


def test_permuting_the_regions_permutes_attention_and_changes_nothing_else():
    """And decoding scores as teacher forcing."""
    model, (source, source_mask, *target) = make(), batch(regions=(5, 5))
    model.eval()
    order, options = torch.tensor([3, 0, 4, 1, 2]), {"begin": 1, "end": 2, "max_length": 6}
    images = source, source[:, order]
    first, second = (beam_search(model, image, source_mask, beam=3, **options) for image in images)
    for row, ((one,), (other,)) in enumerate(zip(first, second, strict=True)):
        assert other.tokens == one.tokens
        assert other.log_prob == pytest.approx(one.log_prob, rel=1e-9)
        torch.testing.assert_close(other.alignments, one.alignments[:, order])
        tokens, image = torch.tensor([[1, *one.tokens]]), (source[row : row + 1], source_mask[row : row + 1])
        real = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
        log_prob = target_log_probs(model, *image, tokens[:, :-1], tokens[:, 1:], real).sum().item()
        assert one.log_prob == pytest.approx(log_prob, rel=1e-9)
    torch.testing.assert_close(*(target_log_probs(model, image, source_mask, *target) for image in images))
    drawn = [sample(model, source, source_mask, seed=0, **options) for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", ["soft", "gaussian", "hard_sample", "gumbel", "wake_sleep", "dirichlet"])
def test_schemes_train(name):
    torch.manual_seed(0)
    model = make(dropout=0.1, prior=build_scheme(name).prior(SIZES.memory, 1))
    scheme, guide = schemes(model, name)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), scheme.objective())
    losses = [svi.step(*batch()) for _ in range(10)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
