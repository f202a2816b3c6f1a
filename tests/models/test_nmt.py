"""The translation model: exact sums against explicit ones, padding, and every guide."""

from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from torch import nn

from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.nmt import PAPER, Translation, TranslationSizes
from pyro_attention import (
    AlignmentELBO,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    Gamma,
    Marginal,
    ScoreFunctionELBO,
    Soft,
    SparseAlignmentPrior,
    SparseCategorical,
    TokenLikelihood,
    Weibull,
    sample_posterior,
)
from pyro_attention.ops import summed_token_log_prob as summed_token_log_prob_module
from pyro_attention.ops.sparsemax import sparsemax
from pyro_attention.ops.summed_token_log_prob import summed_token_log_prob
from pyro_attention.ops.token_log_prob import token_log_prob

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


def evidence(model, arguments):
    return -AlignmentELBO(max_plate_nesting=2).loss(model, AttentionGuide(model, Marginal()), *arguments)


def softmax(scores):
    return scores.softmax(-1)


def explicit_evidence(model, source, source_mask, target_in, target_out, target_mask, normalize=softmax):
    """One sentence at a time, one word at a time, one alignment at a time."""
    total = 0.0
    for b in range(len(source)):
        words, count = source[b : b + 1, : source_mask[b].sum()], int(target_mask[b].sum())
        memory = model.encoder(model.source_embedding(words))[0]
        states = [(torch.zeros(1, SIZES.decoder, dtype=torch.float64),) * 2 for _ in model.decoder]
        context = torch.zeros(1, SIZES.memory, dtype=torch.float64)
        for j in range(count):
            below = torch.cat([model.target_embedding(target_in[b : b + 1, j]), context], -1)
            for level, cell in enumerate(model.decoder):
                states[level] = cell(below, states[level])
                below = states[level][0]
            p = normalize(model.score(below[:, None], memory)[0, 0])
            log_f = [
                model.output((model.from_query(below) + model.from_context(memory[:, i])).tanh()).log_softmax(-1)
                for i in range(memory.size(1))
            ]
            likelihood = torch.stack([logits[0, target_out[b, j]] for logits in log_f])
            total = total + (p.log() + likelihood).logsumexp(0)
            context = p @ memory[0][None]
            context = context.reshape(1, -1)
    return total.item()


@pytest.mark.parametrize("more", [0, 2])
def test_the_marginal_is_the_explicit_sum(more):
    model, arguments = make(), batch(more=more)
    assert evidence(model, arguments) == pytest.approx(explicit_evidence(model, *arguments), rel=1e-10)


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("k", [None, 2])
def test_the_sparse_marginal_is_the_explicit_sum(k, more):
    """Its prior and its input feed are sparsemax."""
    model, arguments = make(prior=SparseAlignmentPrior(k=k)), batch(more=more)
    expected = explicit_evidence(model, *arguments, normalize=partial(sparsemax, k=k))
    assert evidence(model, arguments) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *((name, 4 + 2) for name in ("soft", "weibull", "dirichlet", "categorical_sample")),
        *((name, 5 * 4 + 3 * 2) for name in ("marginal", "hard_enum", "categorical_enum")),
        *((name, None) for name in ("sparse_marginal", "sparse_enum")),
    ],
)
def test_the_output_layer_is_computed_for_possible_alignments_of_real_words_alone(name, rows, monkeypatch):
    seen = []

    def count(original):
        def counted(features, *arguments, **options):
            seen.append(features.shape[:-1].numel())
            return original(features, *arguments, **options)

        return counted

    for original in (token_log_prob, summed_token_log_prob):
        monkeypatch.setattr(f"pyro_attention.likelihoods.{original.__name__}", count(original))
    scheme = build_scheme(name, top_k=3)
    model, arguments = make(prior=scheme.prior(SIZES.memory, 1)), batch(more=2)
    guide = scheme.guide(model, network(model) if scheme.amortised else None)

    def loss_and_gradients():
        torch.manual_seed(0)
        loss = scheme.elbo.differentiable_loss(model, guide, *arguments)
        return loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)

    found = loss_and_gradients()
    if rows is None:
        rows = guide.run(*arguments).trace.nodes["alignment"]["fn"].support_size[arguments[-1]].sum()
    assert seen[0] == rows
    # and it makes no difference
    monkeypatch.setattr(TokenLikelihood, "where", lambda self, rows: self)
    torch.testing.assert_close(loss_and_gradients(), found)
    assert seen[-1] > rows


@pytest.mark.parametrize("name", ["marginal", "hard_enum", "categorical_enum", "sparse_marginal", "sparse_enum"])
def test_logits_of_an_exact_scheme_are_computed_once(name, monkeypatch):
    again, original = [], summed_token_log_prob_module._gradients
    monkeypatch.setattr(
        summed_token_log_prob_module, "_gradients", lambda *tensors: again.append(1) or original(*tensors)
    )
    scheme = build_scheme(name, top_k=3)
    model, arguments = make(prior=scheme.prior(SIZES.memory, 1)), batch(more=2)
    weighted = poutine.scale(model, scale=0.25)
    guide = scheme.guide(weighted, network(model) if scheme.amortised else None)

    def gradients():
        loss = scheme.elbo.differentiable_loss(weighted, guide, *arguments)
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)

    found = gradients()
    assert not again
    monkeypatch.setattr(TokenLikelihood, "summed_over", lambda self, *_, **__: self)
    torch.testing.assert_close(found, gradients())


@pytest.mark.parametrize("name", ["marginal", "hard_enum", "categorical_enum"])
def test_roulette_reaches_the_gradient_of_the_words_alone(name):
    losses, gradients = [], []
    for roulette in (0.0, 0.5):
        torch.manual_seed(0)
        scheme = build_scheme(name, roulette=roulette)
        model, arguments = make(prior=scheme.prior(SIZES.memory, 1), input_feed="none"), batch(more=2)
        guide = scheme.guide(model, network(model) if scheme.amortised else None)
        losses.append(scheme.elbo.differentiable_loss(model, guide, *arguments))
        gradients.append(torch.autograd.grad(losses[-1], [model.score.out.weight, model.output.weight]))
    torch.testing.assert_close(*losses)
    # the scores of the prior have the whole gradient
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert not torch.allclose(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_batches_and_padding_change_nothing(dtype):
    model, tolerance = make().to(dtype), 1e-5 if dtype == torch.float32 else 1e-10
    arguments = batch()
    together = evidence(model, arguments)
    assert evidence(model, batch(more=3)) == pytest.approx(together, rel=tolerance)
    single = [[column[b : b + 1] for column in arguments] for b in range(2)]
    assert sum(evidence(model, one) for one in single) == pytest.approx(together, rel=tolerance)


def network(model):
    return AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=8, dropout=0.0).double()


@pytest.mark.parametrize(
    ("family", "elbo", "prior"),
    [
        (lambda model: Marginal(), AlignmentELBO(max_plate_nesting=2), None),
        (lambda model: Categorical(), AlignmentELBO(max_plate_nesting=2), None),
        (lambda model: Amortised(network(model), Categorical()), AlignmentELBO(max_plate_nesting=2), None),
        (lambda model: Categorical(enumerate=False), ScoreFunctionELBO(), None),
        (lambda model: Amortised(network(model), Categorical(enumerate=False)), ScoreFunctionELBO(), None),
        (lambda model: Marginal(), AlignmentELBO(max_plate_nesting=2), SparseAlignmentPrior(k=3)),
        (lambda model: Amortised(network(model), SparseCategorical()), AlignmentELBO(max_plate_nesting=2), None),
        (lambda model: Soft(), AttentionELBO(), None),
        (lambda model: Soft(), AttentionELBO(), ContextualGammaPrior(SIZES.memory)),
        (lambda model: Weibull(), AttentionELBO(kl_weight=0.1), ContextualGammaPrior(SIZES.memory)),
        (
            lambda model: Amortised(network(model), Gamma()),
            AttentionELBO(kl_weight=0.1),
            ContextualGammaPrior(SIZES.memory),
        ),
    ],
    ids=[
        "marginal",
        "hard",
        "enum",
        "hard sample",
        "sample",
        "sparse marginal",
        "sparse enum",
        "expected",
        "soft",
        "weibull",
        "amortised gamma",
    ],
)
def test_every_guide_trains(family, elbo, prior):
    torch.manual_seed(0)
    model, arguments = make(dropout=0.1, prior=prior), batch()
    guide = AttentionGuide(model, family(model))
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), elbo)
    losses = [svi.step(*arguments) for _ in range(20)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_soft_attention_is_the_same_under_both_priors():
    """The expected alignment of a categorical prior is the mean of Bayesian attention."""
    model, arguments = make(), batch()
    other = make(prior=ContextualGammaPrior(SIZES.memory))
    other.load_state_dict(model.state_dict(), strict=False)
    first = AttentionELBO().loss(model, AttentionGuide(model, Soft()), *arguments)
    assert AttentionELBO().loss(other, AttentionGuide(other, Soft()), *arguments) == pytest.approx(first, rel=1e-12)


def test_posterior_samples_have_a_row_for_every_word():
    model, arguments = make(), batch()
    guide = AttentionGuide(model, Amortised(network(model), Categorical(enumerate=False)))
    weights = sample_posterior(guide, *arguments, num_samples=3, seed=0)["alignment"]
    assert weights.shape == (3, 2, 4, 1, 5)
    assert not weights[:, 1, :, :, 3:].any()  # the second sentence has three source words


def test_the_inference_network_sees_the_future_and_the_prior_does_not():
    model = make()
    source, source_mask, target_in, target_out, target_mask = batch(((5, 4),))
    changed_in, changed_out = target_in.clone(), target_out.clone()
    changed_in[0, 3], changed_out[0, 3] = (target_in[0, 3] + 1) % TARGET, (target_out[0, 3] + 1) % TARGET

    def scores(target_in, target_out):
        memory = model.encode(source, source_mask)
        steps = model.steps(model.start(memory, source_mask), target_in)
        prior = torch.stack([step.scores for step in steps], 1)
        posterior = network_(source, source_mask, target_in, target_out, target_mask)
        return prior[0, 0], posterior[0, 0, 0]

    network_ = network(model)
    before, after = scores(target_in, target_out), scores(changed_in, changed_out)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_sizes_of_the_paper():
    model = Translation(1000, 1000, sizes=PAPER, init_range=0.1)
    assert model.encoder.hidden_size == 512
    assert [cell.input_size for cell in model.decoder] == [512 + 1024, 768]
    assert model.output.weight.shape == (1000, 768)
    assert all(parameter.abs().max() <= 0.1 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda *_: Translation(5, 5, sizes=TranslationSizes(memory=7)), "memory is 7, expected an even width"),
        (lambda *_: AlignmentNetwork(nn.Embedding(5, 2), nn.Embedding(5, 2), hidden=7), "hidden is 7, expected an"),
        (lambda model, source, mask, *target: evidence(
            model, (source, mask & torch.tensor([[True], [False]]), *target)), r"sentences \[1\] .* have no words"),
        (lambda model, *arguments: network(model)(*arguments[:3]), "needs target_out and target_mask"),
    ],
    ids=["memory", "hidden", "no words", "no target"],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(make(), *batch())
