"""LatentAttention: what it samples, what it returns, and which inputs it refuses."""

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.nn import PyroModule
from torch.utils.checkpoint import checkpoint

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    EdgeList,
    FixedGammaPrior,
    LatentAttention,
    Soft,
    Weibull,
)
from tests.helpers import assert_mean
from tests.toy_models import KEYS, WIDTH, FreeScores, attention_values


def test_soft_attention(layer, scores, values):
    """With Soft() the weights are the softmax of the scores, without a guide Pyro draws them from the prior."""
    guide = AttentionGuide(lambda: layer(scores, values), Soft())
    output = guide.run().output
    torch.testing.assert_close(output.weights, scores.softmax(-1))
    torch.testing.assert_close(output.context, scores.softmax(-1) @ values)
    assert output.self_loop_weights is None
    with pyro.poutine.trace():
        drawn = layer(scores, values)
    torch.testing.assert_close(drawn.weights.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(drawn.context, drawn.weights @ values)
    assert not drawn.weights.allclose(output.weights)


def test_unit_batch_dimensions_need_no_plate(layer, scores, values):
    with pyro.poutine.trace(), pyro.plate("batch", 7, dim=-1):
        assert layer(scores.expand(1, 7, -1, -1, -1), values).weights.shape == (1, 7, 2, 3, KEYS)


@pytest.mark.parametrize("around", ["site", "values"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_is_refused_around_a_site(layer, scores, values, use_reentrant, around):
    scores.requires_grad_()
    weight = torch.eye(WIDTH, requires_grad=True)

    def model():
        if around == "site":
            context = checkpoint(lambda phi: layer(phi, values).context, scores, use_reentrant=use_reentrant)
        else:
            context = layer(scores, checkpoint(lambda w: values @ w, weight, use_reentrant=use_reentrant)).context
        pyro.sample("y", Normal(context, 1.0).to_event(3), obs=torch.zeros_like(context))

    loss = AttentionELBO().differentiable_loss(model, AttentionGuide(model, Weibull()))
    if around == "site":
        with pytest.raises(RuntimeError, match=r"site 'encoder.0' is recomputed during backward.*deterministic parts"):
            loss.backward()
    else:
        loss.backward()
        assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(contextual, scores, values, autocast, dtype):
    """Scores in half precision, weights and KL in float32, context in the dtype of the values."""
    scores, values = scores.to(dtype), values.to(dtype)

    def model():
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            return contextual(scores, values, keys=values)

    elbo, guide = AttentionELBO(), AttentionGuide(model, Weibull())
    output = guide.run().output
    assert (output.weights.dtype, output.context.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(output.weights.sum(-1), torch.ones(2, 3))
    elbo.loss(model, guide)
    assert elbo.kl_record["encoder.0"].dtype == torch.float32
    soft = AttentionGuide(model, Soft()).run().output
    torch.testing.assert_close(soft.weights, scores.float().softmax(-1))


def test_queries_in_a_plate(scores, values):
    """``event_dim=2``: scores [B, M, H, N] and values [B, 1, H, N, D], with a mask per query."""
    scores, values = torch.randn(2, 3, 2, KEYS), torch.randn(2, 1, 2, KEYS, WIDTH)
    mask = torch.ones(2, 3, 1, KEYS, dtype=torch.bool)
    mask[0, 1, :, 2:] = False
    layer = LatentAttention("attention", ContextualGammaPrior(WIDTH, heads=2))

    def model(event_dim):
        with pyro.plate("batch", 2, dim=-2), pyro.plate("queries", 3, dim=-1):
            return layer(scores, values, keys=values, layout=Dense(mask, event_dim=event_dim))

    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO()
    (posterior, value), = attention_values(guide, 2).values()  # fmt: skip
    assert (posterior.batch_shape, posterior.event_shape, value.shape) == ((2, 3), (2, KEYS), (2, 3, 2, KEYS))
    assert elbo.loss(model, guide, 2) > 0
    output = AttentionGuide(model, Soft()).run(2).output
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    torch.testing.assert_close(output.weights, expected)
    torch.testing.assert_close(output.context, torch.einsum("bmhn,bhnd->bmhd", expected, values[:, 0]))
    # the same numbers as one event per sequence
    dense = LatentAttention("attention", layer.prior)

    def whole():
        with pyro.plate("batch", 2):
            keys = values[:, 0]
            return dense(scores.transpose(1, 2), keys, keys=keys, layout=Dense(mask.transpose(1, 2)))

    other = AttentionELBO()
    other.loss(whole, AttentionGuide(whole, Weibull()))
    torch.testing.assert_close(other.kl_record, elbo.kl_record)


def test_raw_scores_give_the_same_weights(values):
    """The weights are the same for the same noise; only the KL differs."""
    scores, drawn, kls = 2 * torch.randn(2, 3, KEYS), [], []
    for normalize_scores in (True, False):
        layer = LatentAttention("attention", FixedGammaPrior(), normalize_scores=normalize_scores)
        guide, elbo = AttentionGuide(lambda layer=layer: layer(scores, values), Weibull(3.0)), AttentionELBO()
        torch.manual_seed(0)
        drawn.append(guide.run().output.weights)
        elbo.loss(guide.model, guide)
        kls.append(elbo.kl_record["attention"].item())
        log_mean = attention_values(guide)["attention"][0].log_expected_weight
        torch.testing.assert_close(log_mean, scores.log_softmax(-1) if normalize_scores else scores)
    torch.testing.assert_close(*drawn)
    assert kls[1] != pytest.approx(kls[0], rel=0.1)


def test_prior_is_what_pyro_samples_without_a_guide():
    layer = LatentAttention("attention", FixedGammaPrior(2.0, 5.0))
    trace = pyro.poutine.trace(layer).get_trace(torch.randn(1, 100, 100), torch.ones(1, 100, 2))
    assert_mean(trace.nodes["attention"]["value"].exp().flatten(), 2 / 5)


@pytest.mark.parametrize("as_module", [False, True])
def test_plain_function_and_pyro_module(layer, scores, values, as_module):
    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def forward(self):
            return self.attention(scores, values).weights

    model = Model() if as_module else lambda: layer(scores, values).weights
    torch.testing.assert_close(AttentionGuide(model, Soft()).run().output, scores.softmax(-1))


def test_dropout_only_in_training_mode(scores, values):
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


def test_free_scores_use_their_mask():
    """Guards the toy model: its layout reaches the layer."""
    mask = torch.tensor([True, True, False, True])
    model = FreeScores(FixedGammaPrior(), layout=Dense(mask))
    assert (AttentionGuide(model, Weibull()).run().output[..., 2] == 0).all()


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("graph", [False, True], ids=["dense", "graph"])
def test_values_that_all_heads_share(graph, batch):
    """One head of values for several of weights, with gradients: as if it were repeated."""
    layer, layout = LatentAttention("attention", FixedGammaPrior()), Dense()
    scores, values = torch.randn(*batch, 2, 3, KEYS), torch.randn(*batch, 1, KEYS, WIDTH, requires_grad=True)
    if graph:
        layout = EdgeList.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]]), num_nodes=KEYS)
        scores, values = torch.randn(*batch, 4, 2), torch.randn(*batch, KEYS, 1, WIDTH, requires_grad=True)
    shape = list(values.shape)
    shape[values.shape.index(1, len(batch))] = 2
    contexts = [layer(scores, part, layout=layout).context for part in (values, values.expand(shape))]
    gradients = [torch.autograd.grad(context.square().sum(), values) for context in contexts]
    torch.testing.assert_close((contexts[0], gradients[0]), (contexts[1], gradients[1]))


def test_what_a_layer_proposes_is_what_its_site_has(layer, scores, values):
    """A posterior family makes the same posterior of it, without Pyro."""
    guide = AttentionGuide(lambda: layer(scores, values), Weibull(3.0))
    site = guide.run().trace.nodes["encoder.0"]
    posterior = Weibull(3.0).posterior(layer.propose(scores, None, Dense()))
    torch.testing.assert_close(posterior.log_scale, site["fn"].log_scale, rtol=0, atol=0)
    assert posterior.full_shape == site["value"].shape
