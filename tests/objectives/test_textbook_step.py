"""One training step equals a hand-written one of the textbook formulas, in S-space and with the same noise."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal

from models.gat import GAT
from pyro_attention import AttentionELBO, AttentionGuide, ContextualGammaPrior, LogNormal, Weibull
from pyro_attention.families.lognormal import ContextualLogNormalPrior
from pyro_attention.ops.noise import log_exponential
from tests.toy_models import GraphData, SelfAttention, Sequences

EULER = 0.577215664901532860606512090082
RATE, SCALE, KL_WEIGHT = 1.7, 0.8, 0.6

cases = pytest.mark.parametrize("family", ["weibull", "lognormal"])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make_prior(family, **options):
    """Factory of the contextual prior that goes with a family."""
    kind, strength = {
        "weibull": (ContextualGammaPrior, {"rate": RATE}),
        "lognormal": (ContextualLogNormalPrior, {"scale": SCALE}),
    }[family]
    return lambda key_dim, heads: kind(key_dim, heads, **strength, **options)


def make_family(family, value):
    """A learnable family; larger values are wider for LogNormal, narrower for Weibull."""
    return Weibull(value, learnable=True) if family == "weibull" else LogNormal(1 / value, learnable=True)


def weibull(soft, psi, valid, k):
    """Weibull posterior against Gamma(b psi, b): S and the sum of the KL over the valid entries."""
    gamma_function = torch.lgamma(1 + 1 / k).exp()
    scale = soft / gamma_function
    S = scale * log_exponential(soft.shape, dtype=soft.dtype).exp() ** (1 / k)
    lam, k, a, b = scale[valid], k.expand_as(soft)[valid], RATE * psi[valid], RATE
    kl = (
        EULER * a / k
        - a * lam.log()
        + k.log()
        + b * lam * gamma_function.expand_as(soft)[valid]
        - EULER
        - 1
        - a * math.log(b)
        + torch.lgamma(a)
    )
    return S, kl.sum()


def lognormal(soft, psi, valid, sigma):
    """LogNormal posterior against LogNormal(log psi, SCALE): S and the sum of the KL over the valid entries."""
    S = soft * torch.exp(sigma * torch.randn(soft.shape) - sigma**2 / 2)
    sigma = sigma.expand_as(soft)[valid]
    distance = soft[valid].log() - sigma**2 / 2 - psi[valid].log()
    return S, (torch.log(SCALE / sigma) + (sigma**2 + distance**2) / (2 * SCALE**2) - 0.5).sum()


def attend(family, scores, potential, valid, total, parameter):
    """Weights and KL; ``total`` sums over the keys of each query and spreads the sum to its entries."""

    def normalize(positive):
        return positive / total(positive)

    valid = valid.expand_as(scores)
    soft = normalize(scores.exp() * valid)
    psi = normalize(potential.exp().expand_as(scores) * valid)
    S, kl = {"weibull": weibull, "lognormal": lognormal}[family](soft, psi, valid, parameter)
    return normalize(S), kl


def potential(keys, weights, prefix):
    """The prior network of a layer on keys ``[..., heads, keys, width]``."""
    V, b, w = (
        next(value for key, value in weights.items() if key.startswith(prefix) and key.endswith(name))
        for name in ("hidden_weight", "hidden_bias", "output_weight")
    )
    return (F.relu(keys @ V + b) @ w).squeeze(-1)


def textbook_self_attention(family, weights, log_parameter, data, heads):
    """Loss of SelfAttention."""
    x, kl = data.x, 0.0
    valid = ~data.padding[:, None, None, :]
    for i in range(2):
        prefix = f"layers.{i}"
        q, k, v = (
            F.linear(x, weights[f"{prefix}.{n}_proj.weight"], weights[f"{prefix}.{n}_proj.bias"])
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for n in "qkv"
        )
        W, layer_kl = attend(
            family,
            torch.einsum("bhmd,bhnd->bhmn", q, k) / math.sqrt(q.size(-1)),
            potential(k, weights, f"{prefix}.attention.prior.").unsqueeze(-2),
            valid,
            lambda positive: positive.sum(-1, keepdim=True),
            log_parameter.exp().reshape(-1, 1, 1),
        )
        context = torch.einsum("bhmn,bhnd->bmhd", W, v).flatten(-2)
        x = x + F.linear(context, weights[f"{prefix}.out_proj.weight"], weights[f"{prefix}.out_proj.bias"])
        kl = kl + layer_kl
    mean = F.linear(x.mean(1), weights["out.weight"], weights["out.bias"]).squeeze(-1)
    return KL_WEIGHT * kl - Normal(mean, 1.0).log_prob(data.y).sum()


def textbook_gat(family, weights, log_parameter, data, edges, valid, heads):
    """Loss of GAT on the edges (sources, targets) that include the added self loops."""
    (source, target), x, kl = edges, data.features, 0.0
    nodes = x.size(0)

    def node_sum(values):
        return torch.zeros(nodes, *values.shape[1:]).index_add(0, target, values)

    for i in range(2):
        prefix = f"layers.{i}"
        z = F.linear(x, weights[f"{prefix}.lin_src.weight"]).unflatten(-1, (heads[i], -1))
        left, right = (z * weights[f"{prefix}.score.att_src"]).sum(-1), (z * weights[f"{prefix}.score.att_dst"]).sum(-1)
        W, layer_kl = attend(
            family,
            F.leaky_relu(left[source] + right[target], 0.2),
            potential(z.transpose(0, 1), weights, f"{prefix}.attention.prior.").T[source],
            valid,
            lambda positive: node_sum(positive)[target],
            log_parameter.exp(),
        )
        kl = kl + layer_kl
        context = node_sum(W.unsqueeze(-1) * z[source])
        x = (F.elu(context.flatten(1) + weights[f"{prefix}.bias"])) if i == 0 else context.mean(1)
    logits = x + weights["layers.1.bias"]
    nll = F.cross_entropy(logits[data.labeled], data.labels[data.labeled], reduction="sum")
    return nll + KL_WEIGHT * kl


def assert_same_step(model, family, arguments, textbook):
    """Loss and gradients of one step against ``textbook(weights, log_parameter)``, on copies of the parameters."""
    guide = AttentionGuide(model, family)
    torch.manual_seed(1)
    loss = AttentionELBO(kl_weight=KL_WEIGHT).differentiable_loss(model, guide, *arguments)
    loss.backward()
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    log_parameter = family.log_value.detach().clone().requires_grad_()
    torch.manual_seed(1)
    expected = textbook(weights, log_parameter)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-10)
    for name, value in [*model.named_parameters(), ("family", family.log_value)]:
        by_hand = log_parameter if name == "family" else weights[name]
        assert by_hand.grad is not None, name
        torch.testing.assert_close(value.grad, by_hand.grad, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    assert family.log_value.grad.abs().min() > 1e-3


@cases
@pytest.mark.parametrize("value", [5.0, [3.0, 8.0]], ids=["shared", "per_head"])
def test_dense_with_padding(family, value):
    data = Sequences.random(batch=4, length=6, width=8)
    assert data.padding.any()
    model = SelfAttention(8, heads=2, prior=make_prior(family))
    assert_same_step(
        model,
        make_family(family, torch.tensor(value)),
        (data.x, data.y, data.padding),
        lambda weights, log_parameter: textbook_self_attention(family, weights, log_parameter, data, heads=2),
    )


@cases
@pytest.mark.parametrize("padding", [0, 5])
def test_edge_list_with_masked_self_loop_and_padding(family, padding):
    """Padding: edges that the mask takes out, as in a batch of graphs of unequal sizes."""
    data = GraphData.random(seed=3)
    data = replace(data, edge_index=F.pad(data.edge_index, (0, padding)))
    data.edge_index[1, 16:] = 1
    loops = torch.arange(data.features.size(0))
    source, target = edges = torch.cat([data.edge_index, torch.stack([loops, loops])], dim=1)
    given = torch.arange(source.numel()) < source.numel() - loops.numel()
    valid = ~(given & (source == target))
    assert not valid.all()  # the graph holds a self loop of its own
    valid[16 : 16 + padding] = False
    graph = replace(data.graph, mask=valid.unsqueeze(-1))
    model = GAT(5, 3, hidden=4, heads=3, output_heads=2, dropout=0.0, prior=make_prior(family))
    assert_same_step(
        model,
        make_family(family, torch.tensor(4.0)),
        (data.features, graph, data.labels, data.labeled),
        lambda weights, log_parameter: textbook_gat(
            family, weights, log_parameter, data, edges, valid.unsqueeze(-1), heads=(3, 2)
        ),
    )


def test_the_page_of_a_hundred_lines():
    """Its step by hand and its step with the library end with the same parameters."""
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "hundred_lines.md").read_text()
    space = {"__name__": "page"}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M):
        exec(code, space)
    torch.testing.assert_close(space["loss"], space["loss_by_hand"], rtol=1e-12, atol=1e-10)
    by_hand = space["net"].state_dict()
    assert space["names"].keys() == by_hand.keys()
    for name, parameter in space["names"].items():
        torch.testing.assert_close(parameter.detach(), by_hand[name], rtol=0, atol=1e-10)
        assert (by_hand[name] - space["start"][name]).abs().max() > 1e-5, name
