"""Queries that do not count: a layout without them gives the KL of a mask that hides their rows."""

import pytest
import torch
from torch.distributions import kl_divergence

from pyro_attention import Dense, LatentAttention
from tests.helpers import ALL_PAIRS, make_family, make_prior

BATCH, HEADS, LENGTH, WIDTH = 3, 2, 5, 3
PRESENT = torch.arange(LENGTH) < torch.tensor([[5], [3], [1]])
KEYS, QUERIES = PRESENT[:, None, None, :], PRESENT[:, None, :, None]
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
MASKS = {"none": None, "padding": KEYS, "causal": KEYS & CAUSAL}
PAIRS = [pair for pair in ALL_PAIRS if not pair[1].endswith("alignment") and pair[0] != "soft"]


def terms(layout, attention, family, scores, keys, value):
    """KL, entropy and densities of a posterior from its prior, and the gradients of the KL."""
    prior = attention.propose(scores, keys, layout)
    posterior = family.posterior(prior)
    kl = kl_divergence(posterior, prior)
    inputs = [scores, *attention.prior.parameters()]
    gradients = torch.autograd.grad(kl.sum(), inputs, allow_unused=True)
    return kl, posterior.entropy(), posterior.log_prob(value), prior.log_prob(value), gradients


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize(("family", "prior"), PAIRS)
def test_as_with_a_mask_of_the_rows(family, prior, normalize, mask):
    attention = LatentAttention("a", make_prior(prior, width=WIDTH), normalize_scores=normalize)
    scores, keys = (
        torch.randn(BATCH, HEADS, LENGTH, LENGTH, requires_grad=True),
        torch.randn(BATCH, HEADS, LENGTH, WIDTH),
    )
    counted = Dense(MASKS[mask], counted=QUERIES)
    masked = Dense(QUERIES.expand(BATCH, 1, LENGTH, LENGTH) if mask == "none" else MASKS[mask] & QUERIES)
    family = make_family(family, 5.0)
    value = family.posterior(attention.propose(scores, keys, counted)).rsample().detach()
    assert value[1, :, 3:].abs().sum() > 0  # the others are drawn, too
    results = [terms(layout, attention, family, scores, keys, value) for layout in (counted, masked)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert counted.kept.expand(masked.kept.shape).equal(masked.kept)


def test_a_contextual_prior_stays_small():
    attention = LatentAttention("a", make_prior("gamma_contextual", width=WIDTH))
    scores, keys = torch.randn(BATCH, HEADS, LENGTH, LENGTH), torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    prior = attention.propose(scores, keys, Dense(KEYS, counted=QUERIES))
    assert prior.log_concentration.shape == (BATCH, HEADS, 1, LENGTH)
    assert prior.counts.tolist() == (HEADS * PRESENT.sum(-1).square()).tolist()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"counted": QUERIES.float()}, TypeError, "mask has dtype torch.float32, expected torch.bool"),
        ({"counted": QUERIES, "event_dim": 2}, ValueError, r"event_dim is 2, expected \[..., queries, 1\]"),
        ({"counted": KEYS}, ValueError, r"counted has shape \(3, 1, 1, 5\)"),
        ({"counted": PRESENT[0]}, ValueError, r"counted has shape \(5,\)"),
    ],
)
def test_wrong_layouts(options, error, message):
    with pytest.raises(error, match=message):
        Dense(**options)


def test_another_number_of_queries():
    attention = LatentAttention("a", make_prior("gamma_fixed"))
    with pytest.raises(ValueError, match=r"site 'a': mask of shape \(3, 1, 5, 1\) does not broadcast"):
        attention(
            torch.zeros(BATCH, HEADS, 4, LENGTH), torch.zeros(BATCH, HEADS, LENGTH, 2), layout=Dense(counted=QUERIES)
        )


def test_one_entry_for_all_queries():
    """It would count the queries as one."""
    with pytest.raises(ValueError, match=r"counted has shape \(3, 1, 1, 1\) for 5 queries, expected an entry"):
        LatentAttention("a", make_prior("gamma_fixed"))(
            torch.zeros(BATCH, HEADS, LENGTH, LENGTH),
            torch.zeros(BATCH, HEADS, LENGTH, 2),
            layout=Dense(counted=torch.ones(BATCH, 1, 1, 1, dtype=torch.bool)),
        )
