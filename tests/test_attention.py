"""LatentAttention: what it samples, what it returns, which inputs it refuses, and how its sites are named."""

import copy
import pickle
from contextlib import ExitStack, nullcontext

import pyro
import pytest
import torch
from pyro import poutine
from pyro.contrib.autoname import scope
from pyro.distributions import Normal
from torch import nn
from torch.distributions import kl_divergence
from torch.utils.checkpoint import checkpoint

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    EdgeList,
    FixedGammaPrior,
    GraphAttention,
    LatentAttention,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.attention import name_sites
from tests.helpers import ALL_PAIRS, assert_mean, make_family, make_prior, posterior_and_prior
from tests.toy_models import KEYS, WIDTH


@pytest.fixture
def layer():
    return LatentAttention("encoder.0", FixedGammaPrior())


@pytest.fixture
def scores():
    return torch.randn(2, 3, KEYS)


@pytest.fixture
def values():
    return torch.randn(2, KEYS, WIDTH)


def test_soft_attention(layer, scores, values):
    """With Soft() the weights are the softmax of the scores, without a guide Pyro draws them from the prior."""
    output = AttentionGuide(lambda: layer(scores, values), Soft()).run().output
    torch.testing.assert_close(output.weights, scores.softmax(-1))
    torch.testing.assert_close(output.context, scores.softmax(-1) @ values)
    torch.testing.assert_close(layer(scores, values).weights, output.weights)  # without Pyro
    with poutine.trace():
        drawn = layer(scores, values)
    torch.testing.assert_close(drawn.weights.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(drawn.context, drawn.weights @ values)
    assert not drawn.weights.allclose(output.weights)
    with poutine.trace(), pyro.plate("batch", 7, dim=-1):  # unit batch dimensions need no plate
        assert layer(scores.expand(1, 7, -1, -1, -1), values).weights.shape == (1, 7, 2, 3, KEYS)
    wide = LatentAttention("attention", FixedGammaPrior(2.0, 5.0))
    trace = poutine.trace(wide).get_trace(torch.randn(1, 100, 100), torch.ones(1, 100, 2))
    assert_mean(trace.nodes["attention"]["value"].exp().flatten(), 2 / 5)


@pytest.mark.parametrize("around", ["site", "site and plate", "values"])
def test_gradient_checkpointing_is_refused_around_a_site(layer, scores, values, around):
    """Also where a plate or a mask is opened inside, so that there is a handler, but no guide."""
    scores.requires_grad_()
    weight = torch.eye(WIDTH, requires_grad=True)

    def inside_a_plate(phi):
        with pyro.plate("batch", 1), poutine.mask(mask=torch.ones(1, dtype=torch.bool)):
            return layer(phi, values).context

    def model():
        if around == "site":
            context = checkpoint(lambda phi: layer(phi, values).context, scores, use_reentrant=False)
        elif around == "site and plate":
            context = checkpoint(inside_a_plate, scores.unsqueeze(0), use_reentrant=False).squeeze(0)
        else:
            context = layer(scores, checkpoint(lambda w: values @ w, weight, use_reentrant=False)).context
        pyro.sample("y", Normal(context, 1.0).to_event(3), obs=torch.zeros_like(context))

    loss = AttentionELBO().differentiable_loss(model, AttentionGuide(model, Weibull()))
    if around != "values":
        with pytest.raises(RuntimeError, match=r"site 'encoder.0' is recomputed during backward.*deterministic parts"):
            loss.backward()
    else:
        loss.backward()
        assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("dtype", "autocast"), [(torch.bfloat16, True), (torch.float16, False)])
def test_half_precision(scores, values, autocast, dtype):
    """Scores in half precision, weights and KL in float32, context in the dtype of the values."""
    layer = LatentAttention("encoder.0", ContextualGammaPrior(WIDTH, heads=2))
    scores, values = scores.to(dtype), values.to(dtype)

    def model():
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            return layer(scores, values, keys=values)

    elbo, guide = AttentionELBO(), AttentionGuide(model, Weibull())
    output = guide.run().output
    assert (output.weights.dtype, output.context.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(output.weights.sum(-1), torch.ones(2, 3))
    elbo.loss(model, guide)
    assert elbo.kl_record["encoder.0"].dtype == torch.float32
    torch.testing.assert_close(AttentionGuide(model, Soft()).run().output.weights, scores.float().softmax(-1))


def test_autocast_leaves_the_prior_in_full_precision(scores, values):
    """Also what its network computes of the keys, a product of matrices."""
    layer, priors = LatentAttention("attention", ContextualGammaPrior(WIDTH, heads=2)), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            trace = poutine.trace(layer).get_trace(scores, values, keys=values)
        priors.append(trace.nodes["attention"]["fn"])
    plain, actual = ([getattr(prior, name) for name in prior.parameter_names] for prior in priors)
    torch.testing.assert_close(actual, plain, rtol=0, atol=0)


def test_queries_in_a_plate():
    """``event_dim=2``: scores [B, M, H, N] and values [B, 1, H, N, D], with a mask per query."""
    scores, values = torch.randn(2, 3, 2, KEYS), torch.randn(2, 1, 2, KEYS, WIDTH)
    mask = torch.ones(2, 3, 1, KEYS, dtype=torch.bool)
    mask[0, 1, :, 2:] = False
    layer = LatentAttention("attention", ContextualGammaPrior(WIDTH, heads=2))

    def model():
        with pyro.plate("batch", 2, dim=-2), pyro.plate("queries", 3, dim=-1):
            return layer(scores, values, keys=values, layout=Dense(mask, event_dim=2))

    posterior, _ = posterior_and_prior(AttentionGuide(model, Weibull()))
    assert (posterior.batch_shape, posterior.event_shape) == ((2, 3), (2, KEYS))
    output = AttentionGuide(model, Soft()).run().output
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    torch.testing.assert_close(output.weights, expected)
    torch.testing.assert_close(output.context, torch.einsum("bmhn,bhnd->bmhd", expected, values[:, 0]))

    def whole():  # the same numbers as one event per sequence
        with pyro.plate("batch", 2):
            keys = values[:, 0]
            return layer(scores.transpose(1, 2), keys, keys=keys, layout=Dense(mask.transpose(1, 2)))

    kls = [kl_divergence(*posterior_and_prior(AttentionGuide(each, Weibull()))).sum() for each in (model, whole)]
    torch.testing.assert_close(*kls)


def test_dropout_only_in_training_mode(scores):
    layer = LatentAttention("attention", FixedGammaPrior(), dropout=0.5)
    basis = torch.eye(KEYS).expand(2, -1, -1)
    guide = AttentionGuide(lambda: layer(scores, basis), Soft())
    output = guide.run().output
    dropped = output.context == 0
    assert 0.2 < dropped.float().mean() < 0.8
    torch.testing.assert_close(output.context, (2 * scores.softmax(-1)).masked_fill(dropped, 0))
    torch.testing.assert_close(output.weights, output.context)  # what is returned is what made the context
    layer.eval()
    torch.testing.assert_close(guide.run().output.context, scores.softmax(-1))


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("graph", [False, True], ids=["dense", "graph"])
def test_values_that_all_heads_share(layer, graph, batch):
    """One head of values for several of weights, with gradients: as if it were repeated."""
    scores, values = torch.randn(*batch, 2, 3, KEYS), torch.randn(*batch, 1, KEYS, WIDTH, requires_grad=True)
    layout = Dense()
    if graph:
        layout = EdgeList.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]]), num_nodes=KEYS)
        scores, values = torch.randn(*batch, 4, 2), torch.randn(*batch, KEYS, 1, WIDTH, requires_grad=True)
    shape = list(values.shape)
    shape[values.shape.index(1, len(batch))] = 2
    contexts = [layer(scores, part, layout=layout).context for part in (values, values.expand(shape))]
    found = [torch.autograd.grad(context.square().sum(), values) for context in contexts]
    torch.testing.assert_close((contexts[0], found[0]), (contexts[1], found[1]))


def test_what_a_layer_proposes_is_what_its_site_has(layer, scores, values):
    """A posterior family makes the same posterior of it, without Pyro."""
    site, _ = posterior_and_prior(AttentionGuide(lambda: layer(scores, values), Weibull(3.0)), site="encoder.0")
    call = layer.make_call(scores, layout=Dense())
    posterior = Weibull(3.0).posterior(call, layer.prior(call))
    torch.testing.assert_close(posterior.log_scale, site.log_scale, rtol=0, atol=0)


# queries that do not count: their layout gives the KL of a mask that hides their rows

LENGTH = 5
PRESENT = torch.arange(LENGTH) < torch.tensor([[5], [3], [1]])
PADDING, QUERIES = PRESENT[:, None, None, :], PRESENT[:, None, :, None]
MASKS = {"none": None, "padding": PADDING, "causal": PADDING & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()}
COUNTED = [(f, p) for f, p in ALL_PAIRS if not p.endswith("alignment") and f != "soft" and not p.endswith("fixed")]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("family", "prior"), [*COUNTED, ("weibull", "gamma_fixed")])
def test_queries_that_do_not_count(family, prior, mask):
    attention = LatentAttention("a", make_prior(prior), normalize_scores=mask != "padding")
    scores, keys = torch.randn(3, 2, LENGTH, LENGTH, requires_grad=True), torch.randn(3, 2, LENGTH, 3)
    counted = Dense(MASKS[mask], counted=QUERIES)
    masked = Dense(QUERIES.expand(3, 1, LENGTH, LENGTH) if mask == "none" else MASKS[mask] & QUERIES)
    posterior, value, found = make_family(family, 5.0), None, []
    for layout in (counted, masked):
        call = attention.make_call(scores, layout=layout, keys=keys)
        p = attention.prior(call)
        q = posterior.posterior(call, p)
        value = q.rsample().detach() if value is None else value
        kl = kl_divergence(q, p)
        inputs = [scores, *attention.prior.parameters()]
        of_kl = torch.autograd.grad(kl.sum(), inputs, allow_unused=True)
        found.append((kl, q.entropy(), q.log_prob(value), p.log_prob(value), of_kl))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert value[1, :, 3:].abs().sum() > 0  # the others are drawn, too
    if prior == "gamma_contextual" and mask == "padding":
        of_counted = attention.prior(attention.make_call(scores, layout=counted, keys=keys))
        assert of_counted.log_concentration.shape == (3, 2, 1, LENGTH)  # it stays small


# names: from the path of the layer, the same wherever the model is copied to, and never one for two


class Net(nn.Module):
    """Two layers without a name, one with."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(MultiheadAttention(4, 2) for _ in range(2))
        self.last = MultiheadAttention(4, 2, name="named")

    def forward(self, x):
        for layer in (*self.blocks, self.last):
            x = layer(x, x, x)[0]
        return x


NAMES = ["blocks.0", "blocks.1", "named"]


def sites(model):
    return list(AttentionGuide(model, Weibull())(torch.randn(3, 4)))


def test_names_of_a_module():
    net = Net()
    for model in (net, copy.deepcopy(net), net.forward, poutine.scale(net, scale=2.0), pickle.loads(pickle.dumps(net))):
        assert sites(model) == NAMES
    assert name_sites(net) == NAMES
    # as DistributedDataParallel and Lightning wrap it: paths start at the guide's model
    guide = AttentionGuide(net, {"blocks.*": Weibull(), "named": Weibull(3.0)})
    loss = copy.deepcopy(nn.ModuleDict({"module": AttentionELBO()(net, guide)}))["module"]
    loss(torch.randn(3, 4))
    assert list(loss.elbo.kl_record) == NAMES
    # whatever was done to the model since
    net.blocks[0] = MultiheadAttention(4, 2)
    assert name_sites(nn.ModuleDict({"inner": net.blocks[1]})) == ["inner"]
    assert list(guide(torch.randn(3, 4))) == NAMES
    for alone in (MultiheadAttention(4, 2), GraphAttention(4, 3)):  # a layer that is the model keeps its default name
        name_sites(nn.ModuleDict({"inner": alone}))
        assert name_sites(alone) == [alone.default_name]


@pytest.mark.parametrize(("name", "names"), [(None, ["0", "1"]), ("same", ["same", "same"])])
def test_two_layers_in_a_function_do_not_share_a_name(name, names):
    def model(x):
        for layer in net:
            layer(x, x, x)

    def twice(x):
        for step in range(2):
            with scope(prefix=f"step{step}"):
                x = net[0](x, x, x)[0]

    net = nn.ModuleList([MultiheadAttention(4, 2, name=name) for _ in range(2)])
    message = rf"site '{name or 'attention'}' is there twice in one run.*name_sites\(net\).*autoname\.scope"
    with pytest.raises(ValueError, match=message):
        sites(model)
    assert sites(twice) == [f"step{step}/{name or 'attention'}" for step in range(2)]
    assert name_sites(net) == names
    with pytest.raises(ValueError, match=message) if name else nullcontext():
        assert sites(model) == names


# what is refused, naming the site and what is wrong


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

    message = rf"site 'encoder.0': batch shape \({', '.join(map(str, shape))},?\) has no plate at dimension {dim}; wrap"
    for family in (Weibull(), Soft()):
        with pytest.raises(ValueError, match=message + rf".*pyro.plate\('data', {size}, dim={dim}\)"):
            AttentionELBO().loss(model, AttentionGuide(model, family))


@pytest.mark.parametrize(("event_dim", "shape", "dim"), [(3, (6, 5, 5), -3), (2, (6, 5), -2)])
def test_a_plate_that_the_scores_have_no_dimension_for(event_dim, shape, dim):
    """Where the heads were forgotten items are taken for heads, and every item would get the mean of all."""
    attention = LatentAttention("words", FixedGammaPrior())

    def model(scores, values):
        with pyro.plate("items", 6):
            return attention(scores, values, layout=Dense(event_dim=event_dim)).weights

    guide, scores, values = AttentionGuide(model, Weibull()), torch.zeros(shape), torch.ones(6, 5, 4)
    message = rf"site 'words': its scores have no dimension for plate 'items' of size 6; .*\(\.unsqueeze\({dim}\)\)"
    for elbo in (AttentionELBO(), AttentionELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)):
        with pytest.raises(ValueError, match=message):
            elbo.loss(model, guide, scores, values)
        elbo.loss(model, guide, scores.unsqueeze(dim), values.unsqueeze(-3))
        elbo.loss(model, guide, scores.unsqueeze(0), values)


EDGES = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
CONTEXTUAL = ContextualGammaPrior(WIDTH, heads=2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prior": Normal(0.0, 1.0)}, TypeError, r"prior is Normal\(.*\), expected a Prior such as FixedGammaPrior\("),
        ({"scores": torch.zeros(3, KEYS)}, ValueError, r"scores have shape \(3, 4\), expected"),
        ({"scores": torch.full((2, 3, KEYS), -torch.inf)}, ValueError, "24 of 24 scores .* instead of -inf scores"),
        ({"layout": Dense(torch.ones(2, 3, 3).bool())}, ValueError, r"mask of shape \(2, 3, 3\) does not broadcast"),
        ({"layout": EDGES}, ValueError, r"scores of shape \(2, 3, 4\) do not fit 2 edges"),
        ({"prior": CONTEXTUAL}, ValueError, "needs the keys: pass keys= to LatentAttention"),
        ({"prior": CONTEXTUAL, "keys": torch.zeros(2, KEYS, 3)}, ValueError, "keys have 2 heads of width 3"),
    ],
    ids=str,
)
def test_wrong_input(scores, values, change, error, message):
    arguments = {"prior": FixedGammaPrior(), "scores": scores, "values": values, **change}
    with pytest.raises(error, match=message if "keys" in message else f"site 'z': .*{message}"):
        LatentAttention("z", arguments.pop("prior"))(arguments.pop("scores"), arguments.pop("values"), **arguments)


def test_scores_are_not_checked_without_validation(layer, scores, values):
    """The check waits for the device; torch's switch turns it off."""
    scores[0, 0, 0] = float("nan")
    with pyro.validation_enabled(False), poutine.trace():
        assert layer(scores, values).weights.isfinite().all()  # drawn from the prior


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Dense(torch.ones(3)), TypeError, r"mask has dtype torch.float32, expected torch.bool with True = may"),
        (lambda: Dense(counted=QUERIES, event_dim=2), ValueError, r"event_dim is 2, expected \[..., queries, 1\]"),
        (lambda: Dense(counted=PADDING), ValueError, r"counted has shape \(3, 1, 1, 5\)"),
        (lambda: MultiheadAttention(4, 2, dropout=1.0), ValueError, r"^dropout is 1.0, expected a probability in \[0"),
    ],
)
def test_wrong_options(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_integer_values(layer, scores, values):
    """Weights in their type would all be zero."""
    with pytest.raises(TypeError, match=r"site 'encoder.0': values are of type torch\.int64"):
        layer(scores, values.long())
