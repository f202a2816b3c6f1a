"""Models of torch.nn and torchvision made Bayesian in place, and made deterministic again."""

import copy
from functools import partial

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import nn
from torchvision.models import VisionTransformer

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualLogNormalPrior,
    LogNormal,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
    name_sites,
    sample_posterior,
)
from pyro_attention.integrations.torch_nn import bayesian, deterministic

BATCH, LENGTH, MEMORY, WIDTH, HEADS = 3, 5, 4, 8, 2
PADDING = torch.arange(LENGTH) >= torch.tensor([[5], [3], [2]])
MEMORY_PADDING = torch.arange(MEMORY) >= torch.tensor([[4], [1], [2]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
quiet = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True, but self.use_nested_tensor"
)


def sizes(batch_first):
    return {
        "nhead": HEADS,
        "dim_feedforward": 16,
        "dropout": 0.0,
        "batch_first": batch_first,
    }


def make_encoder(batch_first=True, **options):
    layer = nn.TransformerEncoderLayer(WIDTH, **sizes(batch_first), **options)
    return nn.TransformerEncoder(layer, 2)


def make_decoder(batch_first=True):
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, **sizes(batch_first)), 2)


def make_transformer(batch_first=True):
    return nn.Transformer(WIDTH, num_encoder_layers=2, num_decoder_layers=1, **sizes(batch_first))


def make_vit():
    vit = VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=16, num_classes=3
    )
    nn.init.normal_(vit.heads.head.weight)  # zero in a fresh one
    return vit


def source(batch_first=True):
    return torch.randn(BATCH, LENGTH, WIDTH) if batch_first else torch.randn(LENGTH, BATCH, WIDTH)


def memory(batch_first=True):
    return torch.randn(BATCH, MEMORY, WIDTH) if batch_first else torch.randn(MEMORY, BATCH, WIDTH)


def encoder_case(batch_first, **options):
    return make_encoder(batch_first), (source(batch_first),), options


def decoder_case(batch_first):
    masks = {"tgt_mask": CAUSAL, "tgt_key_padding_mask": PADDING.float().masked_fill(PADDING, -torch.inf)}
    inputs = source(batch_first), memory(batch_first)
    return make_decoder(batch_first), inputs, {**masks, "memory_key_padding_mask": MEMORY_PADDING}


def transformer_case(batch_first):
    inputs, masks = (memory(batch_first), source(batch_first)), {"src_key_padding_mask": MEMORY_PADDING}
    return make_transformer(batch_first), inputs, {**masks, "memory_key_padding_mask": MEMORY_PADDING}


ENCODER = [f"layers.{i}.self_attn" for i in range(2)]
DECODER = [f"layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn")]
TRANSFORMER = [f"encoder.{name}" for name in ENCODER] + [f"decoder.{name}" for name in DECODER[:2]]
CASES = {
    f"{name}, {'batch' if batch_first else 'length'} first": (partial(case, batch_first), sites)
    for batch_first in (True, False)
    for name, case, sites in [
        ("encoder", encoder_case, ENCODER),
        ("padded encoder", partial(encoder_case, src_key_padding_mask=PADDING), ENCODER),
        ("causal encoder", partial(encoder_case, mask=CAUSAL, is_causal=True), ENCODER),
        ("decoder", decoder_case, DECODER),
        ("transformer", transformer_case, TRANSFORMER),
    ]
}
CASES["vision transformer"] = (
    lambda: (make_vit(), (torch.randn(BATCH, 3, 8, 8),), {}),
    [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(2)],
)


def in_plate(model):
    """A model function of a module, with the plate that the module does not know of."""

    def run(*args, **kwargs):
        with pyro.plate("batch", BATCH, dim=-1):
            return model(*args, **kwargs)

    return run


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@quiet
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("gradient", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_stay_the_same(case, training, gradient):
    """Also where torch would run its fused kernels: in evaluation mode without gradients."""
    make, sites = CASES[case]
    theirs, args, kwargs = make()
    theirs.train(training)
    mine = bayesian(copy.deepcopy(theirs))
    assert mine.training == training
    with torch.set_grad_enabled(gradient):
        expected, alone = theirs(*args, **kwargs), mine(*args, **kwargs)
        run = AttentionGuide(in_plate(mine), Soft()).run(*args, **kwargs)
    kept = slice(None)
    if case.startswith("padded"):  # torch's kernel gives zeros at the other positions
        kept = ~PADDING if "batch" in case else ~PADDING.T
    assert_same(alone[kept], expected[kept])
    assert_same(run.output[kept], expected[kept])
    assert [name for name, site in run.trace.nodes.items() if "prior" in (site.get("infer") or {})] == sites


@quiet
@pytest.mark.parametrize("case", CASES)
def test_the_way_back(case):
    """The original has the numbers and the names of its state; torch may nest its input again."""
    theirs, args, kwargs = CASES[case][0]()
    theirs.eval()
    mine = copy.deepcopy(theirs)
    assert deterministic(bayesian(mine)) is mine
    assert repr(mine) == repr(theirs)
    torch.testing.assert_close(weights(mine), weights(theirs), rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(mine(*args, **kwargs), theirs(*args, **kwargs))


class Regression(nn.Module):
    """A number for each sequence, from a network that knows nothing of Pyro."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, y=None):
        with pyro.plate("batch", BATCH, dim=-1):
            hidden = self.network(x, src_key_padding_mask=PADDING).sum(-1)
            mean = hidden.mean(-1 if self.network.layers[0].self_attn.batch_first else -2)
            pyro.sample("y", Normal(mean, 1.0), obs=y)
        return mean


@quiet
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("prior", "family"),
    [
        ("gamma_contextual", Weibull(10.0)),
        ("lognormal_contextual", LogNormal(0.2)),
        (ContextualLogNormalPrior, LogNormal(0.2)),
        (partial(ContextualLogNormalPrior, scale=0.5), LogNormal(0.2)),
    ],
    ids=["gamma", "lognormal", "class", "partial"],
)
def test_training_with_the_kl(prior, family, batch_first):
    """Gradients of the KL alone reach the prior and the weights of queries and keys, which a detached KL would not."""
    model = Regression(bayesian(make_encoder(batch_first), prior=prior))
    guide, x, y = AttentionGuide(model, family), source(batch_first), torch.zeros(BATCH)
    report = check_model(model, guide, x, y, elbo=AttentionELBO(kl_weight=1e-4))
    assert report.ok, report
    assert [site.name for site in report.sites] == [f"network.{name}" for name in ENCODER]
    elbo = AttentionELBO(num_particles=2, vectorize_particles=True)
    elbo(model, guide)(x, y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    model.zero_grad()
    run = guide.run(x, y)
    kl = sum(
        torch.distributions.kl_divergence(site["fn"], site["infer"]["prior"]).sum()
        for site in run.trace.nodes.values()
        if "prior" in (site.get("infer") or {})
    )
    kl.backward()
    for layer in model.network.layers:
        reached = [layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight]
        reached += list(layer.self_attn.attention.prior.parameters())
        assert all(parameter.grad.abs().sum() > 0 for parameter in reached)
    draws = sample_posterior(guide, x, num_samples=4)
    assert {name: tuple(draw.shape) for name, draw in draws.items() if "self_attn" in name} == {
        f"network.{name}": (4, BATCH, HEADS, LENGTH, LENGTH) for name in ENCODER
    }
    made = deterministic(model)
    assert_same(made(x), Regression(copy.deepcopy(model.network))(x))


@quiet
def test_what_training_changed_comes_back():
    encoder, x = bayesian(make_encoder()), source()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    expected = encoder(x, src_key_padding_mask=PADDING)
    assert_same(deterministic(encoder)(x, src_key_padding_mask=PADDING), expected)


@quiet
@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ("encoder.*", TRANSFORMER[:2]),
        ("encoder.layers.1.*", TRANSFORMER[1:2]),
        (["*.multihead_attn", "decoder.layers.0.self_attn"], TRANSFORMER[2:]),
    ],
)
def test_some_layers(sites, expected):
    """Where the first layer stays torch's it would hand the others a nested tensor."""
    theirs = make_transformer().eval()
    mine = bayesian(copy.deepcopy(theirs), sites=sites)
    found = [name for name, part in mine.named_modules() if isinstance(part, MultiheadAttention)]
    assert found == expected
    assert name_sites(bayesian(copy.deepcopy(mine))) == TRANSFORMER  # the rest is still torch's
    assert [part.attention.name for part in mine.modules() if isinstance(part, MultiheadAttention)] == expected
    inputs, masks = (memory(), source()), {"src_key_padding_mask": MEMORY_PADDING}
    with torch.no_grad():
        memories = [each.encoder(inputs[0], **masks)[~MEMORY_PADDING] for each in (mine, theirs)]
        assert_same(*memories)
    assert {part.use_nested_tensor for part in deterministic(mine).modules() if hasattr(part, "use_nested_tensor")} == {
        theirs.encoder.use_nested_tensor
    }


def test_state_dicts_and_copies():
    made, x = [bayesian(make_encoder()) for _ in range(2)], source()
    made[1].load_state_dict(made[0].state_dict())
    made.append(copy.deepcopy(made[0]))
    for other in made[1:]:
        torch.testing.assert_close(weights(other), weights(made[0]), rtol=0, atol=0)
        assert torch.equal(other(x), made[0](x))
        assert list(AttentionGuide(in_plate(other), Weibull())(x)) == ENCODER
    with pytest.raises(RuntimeError, match=r"in_proj_weight"):
        bayesian(make_encoder()).load_state_dict(make_encoder().state_dict())


def test_dtype_device_and_frozen_weights_stay():
    encoder = make_encoder().double()
    encoder.layers[0].requires_grad_(False)
    encoder.layers[1].self_attn.in_proj_bias.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in encoder.named_parameters()}
    bayesian(encoder)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float64}
    first, second = (layer.self_attn for layer in encoder.layers)
    trained = {name for name, parameter in first.named_parameters() if parameter.requires_grad}
    assert {name.partition(".")[0] for name in trained} == {"attention"}  # the prior is new
    assert second.q_proj.weight.requires_grad
    assert not second.q_proj.bias.requires_grad
    deterministic(encoder)
    assert {name: parameter.requires_grad for name, parameter in encoder.named_parameters()} == before
