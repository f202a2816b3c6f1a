"""Which inputs LatentAttention refuses, naming the site and what is wrong."""

from contextlib import ExitStack

import pyro
import pytest
import torch

from pyro_attention import (
    AttentionGuide,
    Dense,
    EdgeList,
    FixedGammaPrior,
    GraphAttention,
    LatentAttention,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.families.base import PRIORS, Prior
from tests.toy_models import KEYS, WIDTH


@pytest.mark.parametrize(
    ("prior", "shown"),
    [
        (pyro.distributions.Gamma(1.0, 1.0), r"Gamma\(.*\)"),
        (torch.distributions.LogNormal(0.0, 1.0), r"LogNormal\(.*\)"),
        (FixedGammaPrior, "<class '.*FixedGammaPrior'>"),
        ("gamma_fixed", "'gamma_fixed'"),
        (None, "None"),
    ],
    ids=["pyro", "torch", "class", "name", "none"],
)
def test_what_is_no_prior(prior, shown):
    message = rf"site 'z': prior is {shown}, expected a Prior such as FixedGammaPrior\(concentration=1.0, rate=1.0\)"
    with pytest.raises(TypeError, match=message):
        LatentAttention("z", prior)
    assert isinstance(LatentAttention("z", PRIORS["gamma_fixed"]()).prior, FixedGammaPrior)


@pytest.mark.parametrize(
    ("shape", "plates", "dim", "size"),
    [((7,), [], -1, 7), ((5, 7), [("b", 7, -1)], -2, 5), ((5, 7), [("a", 5, -2)], -1, 7)],
    ids=str,
)
def test_batch_dimension_without_plate(layer, scores, values, shape, plates, dim, size):
    def model():
        with ExitStack() as stack:
            for name, length, at in plates:
                stack.enter_context(pyro.plate(name, length, dim=at))
            layer(scores.expand(*shape, -1, -1, -1), values)

    message = (
        rf"site 'encoder.0': batch shape \({', '.join(map(str, shape))},?\) has no plate at dimension {dim}; wrap the "
        rf"call, for example `with pyro.plate\('data', {size}, dim={dim}\):`"
    )
    for run in (pyro.poutine.trace(model), AttentionGuide(model, Weibull()), AttentionGuide(model, Soft())):
        with pytest.raises(ValueError, match=message):
            run()


@pytest.mark.parametrize(("event_dim", "shape", "dim"), [(3, (6, 5, 5), -3), (2, (6, 5), -2)])
def test_a_plate_that_the_scores_have_no_dimension_for(event_dim, shape, dim):
    """Where the heads were forgotten items are taken for heads, and every item would get the mean of all."""
    attention = LatentAttention("words", FixedGammaPrior())

    def model(scores, values):
        with pyro.plate("items", 6):
            return attention(scores, values, layout=Dense(event_dim=event_dim)).weights

    guide, scores, values = AttentionGuide(model, Weibull()), torch.zeros(shape), torch.ones(6, 5, 4)
    message = rf"site 'words': its scores have no dimension for plate 'items' of size 6; .*\(\.unsqueeze\({dim}\)\)"
    with pyro.plate("particles", 3, dim=-2):  # which comes from outside, and may repeat a site
        with pytest.raises(ValueError, match=message):
            guide(scores, values)
        assert guide.run(scores.unsqueeze(dim), values.unsqueeze(-3)).output.shape[:3] == (3, 6, 1)
        shared = guide.run(scores.unsqueeze(0), values).output
    assert shared.shape[:3] == (3, 6, 6)


edges = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
meta = torch.ones(KEYS, dtype=torch.bool, device="meta")
boolean = torch.ones(2, 3, KEYS, dtype=torch.bool)


def extreme(value):
    return {"scores": torch.tensor([1.0, 2.0, 3.0, value]).expand(2, 3, -1)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(
            {"scores": torch.zeros(2, 3, KEYS, dtype=torch.int64)}, TypeError, "scores have dtype", id="integer scores"
        ),
        pytest.param(
            {"scores": torch.zeros(3, KEYS)},
            ValueError,
            r"scores of shape \(3, 4\) have fewer than 3",
            id="two dimensions",
        ),
        pytest.param(extreme(float("nan")), ValueError, "6 of 24 scores are NaN or infinite", id="nan"),
        pytest.param(extreme(float("inf")), ValueError, "6 of 24 scores are NaN or infinite", id="inf"),
        pytest.param(
            extreme(float("-inf")), ValueError, "6 of 24 scores .* by a mask instead of -inf scores", id="-inf"
        ),
        pytest.param(
            {"layout": Dense(boolean[..., 1:])},
            ValueError,
            r"mask of shape \(2, 3, 3\) does not broadcast",
            id="narrow mask",
        ),
        pytest.param(
            {"layout": Dense(boolean.expand(6, -1, -1, -1))}, ValueError, "mask of shape", id="mask with a batch"
        ),
        pytest.param(
            {"layout": Dense(meta)},
            ValueError,
            r"masks are on meta, scores on cpu; .*.to\('cpu'\)",
            id="mask elsewhere",
        ),
        pytest.param({"layout": edges}, ValueError, r"scores of shape \(2, 3, 4\) do not fit 2 edges", id="edges"),
        pytest.param({"values": torch.zeros(2, KEYS + 1, WIDTH)}, ValueError, "values", id="long values"),
        pytest.param({"values": torch.zeros(3, KEYS, WIDTH)}, ValueError, "values", id="heads of values"),
        pytest.param(
            {"values": torch.zeros(2, KEYS, WIDTH, dtype=torch.int64)}, TypeError, "values", id="integer values"
        ),
        pytest.param(
            {"values": torch.zeros(2, KEYS, WIDTH, device="meta")}, ValueError, "values", id="values elsewhere"
        ),
    ],
)
def test_wrong_input(layer, scores, values, change, error, message):
    arguments = {"scores": scores, "values": values, **change}
    with pytest.raises(error, match=f"site 'encoder.0': .*{message}"):
        layer(arguments.pop("scores"), arguments.pop("values"), **arguments)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (None, "needs the keys: pass keys= to LatentAttention"),
        (torch.zeros(2, KEYS, 3), "keys have .*width"),
        (torch.zeros(3, KEYS, WIDTH), "keys have .*heads"),
        (torch.zeros(2, KEYS + 1, WIDTH), "keys have"),
        (torch.zeros(KEYS, WIDTH), "keys have"),
    ],
    ids=["none", "width", "heads", "number", "dimensions"],
)
def test_wrong_keys(contextual, scores, values, keys, message):
    with pytest.raises(ValueError, match=message):
        contextual(scores, values, keys=keys)


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(3, dtype=torch.int64)], ids=["float", "integer"])
def test_mask_that_is_not_boolean(mask):
    with pytest.raises(TypeError, match=r"mask has dtype torch.\w+, expected torch.bool with True = may attend"):
        Dense(mask)


def test_scores_are_not_checked_without_validation(layer, scores, values):
    """The check waits for the device; torch's switch turns it off."""
    scores[0, 0, 0] = float("nan")
    with pyro.validation_enabled(False), pyro.poutine.trace():
        assert layer(scores, values).weights.isfinite().all()  # drawn from the prior


LAYERS = {
    "latent": lambda **options: LatentAttention("attention", FixedGammaPrior(), **options),
    "multihead": lambda **options: MultiheadAttention(4, 2, **options),
    "graph": lambda **options: GraphAttention(4, 2, **options),
}


@pytest.mark.parametrize(("make", "name"), [*((kind, "dropout") for kind in LAYERS), ("graph", "value_dropout")])
@pytest.mark.parametrize(
    ("dropout", "error"),
    [(7, ValueError), (-0.1, ValueError), (1.0, ValueError), (float("nan"), ValueError), ("0.5", TypeError),
     (None, TypeError), (True, TypeError)],
    ids=str,
)  # fmt: skip
def test_wrong_dropout(make, name, dropout, error):
    with pytest.raises(error, match=rf"^{name} is .*, expected a probability in \[0, 1\)"):
        LAYERS[make](**{name: dropout})


def test_a_dropout_that_is_set_later(scores, values):
    layer = LatentAttention("attention", FixedGammaPrior())
    layer.dropout.p = 7
    with pytest.raises(ValueError, match="dropout is 7, expected a probability"):
        layer(scores, values)
    layer.eval()(scores, values)


def test_a_prior_network_of_another_distribution(scores, values):
    class Plain(Prior):
        def forward(self, scores, keys, layout):
            return pyro.distributions.Normal(scores, 1.0).to_event(3)

    with pytest.raises(TypeError, match=r"'attention': the prior network Plain returned a Independent, expected"):
        LatentAttention("attention", Plain())(scores, values)
