"""Schemes by name: parts that fit, that train, and that cannot be put together wrongly."""

import typing
from dataclasses import replace
from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from torch import nn

import pyro_attention
from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    LatentAttention,
    LogNormal,
    Marginal,
    ScoreFunctionELBO,
    ScorePrior,
    Weibull,
    WidthNetwork,
    elbo_for,
    scheme,
)
from pyro_attention.alignments.posteriors import GumbelSoftmax
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.schemes import Scheme, SchemeName, WeightsSchemeName

NAMES = [name for group in typing.get_args(SchemeName) for name in (typing.get_args(group) or (group,))]
WITH_NETWORK = ("categorical", "sparse_categorical", "categorical_sample", "gumbel", "wake_sleep", "iwae", "dirichlet")


class Lookup(nn.Module):
    """One query an item, each in the plate, which reads one of four numbers."""

    def __init__(self, prior):
        super().__init__()
        self.query, self.attention = nn.Linear(3, 3), LatentAttention("attention", prior)

    def scores(self, x, memory):
        return (memory @ self.query(x).unsqueeze(-1)).squeeze(-1).unsqueeze(-2)

    def forward(self, x, memory, y=None):
        keys, values = memory.unsqueeze(-3), memory[..., :1].unsqueeze(-3)
        with pyro.plate("data", len(x)):
            scores, layout = self.scores(x, memory), Dense(event_dim=2)
            mean = self.attention(scores, values, keys=keys, layout=layout).context.squeeze(-1).squeeze(-1)
            return pyro.sample("y", Normal(mean, 1.0), obs=y)


class Reader(nn.Module):
    """An inference network, which is called with the arguments of the model."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 3)

    def forward(self, x, memory, y):
        return (memory @ self.query(torch.cat([x, y.unsqueeze(-1)], -1)).unsqueeze(-1)).squeeze(-1).unsqueeze(-2)


BATCH = torch.randn(5, 3), torch.randn(5, 4, 3), torch.randn(5)


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_trains_what_it_is_made_of(name):
    torch.manual_seed(0)
    built = scheme(name)
    assert built.name == name
    assert built.amortized == (name in WITH_NETWORK)
    model, network = Lookup(built.prior(3, 1)), Reader() if built.amortized else None
    guide = built.guide(model, network)
    loss = built.objective(max_plate_nesting=1)(model, guide)
    loss(*BATCH).backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.query.parameters())
    if network is not None:
        assert network.query.weight.grad.abs().sum() > 0
    if name == "evidence":
        assert all(weight.grad is not None for weight in model.attention.prior.parameters())


def test_an_inference_network_has_the_arguments_of_the_model_however_they_are_passed():
    built = scheme("categorical")
    model, (x, memory, y) = Lookup(built.prior(3, 1)), BATCH
    loss = built.objective(max_plate_nesting=1)(model, built.guide(model, Reader()))
    torch.testing.assert_close(loss(x, memory, y=y), loss(x, memory, y))
    torch.testing.assert_close(loss(memory=memory, y=y, x=x), loss(x, memory, y))


def test_a_prior_is_made_for_every_layer_and_a_family_for_every_guide():
    built = scheme("weibull", learnable=True)
    assert built.prior(3, 1) is not built.prior(3, 1)
    first, second = built.guide(Lookup(built.prior(3, 1))), built.guide(Lookup(built.prior(3, 1)))
    assert not {*first.families.parameters()} & {*second.families.parameters()}


def test_a_scheme_draws_nothing_when_it_is_made():
    state = torch.get_rng_state()
    assert not scheme("weibull").is_of_alignments
    assert scheme("dirichlet").is_of_alignments
    assert torch.equal(torch.get_rng_state(), state)


OPTIONS = {
    "weibull": ({"concentration": 2.0, "prior": "fixed", "prior_rate": 3.0}, "Weibull(concentration=2.0)"),
    "lognormal": ({"scale": 0.7, "prior_scale": 3.0, "kl_weight": 0.5}, "LogNormal(scale=0.7)"),
    "sparse_categorical": ({"top_k": 2}, "SparseCategorical(k=2)"),
    "gumbel": ({"temperature": 0.3}, "GumbelSoftmax(temperature=0.3)"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_reach_their_part(name):
    options, family = OPTIONS[name]
    built = scheme(name, **options)
    assert str(built.family) == family
    assert isinstance(built.objective(), AlignmentELBO) or built.objective().kl_weight == options.get("kl_weight", 1.0)


def test_options_reach_prior_and_objective():
    prior = scheme("weibull", prior="fixed", prior_rate=3.0).prior(3, 1)
    assert isinstance(prior, FixedGammaPrior)
    assert prior.log_rate.exp().item() == pytest.approx(3)
    assert scheme("evidence", draws=3).objective().num_particles == 3
    assert scheme("iwae", particles=3).objective().num_particles == 3
    assert scheme("marginal", roulette=0.1).objective(max_plate_nesting=2).roulette == 0.1
    assert scheme("dirichlet", kl_weight=0.2).objective().kl_weight == 0.2
    assert scheme("gumbel", kl_weight=0.2).objective().kl_weight == 0.2
    assert scheme("categorical_sample", kl_weight=0.2).objective().kl_weight == 0.2
    assert scheme("sparse_marginal", top_k=2).prior(3, 1).k == 2
    for name in ("weibull", "gamma", "lognormal", "gaussian"):
        objective = scheme(name, kl_mean=True, kl_weight=0.2).objective()
        assert (objective.kl_mean, objective.kl_weight) == (True, 0.2)
        spread = "prior_rate" if name in ("weibull", "gamma") else "prior_scale"
        for kind in ("fixed", "contextual"):
            numbers = [
                buffer.exp().item()
                for _, buffer in scheme(name, prior=kind, **{spread: 3.0}).prior(3, 1).named_buffers()
            ]
            assert pytest.approx(3) in numbers
    widths = [scheme("evidence", family="gamma", width=width).prior(3, 2).family for width in ("network", "number")]
    assert isinstance(widths[0].network, WidthNetwork)
    assert isinstance(widths[1].log_value, nn.Parameter)


@pytest.mark.parametrize(("family", "expected"), [("lognormal", 0.5), ("weibull", 10.0), ("gamma", 10.0)])
@pytest.mark.parametrize("width", ["network", "number", "fixed"])
def test_widths_of_the_evidence_scheme_start_where_its_page_says(family, width, expected):
    """A lognormal's is a scale and the others' a concentration, so one number does not fit them all."""
    layer = LatentAttention("attention", scheme("evidence", family=family, width=width).prior(3, 1))
    trace = poutine.trace(layer).get_trace(torch.ones(1, 4, 3), torch.ones(1, 3, 2), keys=torch.ones(1, 3, 3))
    distribution = trace.nodes["attention"]["fn"]
    actual = distribution.scale if family == "lognormal" else distribution.concentration
    # A network's weights are random and move its output from its start.
    torch.testing.assert_close(actual, torch.full_like(actual, expected), rtol=0.3, atol=0)


REFUSED = {
    "name": (lambda: scheme("weibul"), ValueError, "unknown inference scheme 'weibul'; expected one of soft, weibull"),
    "option": (lambda: scheme("gumbel", scale=1.0), TypeError, "'gumbel' has no option 'scale'; its options: temper"),
    "prior": (lambda: scheme("weibull", prior="alignment"), ValueError, "prior is 'alignment', expected one of fixed"),
    "printed": (lambda: scheme("gaussian", prior="contextual_as_printed"), ValueError, "which the paper has for weib"),
    "number": (lambda: scheme("weibull", concentration=-1.0), ValueError, "concentration"),
    "family": (lambda: scheme("evidence", family="soft"), ValueError, "family is 'soft', expected one of lognormal"),
    "width": (lambda: scheme("evidence", width="learned"), ValueError, "width is 'learned', expected 'network'"),
    "network": (lambda: scheme("soft").guide(print, nn.Linear(1, 1)), ValueError, "network is given; leave network"),
    "no network": (lambda: scheme("gumbel").guide(print), ValueError, "network is missing; pass network="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_scheme_has_is_refused(case):
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()


WEIBULL, MARGINAL, EVIDENCE = scheme("weibull"), scheme("marginal"), scheme("evidence")
MISFITS = {
    "a family of weights over alignments": (WEIBULL, {"prior": MARGINAL.prior}, "Weibull fits priors of kind"),
    "alignments over weights": (WEIBULL, {"family": Categorical(), "objective": AlignmentELBO}, "fits priors of kind"),
    "sums by an objective of draws": (MARGINAL, {"objective": AttentionELBO}, "AttentionELBO does not train Marginal"),
    "a width that collapses": (EVIDENCE, {"objective": AttentionELBO}, "goes to zero under AttentionELBO"),
    "draws of a prior without scores": (EVIDENCE, {"prior": WEIBULL.prior}, "does not read the scores"),
    "draws of keys by sums": (scheme("hard_sample"), {"objective": AlignmentELBO}, "expected ScoreFunctionELBO or Imp"),
    "weights by an objective of alignments": (WEIBULL, {"objective": partial(ImportanceELBO, 2)}, "does not train"),
    "no prior": (WEIBULL, {"prior": lambda *_: None}, "expected a Prior"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_parts_that_do_not_fit_make_no_scheme(case):
    built, changes, message = MISFITS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        replace(built, **changes)


def test_parts_of_ones_own_that_fit_make_a_scheme():
    fixed = Scheme(
        name="mine", prior=lambda *_: ScorePrior(LogNormal(0.5)), family=FromPrior(), objective=AttentionELBO
    )
    assert fixed.guide(Lookup(fixed.prior(3, 1)))(*BATCH)["attention"].shape == (5, 1, 4)
    assert isinstance(replace(scheme("hard_sample"), objective=ImportanceELBO), Scheme)


MODEL = Lookup(FixedGammaPrior())


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        (FromPrior(), EvidenceELBO),
        ({"first": FromPrior(), "second": Weibull()}, EvidenceELBO),
        (Amortized(Reader(), LogNormal()), AttentionELBO),
        (Amortized(Reader(), Categorical(enumerate=False)), ScoreFunctionELBO),
        (Marginal(), AlignmentELBO),
    ],
)
def test_the_objective_of_a_guide_learns_what_the_guide_has(families, expected):
    assert type(elbo_for(AttentionGuide(MODEL, families))) is expected


def test_the_objective_of_a_guide_is_that_of_its_scheme():
    """Wherever one name of a scheme has that family; the others need options that a guide does not hold."""
    for name in NAMES:
        built = scheme(name)
        if name in ("wake_sleep", "iwae"):  # whose family is drawn keys
            continue
        assert type(elbo_for(built.family)) is type(built.objective()), name


def test_the_top_of_the_package():
    assert not hasattr(pyro_attention, "Softmax")
    assert {"Aligner", "bayesian", "check_coverage", "scheme", "AttentionCall"} <= {*dir(pyro_attention)}
    assert pyro_attention.bayesian.__module__ == "pyro_attention.bayesian_network"
    assert pyro_attention.Aligner.__module__ == "pyro_attention.aligner.aligner"
    assert pyro_attention.check_coverage.__module__ == "pyro_attention.analysis.coverage"
    with pytest.raises(AttributeError, match="module 'pyro_attention' has no attribute 'Wiebull'"):
        _ = pyro_attention.Wiebull
    assert [*typing.get_args(WeightsSchemeName)] == NAMES[: len(typing.get_args(WeightsSchemeName))]
    assert GumbelSoftmax(0.5).kind == AlignmentPrior.kind
