"""Draws below Pyro's handlers: calls are looked at apart where other sites are named."""

import warnings
from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FromPrior,
    LatentAttention,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    ScorePrior,
)
from pyro_attention.draws import BroadcastWarning, kind_of_handlers
from pyro_attention.guide import DRAWS
from tests.test_draws import FROM_THE_LEFT, FROM_THE_RIGHT, ITEMS, KEYS, WIDTH, Pooling, plain_bound, seeded


class TwoSites(Pooling):
    """The context of "attention" is read by the head, that of "also" is counted from the right."""

    def __init__(self, head):
        super().__init__(head)
        self.also = LatentAttention("also", ScorePrior(LogNormal(0.8)))

    def forward(self):
        with pyro.plate("data", len(self.y)):
            first = self.head(self.attention(self.scores, self.values).context)
            mean = first + self.also(self.scores, self.values).context.sum((-3, -2, -1))
            pyro.sample("y", Normal(mean, 0.7), obs=self.y)


def hiding(name):
    return poutine.block(hide_fn=lambda site: site["name"] == name)


def exposing(name):
    return poutine.block(expose_fn=lambda site: site["name"] != name)


def hiding_by_default(name):
    return poutine.block(hide_fn=lambda site, hidden=name: site["name"] == hidden)


def given(name):
    return poutine.condition(data={name: torch.zeros(ITEMS, 1, 1, KEYS)})


def replayed(name):
    trace = poutine.trace(lambda: pyro.sample(name, Normal(0.0, 1.0).expand([ITEMS, 1, 1, KEYS]).to_event(3)))
    return poutine.replay(trace=trace.get_trace())


# Two handlers of one type: below the first the draws of TwoSites share a pass, and below the second they do not.
BELOW_HANDLERS = {
    "hide": (poutine.block(hide=["none"]), poutine.block(hide=["attention"]), FROM_THE_RIGHT["index"]),
    "expose": (
        poutine.block(expose=["attention", "also", "y", "data"]),
        poutine.block(expose=["also", "y", "data"]),
        FROM_THE_RIGHT["index"],
    ),
    "hide_fn": (hiding("none"), hiding("attention"), FROM_THE_RIGHT["index"]),
    "expose_fn": (exposing("none"), exposing("attention"), FROM_THE_RIGHT["index"]),
    "default": (hiding_by_default("none"), hiding_by_default("attention"), FROM_THE_RIGHT["index"]),
    "condition": (given("attention"), given("also"), FROM_THE_LEFT["index"]),
    "replay": (replayed("none"), replayed("attention"), FROM_THE_RIGHT["index"]),
}


@pytest.mark.parametrize(("first", "second", "head"), BELOW_HANDLERS.values(), ids=BELOW_HANDLERS)
def test_handlers_of_one_type_are_told_apart_by_their_sites(first, second, head):
    """A site that the second one hides from the plate had one value for all draws, as the first one hides none."""
    elbo, model, fresh = plain_bound(16, max_plate_nesting=1), TwoSites(head), TwoSites(head)
    guide, fresh_guide = AttentionGuide(model, FromPrior()), AttentionGuide(fresh, FromPrior())
    with warnings.catch_warnings():
        warnings.simplefilter("error", BroadcastWarning)
        elbo.loss(model, first(guide))
    loss = seeded(lambda: elbo.loss(model, second(guide)))
    assert loss == seeded(lambda: elbo.loss(fresh, second(fresh_guide)))


def test_handlers_around_the_call_are_told_apart_by_their_sites():
    first, second, head = BELOW_HANDLERS["condition"]
    model = TwoSites(head)
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(16, max_plate_nesting=1)
    with first, warnings.catch_warnings():
        warnings.simplefilter("error", BroadcastWarning)
        elbo.loss(model, guide)
    with second, pytest.warns(BroadcastWarning):
        elbo.loss(model, guide)


def test_handlers_around_enumerated_alignments_are_told_apart_by_their_sites():
    attention, also = (LatentAttention(name, AlignmentPrior()) for name in ("attention", "also"))
    scores, values, y = torch.randn(ITEMS, 1, KEYS), torch.randn(ITEMS, 1, KEYS, WIDTH), torch.randn(ITEMS)

    def model():
        with pyro.plate("data", ITEMS):
            first = FROM_THE_LEFT["index"](attention(scores, values, layout=Dense(event_dim=2)).context.unsqueeze(-2))
            second = also(scores, values, layout=Dense(event_dim=2)).context.sum((-2, -1))
            pyro.sample("y", Normal(first + second, 0.7), obs=y)

    guide, elbo = AttentionGuide(model, Marginal()), AlignmentELBO(max_plate_nesting=1)
    keys = torch.zeros(ITEMS, dtype=torch.long)
    elbo.loss(model, poutine.condition(guide, data={"attention": keys}))
    with pytest.raises(ValueError, match="does not broadcast over alignments that are enumerated"):
        elbo.loss(model, poutine.condition(guide, data={"also": keys}))


def test_handlers_that_name_the_same_sites_are_looked_at_once():
    """Also handlers that are made anew for every call, around which the numbers are others."""
    model, runs = TwoSites(FROM_THE_RIGHT["index"]), []
    model.attention.register_forward_hook(lambda *_: runs.append(1))
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(3, max_plate_nesting=1)
    for make in (hiding, exposing, hiding_by_default, given):
        elbo.loss(model, make("none")(guide))
        runs.clear()
        elbo.loss(model, make("none")(guide))
        assert len(runs) == 1


def test_a_function_of_a_handler_may_call_itself():
    def hides(site, parents=1):
        return hides(site, 0) if parents else False

    model = TwoSites(FROM_THE_RIGHT["index"])
    guide, elbo = AttentionGuide(model, FromPrior()), plain_bound(3, max_plate_nesting=1)
    elbo.loss(model, poutine.block(guide, hide_fn=hides))


def test_a_partial_function_has_no_handlers_with_settings():
    assert kind_of_handlers(partial(pow, 2, abs)) == kind_of_handlers(partial(pow, 3, abs))


OBJECTIVES = {
    "evidence": (lambda: plain_bound(3, max_plate_nesting=1), FromPrior()),
    "particles": (
        lambda: AttentionELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1),
        LogNormal(0.5),
    ),
    "alignments": (lambda: AlignmentELBO(max_plate_nesting=1), Marginal()),
    "drawn alignments": (ScoreFunctionELBO, Categorical(enumerate=False)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_tracer_around_the_first_call_records_the_run_that_counts(name):
    """Not replays, nor the run of a baseline."""
    make, family = OBJECTIVES[name]
    model = Pooling(FROM_THE_RIGHT["index"], alignment="alignments" in name)
    guide, elbo = AttentionGuide(model, family), make()
    for _ in range(2):  # the first call is replayed
        torch.manual_seed(0)
        with poutine.trace() as tracer:
            loss = elbo.loss(model, guide)
        assert [site for site in tracer.trace.nodes if site != DRAWS] == ["data", "attention", "y"]
    torch.manual_seed(0)
    assert elbo.loss(model, guide) == loss
