"""Discrete latents beside attention, and alignments that depend on each other, against sums written out."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    Soft,
    TokenLikelihood,
    check_model,
    exact_alignments,
)

PARALLEL = {"enumerate": "parallel"}


pytestmark = pytest.mark.usefixtures("double")


class Mixture:
    """Three queries look at one of four keys each; which keys are likely depends on a state, which is shared or not."""

    def __init__(self, states, *, local=False):
        self.local, self.prior = local, torch.randn(states).softmax(-1)
        self.scores = torch.randn(states, 3, 4, requires_grad=True)
        self.values, self.y = torch.randn(4), torch.randn(3)
        self.attention = LatentAttention("alignment", AlignmentPrior())

    def __call__(self):
        queries = pyro.plate("queries", 3)
        with queries if self.local else poutine.mask(mask=True):
            state = pyro.sample("state", dist.Categorical(self.prior), infer=PARALLEL)
        with queries as index:
            scores = self.scores[state, index].unsqueeze(-2)
            context = self.attention(scores, self.values[:, None].expand(1, 4, 1), layout=Dense(event_dim=2)).context
            pyro.sample("y", dist.Normal(context[..., 0, 0], 0.3), obs=self.y)

    def joint(self, family):
        """log p(y, z | state), ``[states, queries, keys]``; with the expected alignment z is gone."""
        prior = self.scores.log_softmax(-1)
        if isinstance(family, Soft):
            return dist.Normal(prior.exp() @ self.values, 0.3).log_prob(self.y).unsqueeze(-1)
        return prior + dist.Normal(self.values, 0.3).log_prob(self.y[:, None])

    def evidence(self, family):
        each = self.joint(family).logsumexp(-1)
        if self.local:
            return (self.prior.log()[:, None] + each).logsumexp(0).sum()
        return (self.prior.log() + each.sum(-1)).logsumexp(0)


@pytest.mark.parametrize("local", [False, True], ids=["shared", "local"])
@pytest.mark.parametrize("family", [Marginal(), Soft()], ids=str)
def test_a_mixture_beside_attention_is_summed_out(family, local):
    model = Mixture(3, local=local)
    guide = AttentionGuide(model, family)
    loss = AlignmentELBO(max_plate_nesting=1).loss(model, guide)
    assert -loss == pytest.approx(model.evidence(family).item())
    report = check_model(model, guide, elbo=AlignmentELBO())
    assert report.loss == pytest.approx(loss)
    assert not any("prior" in problem for problem in report.problems)


@pytest.mark.parametrize("local", [False, True], ids=["shared", "local"])
def test_exact_alignments_beside_a_mixture(local):
    """A posterior that depends on what is summed out is refused."""
    model = Mixture(3, local=local)
    joint = model.joint(None)
    others = joint.logsumexp(-1)
    rest = 0 if local else (others.sum(-1, keepdim=True) - others)[..., None]
    log_joint = (model.prior.log()[:, None, None] + joint + rest).logsumexp(0)
    found = exact_alignments(model)["alignment"]
    torch.testing.assert_close(found.squeeze(-2), log_joint.softmax(-1))
    guide = AttentionGuide(model, Categorical())
    with pytest.raises(ValueError, match="site 'alignment': its posterior depends on 'state', which is summed out"):
        AlignmentELBO(max_plate_nesting=1).loss(model, guide)


class Chain:
    """A hidden Markov alignment: the place of a word depends on that of the word before, with or without attention."""

    def __init__(self, tokens, plain):
        self.tokens, self.plain, self.output, self.values = tokens, plain, torch.randn(5, 3), torch.randn(2, 3, 3)
        self.transition, self.y = torch.randn(3, 3), torch.randint(5, (4, 2))
        self.masks = torch.ones(4, 3, dtype=torch.bool)
        self.masks[range(4), [0, 1, 2, 1]] = False  # at every step another place is forbidden
        self.attention = [LatentAttention(f"z{step}", AlignmentPrior()) for step in range(4)]

    def __call__(self):
        with pyro.plate("sentences", 2):
            weights = torch.full((2, 1, 3), 1 / 3)
            for step in pyro.markov(range(4)):
                scores, layout = weights @ self.transition, Dense(self.masks[step], event_dim=2)
                if step in self.plain:
                    logits = scores.squeeze(-2).masked_fill(~self.masks[step], -1e9)
                    place = pyro.sample(f"z{step}", dist.Categorical(logits=logits), infer=PARALLEL)
                    weights = torch.eye(3)[place].unsqueeze(-2)
                    features = (weights @ self.values).squeeze(-2)
                else:
                    attended = self.attention[step](scores, self.values[:, None], layout=layout)
                    features, weights = attended.context.squeeze(-2), attended.weights
                logits = dist.Categorical(logits=features @ self.output.T)
                token = TokenLikelihood(features, self.output) if self.tokens else logits
                pyro.sample(f"y{step}", token, obs=self.y[step])

    def forward_backward(self):
        """Log evidence, and the posterior of every place ``[steps, sentences, 3]``."""
        emission = (self.values @ self.output.T).log_softmax(-1)  # [2, 3, 5]
        emission = torch.stack([emission[range(2), :, y] for y in self.y]).masked_fill(~self.masks[:, None], -torch.inf)
        allowed = [self.transition.masked_fill(~mask, -torch.inf).log_softmax(-1) for mask in self.masks]
        first = self.transition.mean(0).masked_fill(~self.masks[0], -torch.inf).log_softmax(-1)
        forward, backward = [first + emission[0]], [torch.zeros(2, 3)]
        for step in range(1, 4):
            forward.append((forward[-1][..., None] + allowed[step]).logsumexp(-2) + emission[step])
        for step in range(3, 0, -1):
            backward.insert(0, (allowed[step] + (emission[step] + backward[0])[:, None]).logsumexp(-1))
        return forward[-1].logsumexp(-1).sum(), (torch.stack(forward) + torch.stack(backward)).softmax(-1)


@pytest.mark.parametrize(("tokens", "plain"), [(False, ()), (True, ()), (True, (2,))])
def test_a_hidden_markov_alignment_is_that_of_the_forward_algorithm(tokens, plain):
    """Steps take turns in using the dimensions of enumeration, so nothing of a step may be left for one after it."""
    model = Chain(tokens, plain)
    evidence, posterior = model.forward_backward()
    loss = AlignmentELBO(max_plate_nesting=1).loss(model, AttentionGuide(model, Marginal()))
    assert -loss == pytest.approx(evidence.item())
    for name, found in exact_alignments(model).items():
        torch.testing.assert_close(found.squeeze(-2), posterior[int(name[1])])
