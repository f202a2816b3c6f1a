"""The translation model: exact sums against explicit ones, every joint alignment of a sampled feed, and every guide."""

import itertools
from functools import partial

import pytest
import torch
from pyro.poutine.messenger import Messenger
from torch import nn

from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.decoding import (
    Inference,
    beam_search,
    next_word_log_probs,
    target_alignments,
    target_log_probs,
    word_alignment,
)
from models.nmt import Translation, TranslationSizes
from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    TokenLikelihood,
    Weibull,
    sample_posterior,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.ops.sparsemax import sparsemax
from pyro_attention.ops.token_log_prob import summed_token_log_prob, token_log_prob
from pyro_attention.posterior.predictive import seeded
from tests.helpers import assert_mean

SIZES = TranslationSizes(embedding=6, memory=8, decoder=10, attention=7)
SOURCE, TARGET = 9, 11


def make(dropout=0.0, **options):
    model = Translation(SOURCE, TARGET, sizes=SIZES, dropout=dropout, **options).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def batch(lengths=((5, 4), (3, 2)), *, more=0):
    """Random sentences of these source and target lengths, with as much additional padding as asked for."""
    generator = torch.Generator().manual_seed(0)
    columns = []
    for side, size in ((0, SOURCE), (1, TARGET), (1, TARGET)):
        sentences = [torch.randint(size, (pair[side],), generator=generator) for pair in lengths]
        longest = max(len(sentence) for sentence in sentences) + more
        columns.append(torch.stack([nn.functional.pad(s, (0, longest - len(s)), value=7) for s in sentences]))
    source, target_in, target_out = columns
    masks = [
        torch.arange(ids.size(1)) < torch.tensor([pair[side] for pair in lengths])[:, None]
        for side, ids in ((0, source), (1, target_in))
    ]
    return source, masks[0], target_in, target_out, masks[1]


def network(model):
    return AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=8, dropout=0.0).double()


def evidence(model, arguments):
    return -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


def softmax(scores):
    return scores.softmax(-1)


def explicit(model, source, source_mask, target_in, target_out, target_mask, *, draws=None, normalize=softmax):
    """Log evidence, one sentence, word and alignment at a time; of given alignments log p(z) and log f(y | z)."""
    total = log_p = log_f = 0.0
    for b in range(len(source)):
        memory = model.encoder(model.source_embedding(source[b : b + 1, : source_mask[b].sum()]))[0]
        states = [(torch.zeros(1, SIZES.decoder, dtype=torch.float64),) * 2 for _ in model.decoder]
        context = torch.zeros(1, SIZES.memory, dtype=torch.float64)
        for j in range(int(target_mask[b].sum())):
            below = torch.cat([model.target_embedding(target_in[b : b + 1, j]), context], -1)
            for level, cell in enumerate(model.decoder):
                states[level] = cell(below, states[level])
                below = states[level][0]
            p = normalize(model.score(below[:, None], memory)[0, 0])
            features = (model.from_query(below) + model.from_context(memory[0])).tanh()
            likelihood = model.output(features).log_softmax(-1)[:, target_out[b, j]]
            total = total + (p.log() + likelihood).logsumexp(0)
            context = (p @ memory[0])[None]
            if draws is not None:
                context = memory[:, draws[b, j]]
                log_p, log_f = log_p + p.log()[draws[b, j]], log_f + likelihood[draws[b, j]]
    return total if draws is None else (log_p, log_f)


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize(
    ("prior", "normalize"),
    [(None, softmax), (SparseAlignmentPrior(), sparsemax), (SparseAlignmentPrior(k=2), partial(sparsemax, k=2))],
    ids=["dense", "sparse", "top 2"],
)
def test_the_marginal_is_the_explicit_sum(prior, normalize, more):
    """Also of a sparse prior, whose input feed is sparsemax; and one sentence at a time."""
    model, arguments = make(prior=prior), batch(more=more)
    expected = explicit(model, *arguments, normalize=normalize).item()
    assert evidence(model, arguments) == pytest.approx(expected, rel=1e-10)
    assert target_log_probs(model.eval(), *arguments).sum().item() == pytest.approx(expected, rel=1e-10)
    single = [[column[b : b + 1] for column in arguments] for b in range(2)]
    assert sum(evidence(model, one) for one in single) == pytest.approx(expected, rel=1e-10)


# work that is saved


@pytest.mark.parametrize(
    ("name", "rows"),
    [("soft", 4 + 2), ("categorical_sample", 4 + 2), ("categorical_enum", 5 * 4 + 3 * 2), ("sparse_enum", None)],
)
def test_the_output_layer_is_computed_for_possible_alignments_of_real_words_alone(name, rows, monkeypatch):
    seen = []

    def count(original):
        def counted(features, *arguments, **options):
            seen.append(features.shape[:-1].numel())
            return original(features, *arguments, **options)

        return counted

    for original in (token_log_prob, summed_token_log_prob):
        monkeypatch.setattr(f"pyro_attention.alignments.likelihoods.{original.__name__}", count(original))
    scheme = build_scheme(name, top_k=3)
    model, arguments = make(prior=scheme.prior(SIZES.memory, 1)), batch(more=2)
    guide = scheme.guide(model, network(model) if scheme.amortized else None)

    def loss_and_gradients():
        torch.manual_seed(0)
        loss = scheme.objective().differentiable_loss(model, guide, *arguments)
        return loss, gradients(loss, model)

    found = loss_and_gradients()
    if rows is None:
        rows = guide.run(*arguments).trace.nodes["alignment"]["fn"].support_size[arguments[-1]].sum()
    assert seen[0] == rows
    # and it makes no difference
    monkeypatch.setattr(TokenLikelihood, "where", lambda self, rows: self)
    torch.testing.assert_close(loss_and_gradients(), found)
    assert seen[-1] > rows


# the words of given sentences


@pytest.mark.parametrize(
    ("prior", "family", "samples"), [(None, None, 0), (ContextualGammaPrior(8), Soft(), 0),
                                     (ContextualGammaPrior(8), Weibull(2.0), 7)],
    ids=["alignment", "soft", "weibull"],
)  # fmt: skip
@pytest.mark.parametrize("k_max", [None, 2])
def test_given_words_one_by_one(prior, family, samples, k_max):
    model = make(prior=prior).eval()
    source, source_mask, target_in, target_out, target_mask = arguments = batch()
    inference = Inference(k_max=k_max, family=family, samples=samples)
    with seeded(0):
        found = target_log_probs(model, *arguments, inference=inference)
    state = model.start(model.encode(source, source_mask), source_mask)
    with seeded(1):
        rows = target_alignments(model, state, target_in, target_out, inference)
    words = list(zip(model.embed(target_in).unbind(1), target_out.unbind(1), strict=True))
    with seeded(0):
        for place, (word, said) in enumerate(words):
            step = model.step(state, word, k_max=k_max)
            state, log_probs = step.state, next_word_log_probs(model, step, inference)
            expected = log_probs.gather(1, said[:, None]).squeeze(1).where(target_mask[:, place], 0)
            torch.testing.assert_close(found[:, place], expected)
            if not samples:
                torch.testing.assert_close(rows[:, place], word_alignment(model, step, said, inference))


# a sampled input feed


LENGTHS = ((3, 2), (2, 1))  # source and target words of two sentences: 3 * 3 * 2 joint alignments


def hard(model):
    return AttentionGuide(model, {"alignment*": Categorical(enumerate=False)})


class Forced(Messenger):
    """Sets the alignments ``[sentences, words]`` that are not set yet; stands outside the guide."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def _pyro_sample(self, msg):
        if msg["name"].startswith("alignment_") and msg["value"] is None:
            msg["value"] = self.draws[:, int(msg["name"].removeprefix("alignment_")), None]


@pytest.mark.parametrize("input_feed", ["expected", "sampled"])
@pytest.mark.parametrize("prior", [None, ContextualGammaPrior(SIZES.memory)], ids=["alignment", "positive"])
def test_without_pyro_a_feed_is_expected(input_feed, prior):
    """Nothing is drawn: a plain call is that under a guide of soft attention."""
    model, data = make(input_feed=input_feed, prior=prior), batch()
    state = torch.get_rng_state()
    plain = model(*data).log_prob(data[3])
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(plain, AttentionGuide(model, Soft()).run(*data).output.log_prob(data[3]))


def joint_alignments():
    """Every joint alignment of the sentences of LENGTHS; that of a padded word is 0."""
    for a, b, c in itertools.product(range(3), range(3), range(2)):
        yield torch.tensor([[a, b], [c, 0]])


def test_a_sampled_feed_over_every_joint_alignment():
    """Log evidence by draws from the prior; the score function is unbiased, so its rewards hold the words behind."""
    model, arguments, elbo = make(input_feed="sampled"), batch(LENGTHS), ScoreFunctionELBO()
    columns = zip(*(explicit(model, *arguments, draws=draws) for draws in joint_alignments()), strict=True)
    log_p, log_f = (torch.stack(column) for column in columns)
    torch.testing.assert_close(log_p.logsumexp(0).exp().item(), 1.0)
    total, exact = 0.0, -(log_p.exp() * log_f).sum()
    for draws, probability in zip(joint_alignments(), log_p.detach().exp(), strict=True):
        with Forced(draws):
            total = total + probability * elbo.differentiable_loss(model, hard(model), *arguments)
    torch.testing.assert_close(total, exact, rtol=1e-10, atol=0)
    torch.testing.assert_close(gradients(total, model), gradients(exact, model), rtol=1e-8, atol=1e-10)
    values = torch.tensor([-elbo.loss(model, hard(model), *arguments) for _ in range(40)], dtype=torch.float64)
    assert_mean(values.exp(), (log_p + log_f).logsumexp(0).exp())
    # padding changes nothing of given alignments
    with Forced(torch.tensor([[2, 1, 1, 1], [1, 1, 1, 1]])):
        padded = elbo.loss(model, hard(model), *batch(LENGTHS, more=2))
    with Forced(torch.tensor([[2, 1], [1, 0]])):
        assert elbo.loss(model, hard(model), *arguments) == pytest.approx(padded, rel=1e-10)


def test_soft_attention_is_the_same_under_both_feeds_and_priors():
    """And that of a Weibull posterior without noise, whose padded words have no KL, of many particles at once."""
    models = [make(), make(input_feed="sampled"), make(input_feed="sampled", prior=ContextualGammaPrior(SIZES.memory))]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict(), strict=False)
    elbo, sampled = AttentionELBO(), models[-1]
    losses = [elbo.loss(model, AttentionGuide(model, Soft()), *batch(more=2)) for model in models]
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-12)
    particles = AttentionELBO(kl_weight=0, num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    sharp = AttentionGuide(sampled, {"alignment*": Weibull(1e6)})
    assert particles.loss(sampled, sharp, *batch()) == pytest.approx(losses[0], rel=1e-5)
    elbo.loss(sampled, sharp, *batch(more=2))
    assert elbo.kl_record["alignment_3"] > 0
    assert elbo.kl_record["alignment_4"] == elbo.kl_record["alignment_5"] == 0
    source, source_mask, *_ = batch()
    found = [beam_search(m, source, source_mask, begin=1, end=2, beam=3, max_length=5) for m in models[:2]]
    assert found[0] == found[1]  # decoding feeds the expected context
    samples = sample_posterior(hard(models[1]), *batch(), num_samples=3, seed=0)
    assert sorted(samples) == [f"alignment_{step}" for step in range(4)]


# bad input


def test_bad_input():
    source, mask, *target = batch()
    with pytest.raises(ValueError, match=r"sentences \[1\] .* have no words"):
        evidence(make(), (source, mask & torch.tensor([[True], [False]]), *target))
    with pytest.raises(ValueError, match=r"'alignment_0' has 5 values at once, expected one.*input_feed='expected'"):
        evidence(make(input_feed="sampled"), (source, mask, *target))
    with pytest.raises(ValueError, match="memory is 7, expected an even width"):
        Translation(9, 9, sizes=TranslationSizes(8, 7, 8, 8))
    with pytest.raises(ValueError, match="hidden is 7, expected an even width"):
        AlignmentNetwork(nn.Embedding(9, 4), nn.Embedding(9, 4), hidden=7)
