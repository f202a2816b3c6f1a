"""What every posterior family of positive weights keeps with every prior, normalizer and layout, in public.

A newly registered member joins by its name; a new posterior family also needs a line in ``helpers.FAMILY_ARGUMENTS``.
"""

import math
import pickle

import pytest
import torch
from torch import nn

from pyro_attention import Amortised, AttentionELBO, AttentionGuide, Dense, Soft
from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.families.distribution import LogWeights
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import (
    CASES,
    PAIRS,
    DenseForm,
    EdgesForm,
    MaskedEdgesForm,
    Problem,
    assert_mean,
    closed_form,
    draw,
    make_family,
    make_model,
)

EXTREMES = (0.1, 1.0, 30.0, 1000.0)


def gradients(loss, problem, *modules):
    """Gradients of the loss with respect to the scores and all parameters, zero where the loss does not depend."""
    leaves = [problem.scores, *(parameter for module in modules for parameter in module.parameters())]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def test_every_registered_member_takes_part():
    families, priors, normalizers = map(set, zip(*CASES, strict=True))
    positive = [
        {name for name in registry if registry[name].kind in (None, LogWeights.kind)} for registry in (FAMILIES, PRIORS)
    ]
    assert [families, priors, normalizers] == [*positive, set(NORMALIZERS)]


class LayerScores(nn.Module):
    """An inference network that returns what the layer itself proposes."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, problem):
        return self.form.scores(problem.scores, problem.mask)


class AttentionContract:
    """Subclasses name the layout, and their own cases: tests/families/test_worked_example.py does, for a new family."""

    form: DenseForm
    cases = CASES

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize(("family", "prior", "normalizer"), self.cases)

    def test_rows_are_simplices(self, family, prior, normalizer):
        problem = Problem.random()
        weights = draw(make_model(self.form, prior, normalizer), make_family(family, k=1.0), problem)["weights"]
        assert weights.shape == problem.scores.shape
        assert (weights >= 0).all()
        assert (weights[..., ~problem.mask] == 0).all()
        assert (weights[..., problem.mask] > 0).all()
        torch.testing.assert_close(weights.sum(-1), problem.mask.any(-1).float().expand(2, 4))

    def test_masked_entries_do_not_matter(self, family, prior, normalizer):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer)
        scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
        values = problem.values.clone()
        values[:, 2] = -50  # the key that no query sees
        other = problem.with_(scores=scores, values=values)
        (loss, kl), (other_loss, other_kl) = (closed_form(model, make_family(family), p) for p in (problem, other))
        torch.testing.assert_close(other_loss, loss)
        torch.testing.assert_close(other_kl, kl)
        for p, value in ((problem, loss), (other, other_loss)):
            gradient = gradients(value, p)[0]
            assert (gradient[..., ~p.mask] == 0).all()
            assert (gradient[..., p.mask] != 0).all()

    def test_fully_masked_row_is_inert(self, family, prior, normalizer):
        problem, model, rows = Problem.random(), make_model(self.form, prior, normalizer), [0, 2, 3]
        assert (draw(model, make_family(family), problem)["context"][:, 1] == 0).all()
        without = problem.with_(
            scores=problem.scores.detach()[:, rows], targets=problem.targets[:, rows], mask=problem.mask[rows]
        )
        kl, kl_without = (closed_form(model, make_family(family), p)[1] for p in (problem, without))
        torch.testing.assert_close(kl, kl_without)

    def test_nothing_to_attend_to(self, family, prior, normalizer):
        problem = Problem.random(mask=torch.zeros(3, 4, dtype=torch.bool))
        model, posterior = make_model(self.form, prior, normalizer), make_family(family, learnable=True)
        loss, kl = closed_form(model, posterior, problem)
        assert kl == 0
        torch.testing.assert_close(loss, 0.5 * (problem.targets**2 + math.log(2 * math.pi)).sum())
        if loss.requires_grad:
            assert all((gradient == 0).all() for gradient in gradients(loss, problem, model, posterior))

    def test_raw_scores(self, family, prior, normalizer):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer)
        model.attention.normalize_scores = False
        scores = problem.scores.detach().masked_fill(~problem.mask, 1e4).requires_grad_()
        other = problem.with_(scores=scores)
        (loss, kl), (other_loss, other_kl) = (closed_form(model, make_family(family), p) for p in (problem, other))
        torch.testing.assert_close((other_loss, other_kl), (loss, kl))
        assert (gradients(other_loss, other)[0][..., ~problem.mask] == 0).all()
        raw = draw(model, make_family(family), problem)
        model.attention.normalize_scores = True
        normalized = draw(model, make_family(family), problem)
        torch.testing.assert_close(raw["weights"], normalized["weights"])
        if normalizer != "softmax":
            return
        visible = problem.mask.any(-1)
        lse = problem.scores.masked_fill(~problem.mask, -torch.inf).logsumexp(-1, keepdim=True)[:, visible]
        difference = self.form.to_dense(raw["attention"] - normalized["attention"], problem.mask)[:, visible]
        torch.testing.assert_close(difference, (lse * problem.mask[visible]), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("normalize_scores", [True, False])
    def test_a_network_that_returns_the_layers_scores(self, family, prior, normalizer, normalize_scores):
        problem = Problem.random()
        model = make_model(self.form, prior, normalizer, normalize_scores=normalize_scores)
        amortised = Amortised(LayerScores(self.form), make_family(family, k=2.0))
        found = [closed_form(model, posterior, problem) for posterior in (make_family(family, k=2.0), amortised)]
        torch.testing.assert_close(*found, rtol=0, atol=0)

    def test_deterministic_limit(self, family, prior, normalizer):
        problem, model = Problem.random(), make_model(self.form, prior, normalizer)
        weights, soft = (draw(model, f, problem)["weights"] for f in (make_family(family, k=1e6), Soft()))
        torch.testing.assert_close(weights, soft, atol=3e-3, rtol=0)  # std(log S) of a Gamma is 1e-3
        if normalizer == "softmax":
            expected = problem.scores.masked_fill(~problem.mask, -torch.inf).softmax(-1).nan_to_num(0)
        else:  # its own tests say what it does with the raw scores
            expected = model.attention.normalizer(problem.scores, Dense(problem.mask))
        torch.testing.assert_close(soft, expected)
        context = draw(model, Soft(), problem)["context"]
        torch.testing.assert_close(context, expected @ problem.values)

    def test_leading_dimensions(self, family, prior, normalizer):
        problem, model = Problem.random((2, 2)), make_model(self.form, prior, normalizer)
        values = draw(model, make_family(family), problem)
        assert values["weights"].shape == problem.scores.shape
        assert values["context"].shape == problem.targets.shape
        posterior, totals = make_family(family), []
        soft = draw(model, Soft(), problem)["context"]
        for i, j in ((i, j) for i in range(2) for j in range(2)):
            one = Problem(*(x[i, j] for x in (problem.scores, problem.values, problem.targets)), problem.mask)
            totals.append(closed_form(model, posterior, one)[1])
            torch.testing.assert_close(draw(model, Soft(), one)["context"], soft[i, j])
        torch.testing.assert_close(closed_form(model, posterior, problem)[1], sum(totals))

    def test_values_without_leading_dimensions(self, family, prior, normalizer):
        problem, model = Problem.random((3,)), make_model(self.form, prior, normalizer)
        shared = problem.with_(values=problem.values[0])
        expanded = problem.with_(values=problem.values[:1].expand_as(problem.values))
        losses = [closed_form(model, make_family(family), p) for p in (shared, expanded)]
        torch.testing.assert_close(*losses)

    @pytest.mark.parametrize("cast", ["inputs", "model"])
    def test_bfloat16(self, family, prior, normalizer, cast):
        problem, posterior = Problem.random((2,), dtype=torch.bfloat16), make_family(family, learnable=True)
        model = make_model(self.form, prior, normalizer)
        _, expected = closed_form(model, posterior, Problem.random((2,)))
        if cast == "model":
            model, posterior = model.bfloat16(), posterior.bfloat16()
        values = draw(model, posterior, problem)
        assert values["weights"].dtype == values["attention"].dtype == torch.float32
        assert values["weights"].isfinite().all()
        assert values["context"].dtype == torch.bfloat16
        loss, kl = closed_form(model, posterior, problem)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(kl, expected, rtol=0.02, atol=0)

    def test_autocast(self, family, prior, normalizer):
        problem, model = Problem.random((2,)), make_model(self.form, prior, normalizer)
        expected = draw(model, make_family(family), problem)
        _, kl = closed_form(model, make_family(family), problem)
        with torch.autocast("cpu", torch.bfloat16):
            values = draw(model, make_family(family), problem)
            torch.testing.assert_close(closed_form(model, make_family(family), problem)[1], kl)
        torch.testing.assert_close(values["weights"], expected["weights"])
        torch.testing.assert_close(values["context"].float(), expected["context"], rtol=0.02, atol=0.02)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_extremes_are_finite(self, family, prior, normalizer, dtype):
        problem, model = Problem.random(dtype=dtype), make_model(self.form, prior, normalizer)
        scores = torch.linspace(-1000, 1000, problem.scores.numel()).view(5, 2, 4).permute(1, 2, 0)
        problem = problem.with_(scores=scores.to(dtype).requires_grad_())
        for k in EXTREMES:
            posterior = make_family(family, k=k, learnable=True)
            loss, _ = closed_form(model, posterior, problem)
            assert loss.isfinite(), k
            assert all(gradient.isfinite().all() for gradient in gradients(loss, problem, model, posterior)), k

    def test_learnable_parameter(self, family, prior, normalizer):
        problem, model = Problem.random((2,)), make_model(self.form, prior, normalizer)
        for k in (5.0, torch.tensor([3.0, 6.0])):
            posterior = make_family(family, k=k, learnable=True)
            guide = AttentionGuide(model, posterior)
            loss = AttentionELBO()(model, guide)(problem)
            assert set(posterior.parameters()) <= set(guide.parameters())
            for parameter in posterior.parameters():
                (gradient,) = torch.autograd.grad(loss, parameter)
                assert gradient.shape == torch.as_tensor(k).shape
                assert (gradient != 0).all()
        assert list(posterior.parameters()) or family == "soft"

    def test_one_parameter_a_head(self, family, prior, normalizer):
        """Head 1 is wide, head 0 nearly deterministic."""
        problem, model = Problem.random((200,)), make_model(self.form, prior, normalizer)
        values = draw(model, make_family(family, k=torch.tensor([1e4, 2.0])), problem)
        soft = draw(model, Soft(), problem)
        narrow, wide = (values["weights"] - soft["weights"]).abs().mean((0, 2, 3))
        assert narrow < 0.005
        assert wide > 0.02 or family == "soft"

    def test_copies_work_like_the_original(self, family, prior, normalizer):
        problem, model = Problem.random((2,)), make_model(self.form, prior, normalizer)
        guide = AttentionGuide(model, make_family(family, k=torch.tensor([3.0, 6.0]), learnable=True))
        elbo = AttentionELBO()

        def loss(model, guide):
            torch.manual_seed(1)
            return elbo.differentiable_loss(model, guide, problem)

        unused = pickle.dumps((model, guide))
        expected = loss(model, guide)
        torch.manual_seed(1)
        AttentionELBO()(model, guide)(problem).backward()
        guide(problem)
        for pickled in (unused, pickle.dumps((model, guide))):
            assert torch.equal(loss(*pickle.loads(pickled)), expected)

        other = make_model(self.form, prior, normalizer)
        other_guide = AttentionGuide(other, make_family(family, k=torch.tensor([1.0, 1.0]), learnable=True))
        state = AttentionELBO()(model, guide).state_dict()
        AttentionELBO()(other, other_guide).load_state_dict(state)
        assert torch.equal(loss(other, other_guide), expected)


class TestDense(AttentionContract):
    form = DenseForm()


class TestMaskedEdges(AttentionContract):
    form = MaskedEdgesForm()


class TestEdges(AttentionContract):
    form = EdgesForm()


@pytest.mark.parametrize(("family", "prior"), [pair for pair in PAIRS if pair[0] != "soft"])
def test_sampled_kl(family, prior):
    """In one layout: test_contract_layouts.py compares the densities of the others."""
    problem, model, posterior = Problem.random(), make_model(DenseForm(), prior), make_family(family, k=2.0)
    _, expected = closed_form(model, posterior, problem)
    many = [value.expand(200, *value.shape) for value in (problem.scores, problem.values, problem.targets)]
    elbo, guide, estimates = AttentionELBO(kl="sampled"), AttentionGuide(model, posterior), []
    for _ in range(30):
        elbo.loss(model, guide, Problem(*many, problem.mask))
        estimates.append(elbo.kl_record["attention"] / 200)
    assert_mean(torch.stack(estimates), expected)


@pytest.mark.parametrize("kl", ["sampled", "closed_form"])
def test_soft_attention_has_no_kl(kl):
    model, elbo = make_model(DenseForm(), "gamma_fixed"), AttentionELBO(kl=kl)
    elbo.loss(model, AttentionGuide(model, Soft()), Problem.random())
    assert elbo.kl_record == {}
