"""The translation model fed with the context of drawn weights: against brute force over every joint alignment."""

import itertools

import pyro
import pytest
import torch
from pyro.poutine.messenger import Messenger

from models.decoding import beam_search
from models.nmt import Translation
from pyro_attention import (
    AlignmentELBO,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    Gamma,
    ImportanceELBO,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    Weibull,
    sample_posterior,
)
from tests.helpers import assert_mean
from tests.models.test_nmt import SIZES, batch, make, network

LENGTHS = ((3, 2), (2, 1))  # source and target words of two sentences: 3 * 3 * 2 joint alignments


def sampled(**options):
    return make(input_feed="sampled", **options)


def guide(model):
    return AttentionGuide(model, {"alignment*": Categorical(enumerate=False)})


class Forced(Messenger):
    """Sets the alignments ``[sentences, words]`` that are not set yet; stands outside the guide."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def _pyro_sample(self, msg):
        if msg["name"].startswith("alignment_") and msg["value"] is None:
            msg["value"] = self.draws[:, int(msg["name"].removeprefix("alignment_")), None]


def joint_alignments(words=2):
    """Every joint alignment of the sentences of LENGTHS; that of a padded word is 0."""
    for a, b, c in itertools.product(range(3), range(3), range(2)):
        draws = torch.zeros(2, words, dtype=torch.long)
        draws[0, 0], draws[0, 1], draws[1, 0] = a, b, c
        yield draws


def explicit(model, draws, source, source_mask, target_in, target_out, target_mask):
    """log p(z) and log f(y | z) of joint alignments, one sentence and one word at a time."""
    log_p = log_f = 0.0
    for b in range(len(source)):
        memory = model.encoder(model.source_embedding(source[b : b + 1, : source_mask[b].sum()]))[0]
        states = [(torch.zeros(1, SIZES.decoder, dtype=torch.float64),) * 2 for _ in model.decoder]
        context = torch.zeros(1, SIZES.memory, dtype=torch.float64)
        for j in range(int(target_mask[b].sum())):
            below = torch.cat([model.target_embedding(target_in[b : b + 1, j]), context], -1)
            for level, cell in enumerate(model.decoder):
                states[level] = cell(below, states[level])
                below = states[level][0]
            log_p = log_p + model.score(below[:, None], memory)[0, 0].log_softmax(-1)[draws[b, j]]
            context = memory[:, draws[b, j]]
            features = (model.from_query(below) + model.from_context(context)).tanh()
            log_f = log_f + model.output(features).log_softmax(-1)[0, target_out[b, j]]
    return log_p, log_f


def all_joints(model, arguments):
    """log p(z) and log f(y | z) of every joint alignment."""
    pairs = [explicit(model, draws, *arguments) for draws in joint_alignments()]
    return tuple(torch.stack(column) for column in zip(*pairs, strict=True))


def gradient(loss, model):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([entry.flatten() for entry in found])


def assert_same(model, loss, other, other_loss):
    torch.testing.assert_close(loss, other_loss, rtol=1e-10, atol=0)
    wanted = gradient(other_loss, other)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(gradient(loss, model), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("family", "prior"), [(Soft(), None), (Soft(), ContextualGammaPrior)])
def test_soft_attention_is_the_same_under_both_feeds(family, prior):
    prior = None if prior is None else prior(SIZES.memory)
    model, other, arguments = make(prior=prior), sampled(prior=prior), batch()
    other.load_state_dict(model.state_dict())
    losses = [AttentionELBO().differentiable_loss(m, AttentionGuide(m, family), *arguments) for m in (model, other)]
    assert_same(model, losses[0], other, losses[1])


def test_without_noise_weibull_is_soft_attention():
    model, arguments = sampled(prior=ContextualGammaPrior(SIZES.memory)), batch()
    soft, sharp, wide = (
        AttentionELBO(kl_weight=0).loss(model, AttentionGuide(model, family), *arguments)
        for family in (Soft(), Weibull(1e6), Weibull(1.0))
    )
    assert sharp == pytest.approx(soft, rel=1e-5)
    assert abs(wide - soft) > 1e-3


@pytest.mark.parametrize("draws", list(joint_alignments()), ids=lambda draws: str(draws.flatten().tolist()))
def test_log_probabilities_of_given_alignments(draws):
    model, arguments = sampled(), batch(LENGTHS)
    with Forced(draws):
        trace = pyro.poutine.trace(model).get_trace(*arguments)
    trace.compute_log_prob()
    log_p, log_f = explicit(model, draws, *arguments)
    sites = [trace.nodes[f"alignment_{step}"]["log_prob_sum"] for step in range(2)]
    torch.testing.assert_close(sum(sites), log_p)
    torch.testing.assert_close(trace.nodes["target"]["log_prob_sum"], log_f)


def test_log_evidence():
    model, arguments = sampled(), batch(LENGTHS)
    log_p, log_f = all_joints(model, arguments)
    torch.testing.assert_close(log_p.logsumexp(0).exp().item(), 1.0)
    evidence = (log_p + log_f).logsumexp(0)
    # by draws from the prior
    elbo, drawn = ScoreFunctionELBO(), guide(model)
    values = torch.tensor([-elbo.loss(model, drawn, *arguments) for _ in range(200)], dtype=torch.float64)
    assert_mean(values.exp(), evidence.exp())
    assert_mean(values, (log_p.exp() * log_f).sum())
    assert values.mean() < evidence


def test_one_word_has_the_evidence_of_the_expected_feed():
    """Nothing is fed to a second word."""
    model, other, arguments = sampled(), make(), batch(((3, 1),))
    other.load_state_dict(model.state_dict())
    evidence = -AlignmentELBO(max_plate_nesting=2).loss(other, AttentionGuide(other, Marginal()), *arguments)
    joint = [sum(explicit(model, torch.tensor([[key]]), *arguments)) for key in range(3)]
    assert torch.stack(joint).logsumexp(0).item() == pytest.approx(evidence, rel=1e-10)


@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_the_score_function_is_unbiased_over_every_joint_alignment(baseline):
    """So the reward of an alignment holds the words behind it, too."""
    model, arguments = sampled(), batch(LENGTHS)
    log_p, log_f = all_joints(model, arguments)
    exact = -(log_p.exp() * log_f).sum()
    elbo, total = ScoreFunctionELBO(baseline=baseline), 0.0
    for draws, probability in zip(joint_alignments(), log_p.detach().exp(), strict=True):
        with Forced(draws):
            total = total + probability * elbo.differentiable_loss(model, guide(model), *arguments)
    assert_same(model, total, model, exact)


@pytest.mark.parametrize("draws", list(joint_alignments())[5:8], ids=lambda draws: str(draws.tolist()))
def test_padding_changes_nothing_of_given_alignments(draws):
    model, results = sampled(), []
    for more in (0, 3):
        padded = torch.nn.functional.pad(draws, (0, more), value=1)
        with Forced(padded):
            loss = ScoreFunctionELBO().differentiable_loss(model, guide(model), *batch(LENGTHS, more=more))
        results += [model, loss]
    assert_same(*results)


@pytest.mark.parametrize("family", [Soft(), Weibull(1e6)], ids=str)
def test_padding_changes_nothing_of_weights(family):
    model, elbo = sampled(prior=ContextualGammaPrior(SIZES.memory)), AttentionELBO()
    losses = [elbo.loss(model, AttentionGuide(model, family), *batch(LENGTHS, more=more)) for more in (0, 3)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_padded_words_have_no_kl():
    model, elbo = sampled(prior=ContextualGammaPrior(SIZES.memory)), AttentionELBO()
    source, source_mask, target_in, target_out, target_mask = batch(LENGTHS)
    longer = [torch.cat([ids, ids], 1) for ids in (target_in, target_out)]
    mask = torch.nn.functional.pad(target_mask, (0, 2))
    losses = []
    for target in ((target_in, target_out, target_mask), (*longer, mask)):
        torch.manual_seed(0)  # the noise of real words comes first
        losses.append(elbo.loss(model, AttentionGuide(model, Weibull(2.0)), source, source_mask, *target))
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert elbo.kl_record["alignment_1"] > 0
    assert elbo.kl_record["alignment_2"] == elbo.kl_record["alignment_3"] == 0


@pytest.mark.parametrize(
    ("family", "elbo", "prior"),
    [
        (Categorical(enumerate=False), ScoreFunctionELBO(), None),
        (Soft(), AttentionELBO(), None),
        (Weibull(), AttentionELBO(kl_weight=0.1), ContextualGammaPrior),
        (Gamma(), AttentionELBO(kl_weight=0.1), ContextualGammaPrior),
        (LogNormal(), AttentionELBO(kl_weight=0.1), ContextualLogNormalPrior),
    ],
    ids=["categorical", "expected", "weibull", "gamma", "lognormal"],  # workers must collect the same names
)
def test_every_family_trains(family, elbo, prior):
    model, arguments = sampled(dropout=0.1, prior=None if prior is None else prior(SIZES.memory)), batch()
    attention = AttentionGuide(model, {"alignment*": family})
    svi = pyro.infer.SVI(model, attention, pyro.optim.Adam({"lr": 0.05}), elbo)
    losses = [svi.step(*arguments) for _ in range(20)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_posterior_samples_have_a_site_for_every_word():
    model, arguments = sampled(), batch()
    samples = sample_posterior(guide(model), *arguments, num_samples=3, seed=0)
    assert sorted(samples) == [f"alignment_{step}" for step in range(4)]
    assert all(weights.shape == (3, 2, 1, 1, 5) for weights in samples.values())


def test_vectorised_particles_have_states_of_their_own():
    model, arguments = sampled(prior=ContextualGammaPrior(SIZES.memory)), batch()

    def loss(family, **options):
        elbo = AttentionELBO(kl_weight=0, max_plate_nesting=2, **options)
        return elbo.loss(model, AttentionGuide(model, {"alignment*": family}), *arguments)

    sharp = loss(Weibull(1e6), num_particles=3, vectorize_particles=True)
    assert sharp == pytest.approx(loss(Soft()), rel=1e-5)
    single = torch.tensor([loss(Weibull(1.0)) for _ in range(100)])
    assert_mean(single, loss(Weibull(1.0), num_particles=2000, vectorize_particles=True))


@pytest.mark.parametrize("make_model", [make, sampled])
def test_all_words_count_without_a_mask(make_model):
    model, (*arguments, mask) = make_model(), batch()
    given, omitted = (
        AttentionELBO().loss(model, AttentionGuide(model, Soft()), *arguments, *more)
        for more in ([torch.ones_like(mask)], [])
    )
    assert omitted == given


def test_decoding_feeds_the_expected_context():
    model, other, (source, source_mask, *_) = make(), sampled(), batch()
    other.load_state_dict(model.state_dict())
    found = [beam_search(m, source, source_mask, begin=1, end=2, beam=3, max_length=5) for m in (model, other)]
    assert found[0] == found[1]


# bad input


@pytest.mark.parametrize("family", [Categorical(), Marginal()], ids=str)
@pytest.mark.parametrize("nesting", [2, float("inf")])
def test_alignments_cannot_be_summed_out(family, nesting):
    model = sampled()
    with pytest.raises(ValueError, match=r"'alignment_0' has 5 values at once, expected one.*input_feed='expected'"):
        AlignmentELBO(max_plate_nesting=nesting).loss(model, AttentionGuide(model, family), *batch())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, *_: Translation(5, 5, input_feed="soft"), "input_feed is 'soft', expected one of expected, sam"),
        (lambda model, *arguments: ImportanceELBO(3, max_plate_nesting=2).loss(model, guide(model), *arguments),
         r"the model has 4 latent sites .* expected one alignment"),
        (lambda model, *arguments: ScoreFunctionELBO().loss(
            model, AttentionGuide(model, Amortised(network(model), Categorical(enumerate=False))), *arguments),
         r"shape \(2, 4, 1, 5\), expected the layer's \(2, 1, 1, 5\); .* must be one site of the model"),
    ],
    ids=["feed", "objective", "network"],
)  # fmt: skip
def test_other_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(sampled(), *batch())
