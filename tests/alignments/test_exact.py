"""Exact posteriors of alignments against Bayes' rule written out."""

import warnings
from itertools import product

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    AttentionCall,
    Dense,
    FixedGammaPrior,
    LatentAttention,
    TokenLikelihood,
    exact_alignments,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.objectives.validation import PriorWarning

KEYS = 4
PRIORS = {"dense": AlignmentPrior(), "sparse": SparseAlignmentPrior(), "top 2": SparseAlignmentPrior(k=2)}


pytestmark = pytest.mark.usefixtures("double")


def aligner(prior, mask=None, *, scale=1.0, counted=True):
    """Queries ``[3, 2]`` with keys of their sentence; a token is read from the key alone."""
    attention = LatentAttention("alignment", prior)
    output, layout = torch.randn(7, 5), Dense(mask, event_dim=2)

    def model(scores, values, y=None):
        sentences, words = pyro.plate("sentences", 3, dim=-2), pyro.plate("words", 2, dim=-1)
        with sentences, words, poutine.scale(scale=scale), poutine.mask(mask=counted):
            context = attention(scores, values, layout=layout).context.squeeze(-2)
            pyro.sample("y", TokenLikelihood(context, output), obs=y)

    return model, output


def data():
    """Scores of queries ``[3, 2]``, values of the keys, and tokens."""
    return torch.randn(3, 2, 1, KEYS), torch.randn(3, 1, 1, KEYS, 5), torch.randint(7, (3, 2))


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("masked", [False, True])
def test_bayes_rule(name, masked):
    scores, values, y = data()
    mask = None
    if masked:
        mask = torch.rand(3, 1, 1, KEYS) < 0.7
        mask[..., 0] = True
        mask[2] = False  # its queries are without keys
    model, output = aligner(PRIORS[name], mask)
    prior = PRIORS[name](AttentionCall(scores=scores, layout=Dense(mask, event_dim=2))).probs
    likelihood = (values @ output.T).softmax(-1)[:, :, 0].expand(3, 2, KEYS, 7)
    joint = prior * likelihood.gather(-1, y[..., None, None].expand(3, 2, KEYS, 1)).squeeze(-1)
    found = exact_alignments(model, scores, values, y=y)["alignment"]
    assert found.shape == (3, 2, 1, KEYS)
    with torch.no_grad():
        given = exact_alignments(model, scores, values, y, max_plate_nesting=2)["alignment"]
    torch.testing.assert_close(given, found)
    expected = joint / joint.sum(-1, keepdim=True) * (1 if mask is None else mask.squeeze(-2))
    torch.testing.assert_close(found.squeeze(-2), expected, atol=1e-12, rtol=1e-9)
    assert not found.requires_grad


def test_alignments_that_explain_an_observation_together_have_their_marginals():
    attentions = [LatentAttention(name, AlignmentPrior()) for name in ("first", "second")]
    scores, values = torch.randn(2, 2, 1, KEYS), torch.randn(2, 1, KEYS, 1)
    y, layout = torch.randn(2), Dense(event_dim=2)

    def model():
        with pyro.plate("queries", 2):
            found = [one(scores[place], values[place], layout=layout) for place, one in enumerate(attentions)]
            mean = sum(one.context.squeeze(-1).squeeze(-1) for one in found)
            pyro.sample("y", dist.Normal(mean, 0.3), obs=y)

    joint = torch.zeros(2, KEYS, KEYS)
    for one, other in product(range(KEYS), repeat=2):
        prior = scores[0].softmax(-1)[:, 0, one] * scores[1].softmax(-1)[:, 0, other]
        likelihood = dist.Normal(values[0, 0, one, 0] + values[1, 0, other, 0], 0.3).log_prob(y).exp()
        joint[:, one, other] = prior * likelihood
    joint /= joint.sum((1, 2), keepdim=True)
    found = exact_alignments(model)
    torch.testing.assert_close(found["first"].squeeze(-2), joint.sum(2))
    torch.testing.assert_close(found["second"].squeeze(-2), joint.sum(1))


@pytest.mark.parametrize("nesting", [3, float("inf")])
def test_the_shape_is_that_of_the_plates_of_the_site(nesting):
    """Other sites lie in more plates, and the scores of the second alignment read the first."""
    first, second = (LatentAttention(name, AlignmentPrior()) for name in ("first", "second"))
    keys, y, layout = torch.randn(3, KEYS), torch.randn(2, 3), Dense(event_dim=2)

    def model():
        with pyro.plate("queries", 3, dim=-1):
            values = keys[:, None, :, None]
            a = first(keys.unsqueeze(-2), values, layout=layout).context
            b = second(a * keys.unsqueeze(-2), values, layout=layout).context
            with pyro.plate("tokens", 2, dim=-2):
                pyro.sample("y", dist.Normal((a + b)[..., 0, 0], 0.5), obs=y)

    prior = keys.log_softmax(-1).unsqueeze(-1) + (keys.unsqueeze(-1) * keys.unsqueeze(-2)).log_softmax(-1)
    means = keys.unsqueeze(-1) + keys.unsqueeze(-2)
    joint = (prior + dist.Normal(means, 0.5).log_prob(y[..., None, None]).sum(0)).flatten(1).softmax(-1)
    joint = joint.unflatten(-1, (KEYS, KEYS))
    posteriors = exact_alignments(model, max_plate_nesting=nesting)
    torch.testing.assert_close(posteriors, {"first": joint.sum(2).unsqueeze(-2), "second": joint.sum(1).unsqueeze(-2)})


def test_scales_of_minibatches_do_not_matter_and_what_does_not_count_keeps_its_prior():
    scores, values, y = data()
    found = []
    for options in ({}, {"scale": 10.0}, {"counted": torch.tensor([[True, False]] * 3)}):
        torch.manual_seed(1)
        found.append(exact_alignments(aligner(AlignmentPrior(), **options)[0], scores, values, y)["alignment"])
    plain, scaled, masked = found
    torch.testing.assert_close(scaled, plain)
    torch.testing.assert_close(masked[:, 0], plain[:, 0])
    torch.testing.assert_close(masked[:, 1], scores[:, 1].softmax(-1))


@pytest.mark.parametrize("validates", [True, False])
def test_a_latent_site_that_is_no_alignment_is_told(validates):
    attention, keys = LatentAttention("alignment", AlignmentPrior()), torch.randn(3, KEYS)
    y, layout = torch.randn(3), Dense(event_dim=2)

    def model():
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        count = pyro.sample("count", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        with pyro.plate("queries", 3):
            context = attention(slope * keys.unsqueeze(-2), keys[:, None, :, None], layout=layout).context
            pyro.sample("y", dist.Normal(context[..., 0, 0] + count, 0.5), obs=y)

    with (
        pyro.validation_enabled(validates),
        pytest.warns(
            PriorWarning, match=r"^latent sites 'slope' are drawn .* once, .*data=\{'slope': \.\.\.\}\)$"
        ) as told,
    ):
        exact_alignments(model, max_plate_nesting=1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact_alignments(poutine.condition(model, data={"slope": torch.tensor(2.0)}), max_plate_nesting=1)


def test_an_unlikely_observation():
    """Far in the tail the likelihoods underflow; their ratio does not."""
    attention = LatentAttention("alignment", AlignmentPrior())

    def model(y):
        with pyro.plate("queries", 1):
            context = attention(torch.zeros(1, 1, 2), torch.tensor([[[0.0], [1.0]]]), layout=Dense(event_dim=2)).context
            pyro.sample("y", dist.Normal(context.squeeze(-1).squeeze(-1), 0.1), obs=y)

    assert exact_alignments(model, torch.tensor([50.0]))["alignment"].tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize("as_function", [False, True])
def test_the_training_mode_does_not_matter_and_is_restored(as_function):
    """Dropout would make another posterior at every call, and running statistics would change."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.before = LatentAttention("alignment", AlignmentPrior()), nn.BatchNorm1d(1)
            self.dropout, self.frozen = nn.Dropout(0.5), nn.Dropout(0.5).eval()

        def forward(self):
            scores = self.dropout(self.before(torch.arange(12.0).reshape(4, 1, 3)))
            with pyro.plate("queries", 4):
                layout = Dense(event_dim=2)
                context = self.attention(self.frozen(scores), torch.arange(3.0).reshape(1, 3, 1), layout=layout).context
                pyro.sample("y", dist.Normal(context.squeeze(-1).squeeze(-1), 1.0), obs=torch.ones(4))

    model = Model()
    state, statistics = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    trained = exact_alignments((lambda: model()) if as_function else model, max_plate_nesting=1)["alignment"]
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == modes
    assert all(value.equal(statistics[name]) for name, value in model.state_dict().items())
    assert trained.equal(exact_alignments(model.eval())["alignment"])


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
def test_other_priors_and_no_attention():
    attention = LatentAttention("attention", FixedGammaPrior())
    with pytest.raises(ValueError, match="site 'attention': Marginal fits priors of kind 'alignment'"):
        exact_alignments(lambda: attention(torch.zeros(1, 2, 3), torch.ones(1, 3, 4)))
    with pytest.raises(ValueError, match="no site matches"):
        exact_alignments(lambda: None)


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
def test_alignments_that_are_given():
    """One of two is a fact for the other; where both are, nothing is left to infer."""
    first, second = (LatentAttention(name, AlignmentPrior()) for name in ("first", "second"))
    scores, values, layout = torch.randn(4, 1, 3), torch.tensor([[[0.0], [1.0], [2.0]]]), Dense(event_dim=2)

    def model():
        with pyro.plate("queries", 4):
            mean = sum(read(scores, values, layout=layout).context[..., 0, 0] for read in (first, second))
            pyro.sample("y", dist.Normal(mean, 0.5), obs=torch.ones(4))

    keys = torch.tensor([0, 1, 2, 0])
    found = exact_alignments(poutine.condition(model, data={"first": keys}))
    likelihood = dist.Normal(keys.unsqueeze(-1) + torch.arange(3.0), 0.5).log_prob(torch.tensor(1.0))
    torch.testing.assert_close(found, {"second": (scores.squeeze(-2) + likelihood).softmax(-1).unsqueeze(-2)})
    with pytest.raises(ValueError, match=r"every alignment of the model is given, .* leave one out"):
        exact_alignments(poutine.condition(model, data={"first": keys, "second": keys}))
