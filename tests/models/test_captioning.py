"""The captioning model: exact sums against explicit ones, sets of regions, padding, every scheme, and decoding."""

from typing import get_args

import pyro
import pytest
import torch
from torch import nn

from guides.inference_network import RegionNetwork
from guides.names import AblationSchemeName, SchemeName
from guides.schemes import build_scheme
from models.captioning import Captioning, CaptioningSizes
from models.decoding import Inference, beam_search, sample
from models.decoding.next_word import next_word_log_probs, next_word_mixture, target_log_probs
from pyro_attention import AlignmentELBO, AttentionGuide, ContextualGammaPrior, Marginal, Soft, Weibull
from pyro_attention.posterior.predictive import sample_posterior

SIZES = CaptioningSizes(embedding=6, memory=8, decoder=10, attention=7)
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
    assert evidence(model, arguments) == pytest.approx(explicit_evidence(model, *arguments), rel=1e-10)
    found = target_log_probs(model, *arguments).sum().item()
    assert found == pytest.approx(evidence(model, arguments), rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_batches_and_padding_change_nothing(dtype):
    model, tolerance = make().to(dtype), 1e-5 if dtype == torch.float32 else 1e-10

    def value(arguments):
        return evidence(model, (arguments[0].to(dtype), *arguments[1:]))

    arguments = batch()
    together = value(arguments)
    assert value(batch(more=3)) == pytest.approx(together, rel=tolerance)
    single = [[column[b : b + 1] for column in arguments] for b in range(2)]
    assert sum(value(one) for one in single) == pytest.approx(together, rel=tolerance)


def schemes(model, name):
    scheme = build_scheme(name, particles=2, kl_weight=0.1)
    network = RegionNetwork(FEATURES, model.embedding, hidden=8, dropout=0.0).double() if scheme.amortised else None
    return scheme, scheme.guide(model, network)


@pytest.mark.parametrize("name", ["weibull", "hard_enum", "categorical_enum"])
def test_permuting_the_regions_permutes_attention_and_changes_nothing_else(name):
    model = make(prior=build_scheme(name).prior(SIZES.memory, 1))
    scheme, guide = schemes(model, name)
    source, source_mask, *target = batch(regions=(5, 5))
    order = torch.tensor([3, 0, 4, 1, 2])

    def results(source):
        site = guide.run(source, source_mask, *target).trace.nodes["alignment"]
        weights = [site["infer"]["prior"], site["fn"]] if name != "weibull" else [site["fn"]]
        found = [getattr(part, "mean_weights", None) for part in weights]
        loss = scheme.elbo.loss(model, guide, source, source_mask, *target) if name != "weibull" else 0.0
        captions = beam_search(model.eval(), source, source_mask, begin=1, end=2, beam=3, max_length=6)
        log_probs = target_log_probs(model, source, source_mask, *target, inference=Inference(family=None))
        return found, loss, captions, log_probs

    first, second = results(source), results(source[:, order])
    for before, after in zip(first[0], second[0], strict=True):
        torch.testing.assert_close(after, before[..., order])
    assert second[1] == pytest.approx(first[1], rel=1e-10)
    torch.testing.assert_close(second[3], first[3])
    for before, after in zip(first[2], second[2], strict=True):
        assert after[0].tokens == before[0].tokens
        assert after[0].log_prob == pytest.approx(before[0].log_prob, rel=1e-9)
        torch.testing.assert_close(after[0].alignments, before[0].alignments[:, order])


def test_a_contextual_prior_reads_the_regions_alone():
    model = make(prior=ContextualGammaPrior(SIZES.memory))
    guide = AttentionGuide(model, Weibull())
    source, source_mask, target_in, *target = batch()

    def prior(target_in):
        found = guide.run(source, source_mask, target_in, *target).trace.nodes["alignment"]["infer"]["prior"]
        return found.log_expected_weight.expand(found.full_shape)

    before = prior(target_in)
    torch.testing.assert_close(before[:, :1].expand_as(before), before)  # the same for every word
    assert torch.equal(prior((target_in + 1) % VOCABULARY), before)


def test_a_region_acts_on_its_own_word_only():
    """What comes after a word depends on the words, not on the region that was drawn for it."""
    model = make()
    arguments = batch()
    draws = [sample_posterior(schemes(model, "hard_sample")[1], *arguments, seed=seed) for seed in (0, 1)]
    assert not torch.equal(draws[0]["alignment"], draws[1]["alignment"])
    guide = schemes(model, "hard_sample")[1]
    scores = []
    for _ in range(2):
        site = guide.run(*arguments).trace.nodes["alignment"]
        scores.append(site["infer"]["prior"].mean_weights)
    assert torch.equal(*scores)


@pytest.mark.parametrize("name", get_args(SchemeName) + get_args(AblationSchemeName))
@pytest.mark.parametrize("prior", ["contextual", "fixed"])
def test_every_scheme_trains(name, prior):
    if prior == "fixed" and name not in ("weibull", "lognormal", "gamma", "gaussian"):
        pytest.skip("this scheme has one prior")
    torch.manual_seed(0)
    model = make(dropout=0.1, prior=build_scheme(name, prior=prior).prior(SIZES.memory, 1))
    scheme, guide = schemes(model, name)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), scheme.elbo)
    arguments = batch()
    losses = [svi.step(*arguments) for _ in range(20)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", ["soft", "weibull", "hard_sample"])
def test_a_sampled_feed_goes_on_with_the_drawn_region(name):
    scheme = build_scheme(name)
    model = make(prior=scheme.prior(SIZES.memory, 1), input_feed="sampled")
    guide, arguments = scheme.guide(model), batch()
    assert {site for site in guide(*arguments) if site != "target"} == {f"alignment_{word}" for word in range(4)}
    loss = scheme.elbo.loss(model, guide, *arguments)
    if name == "soft":
        model.input_feed = "expected"
        assert scheme.elbo.loss(model, scheme.guide(model), *arguments) == pytest.approx(loss, rel=1e-10)


def test_decoding():
    model, (source, source_mask, *_) = make(), batch()
    options = {"begin": 1, "end": 2, "max_length": 5}
    best = beam_search(model, source, source_mask, beam=VOCABULARY**2, length_penalty=0.0, **options)
    one = sample(model, source, source_mask, seed=0, **options)
    assert sample(model, source, source_mask, seed=0, **options) == one
    for row, (found, first) in enumerate(zip(best, one, strict=True)):
        assert found[0].log_prob >= first.log_prob - 1e-9
        tokens = torch.tensor([[1, *found[0].tokens]])
        real = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
        image = source[row : row + 1], source_mask[row : row + 1]
        log_prob = target_log_probs(model, *image, tokens[:, :-1], tokens[:, 1:], real).sum().item()
        assert found[0].log_prob == pytest.approx(log_prob, rel=1e-9)
        assert found[0].alignments.shape == (len(found[0].tokens), int(source_mask[row].sum()))


@pytest.mark.parametrize(("family", "samples"), [(None, 0), (Soft(), 0), (Weibull(2.0), 6)])
def test_the_next_word_is_the_mixture_of_its_attentions(family, samples):
    model = make(prior=None if family is None else ContextualGammaPrior(SIZES.memory)).eval()
    source, source_mask, target_in, *_ = batch()
    state = model.start(model.encode(source, source_mask), source_mask)
    step = model.step(state, model.embed(target_in[:, 0]))
    inference = Inference(family=family, samples=samples)
    torch.manual_seed(0)
    log_probs, log_weights = next_word_mixture(model, step, inference)
    torch.manual_seed(0)
    expected = next_word_log_probs(model, step, inference)
    torch.testing.assert_close(log_weights.exp().sum(1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close((log_probs + log_weights.unsqueeze(-1)).logsumexp(1), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, source, mask, *target: evidence(
            model, (source, mask & torch.tensor([[True], [False]]), *target)), r"images \[1\] of the batch have no"),
        (lambda model, source, *rest: evidence(model, (source[..., :4], *rest)),
         "regions have 4 features, expected the model's 5"),
        (lambda model, source, mask, target, *_: sample(model, target, mask, begin=1, end=2), "expected features .B,"),
        (lambda model, source, mask, *_: sample(model, source, mask[:, :4], begin=1, end=2), "shape"),
        (lambda model, *_: RegionNetwork(FEATURES, model.embedding, hidden=7), "hidden is 7, expected an even width"),
        (lambda *_: make(input_feed="soft"), "input_feed is 'soft'"),
    ],
    ids=["no regions", "features", "target", "mask", "hidden", "input feed"],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(make(), *batch())
