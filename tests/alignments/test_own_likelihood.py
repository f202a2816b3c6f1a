"""Likelihoods of users that sum their own alignments: the page's example, and what the objective tells them."""

from typing import ClassVar

import pyro
import pytest
import torch
from pyro.distributions import Normal

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    ScoreFunctionELBO,
    exact_alignments,
)
from pyro_attention.alignments.summed import AlignmentsAbove, SummedLikelihood
from tests.helpers import gradients
from tests.test_pages import run_snippets

MASK = torch.tensor([[True, True, False], [True, False, False]])[:, None]


def test_the_example_of_the_page_has_the_loss_of_the_plain_likelihood_with_fewer_rows():
    torch.manual_seed(0)
    names = run_snippets("docs/how_to/own_family.md")
    pictures, guide, elbo, rows = (names[name] for name in ("pictures", "guide", "elbo", "rows"))
    losses = [elbo.differentiable_loss(pictures, guide, careful) for careful in (False, True)]
    assert rows[-2:] == [5 * 4, 5 + 3 + 2 + 2]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(gradients(loss, *names["decoder"].parameters()) for loss in losses))


def test_a_likelihood_that_pyro_would_wrap_says_what_it_needs():
    class Narrow(SummedLikelihood):
        arg_constraints = {}  # noqa: RUF012

    with pytest.raises(NotImplementedError, match=r"Narrow has batch shape \(1,\), .* need \(2,\); give"):
        model(torch.zeros(2), likelihood=lambda *_: Narrow(torch.Size((1,)), validate_args=False))


class Recorder(Normal, SummedLikelihood):
    """A Normal likelihood that keeps a list of the alignments above it."""

    calls: ClassVar[list[AlignmentsAbove]] = []

    def below_alignments(self, alignments):
        self.calls.append(alignments)
        return self


@pytest.fixture
def calls():
    Recorder.calls = []
    return Recorder.calls


attention = LatentAttention("z", AlignmentPrior())


def model(y, mask=None, likelihood=Recorder):
    with pyro.plate("queries", 2), pyro.poutine.mask(mask=torch.ones(2, dtype=torch.bool) if mask is None else mask):
        scores, values = torch.arange(6.0).view(2, 1, 3), torch.arange(3.0).view(1, 3, 1)
        context = attention(scores, values, layout=Dense(MASK, event_dim=2)).context[..., 0, 0]
        pyro.sample("y", likelihood(context, 1.0), obs=y)
        pyro.sample("later", likelihood(context, 2.0), obs=y)


@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
def test_a_likelihood_is_told_the_alignments_above_it(family, calls):
    y, mask = torch.tensor([0.5, 1.0]), torch.tensor([True, False])
    guide = AttentionGuide(model, family)
    loss = AlignmentELBO(max_plate_nesting=1, roulette=0.1).loss(model, guide, y, mask)
    first, second = calls[-2:]
    (alignment,) = first.enumerated
    assert alignment.dim == -2
    assert alignment.possible.T.tolist() == MASK.squeeze(-2).tolist()
    torch.testing.assert_close(
        alignment.log_prob.exp().T, torch.arange(6.0).view(2, 3).masked_fill(~MASK[:, 0], -torch.inf).softmax(-1)
    )
    assert not alignment.log_prob.requires_grad
    assert alignment.evidence == family.is_marginal
    assert alignment.readers == ["y", "later"]
    assert second.enumerated[0] is alignment
    assert torch.equal(first.mask, mask)
    assert (first.is_only_sum, first.roulette, dict(first.edges)) == (True, 0.1, {})
    assert loss == pytest.approx(AlignmentELBO(max_plate_nesting=1).loss(model, guide, y, mask, Normal))


def test_other_objectives_take_it_as_it_is(calls):
    y = torch.tensor([0.5, 1.0])
    ScoreFunctionELBO().loss(model, AttentionGuide(model, Categorical(enumerate=False)), y)
    assert not calls
    exact = [exact_alignments(model, y, None, likelihood)["z"] for likelihood in (Recorder, Normal)]
    torch.testing.assert_close(*exact)
    assert calls
