"""Models of torch.nn and torchvision made Bayesian in place, and made deterministic again."""

import copy
from functools import partial

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import nn
from torchvision.models import VisionTransformer

from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, MultiheadAttention, Soft, Weibull, check_model
from pyro_attention.attention import name_sites
from pyro_attention.families.lognormal import ContextualLogNormalPrior
from pyro_attention.integrations.torch_nn import bayesian, deterministic

BATCH, LENGTH, MEMORY, WIDTH, HEADS = 3, 5, 4, 8, 2
PADDING = torch.arange(LENGTH) >= torch.tensor([[5], [3], [2]])
MEMORY_PADDING = torch.arange(MEMORY) >= torch.tensor([[4], [1], [2]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
quiet = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True, but self.use_nested_tensor"
)


def options(batch_first):
    return {"nhead": HEADS, "dim_feedforward": 16, "dropout": 0.0, "batch_first": batch_first}


def make_encoder(batch_first=True):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, **options(batch_first)), 2)


def make_decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, **options(False)), 2)


def make_transformer():
    return nn.Transformer(WIDTH, num_encoder_layers=2, num_decoder_layers=1, **options(True))


def make_vit():
    vit = VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=16, num_classes=3
    )
    nn.init.normal_(vit.heads.head.weight)  # zero in a fresh one
    return vit


ENCODER = [f"layers.{i}.self_attn" for i in range(2)]
DECODER = [f"layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn")]
TRANSFORMER = [f"encoder.{name}" for name in ENCODER] + [f"decoder.{name}" for name in DECODER[:2]]
VIT = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(2)]
X, Z = torch.arange(120.0).sin().view(BATCH, LENGTH, WIDTH), torch.arange(96.0).cos().view(BATCH, MEMORY, WIDTH)
DECODER_MASKS = {
    "tgt_mask": CAUSAL,
    "tgt_key_padding_mask": PADDING.float().masked_fill(PADDING, -torch.inf),
    "memory_key_padding_mask": MEMORY_PADDING,
}
PAIR_MASKS = {"src_key_padding_mask": MEMORY_PADDING, "memory_key_padding_mask": MEMORY_PADDING}
CASES = {
    "encoder": (partial(make_encoder, False), (X.transpose(0, 1),), {}, ENCODER),
    "padded, batch": (make_encoder, (X,), {"src_key_padding_mask": PADDING}, ENCODER),
    "padded, length": (partial(make_encoder, False), (X.transpose(0, 1),), {"src_key_padding_mask": PADDING}, ENCODER),
    "causal encoder": (make_encoder, (X,), {"mask": CAUSAL, "is_causal": True}, ENCODER),
    "decoder": (make_decoder, (X.transpose(0, 1), Z.transpose(0, 1)), DECODER_MASKS, DECODER),
    "transformer": (make_transformer, (Z, X), PAIR_MASKS, TRANSFORMER),
    "vision transformer": (make_vit, (torch.arange(576.0).sin().view(BATCH, 3, 8, 8),), {}, VIT),
}


def in_plate(model):
    """A model function of a module, with the plate that the module does not know of."""

    def run(*args, **kwargs):
        with pyro.plate("batch", BATCH, dim=-1):
            return model(*args, **kwargs)

    return run


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=5e-6)  # last bits of float32


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@quiet
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval without gradient"])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_stay_the_same(case, training):
    """Also where torch would run its fused kernels: in evaluation mode without gradients."""
    make, args, kwargs, sites = CASES[case]
    theirs = make()
    theirs.train(training)
    mine = bayesian(copy.deepcopy(theirs))
    assert mine.training == training
    with torch.set_grad_enabled(training):
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
    make, args, kwargs, _ = CASES[case]
    theirs = make().eval()
    mine = copy.deepcopy(theirs)
    assert deterministic(bayesian(mine)) is mine
    assert repr(mine) == repr(theirs)
    torch.testing.assert_close(weights(mine), weights(theirs), rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(mine(*args, **kwargs), theirs(*args, **kwargs))


class Regression(nn.Module):
    """A number for each sequence."""

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
@pytest.mark.parametrize(
    ("prior", "family", "batch_first"),
    [
        ("gamma_contextual", Weibull(10.0), True),
        (partial(ContextualLogNormalPrior, scale=0.5), LogNormal(0.2), False),
    ],
    ids=["gamma", "partial"],
)
def test_training_with_the_kl(prior, family, batch_first):
    """Gradients of the KL alone reach the prior and the weights of queries and keys, which a detached KL would not."""
    model = Regression(bayesian(make_encoder(batch_first), prior=prior))
    guide, x, y = AttentionGuide(model, family), X if batch_first else X.transpose(0, 1), torch.zeros(BATCH)
    report = check_model(model, guide, x, y, elbo=AttentionELBO(kl_weight=1e-4))
    assert report.ok, report
    assert [site.name for site in report.sites] == [f"network.{name}" for name in ENCODER]
    run = guide.run(x, y)
    sites = [run.trace.nodes[f"network.{name}"] for name in ENCODER]
    sum(torch.distributions.kl_divergence(site["fn"], site["infer"]["prior"]).sum() for site in sites).backward()
    for layer in model.network.layers:
        reached = [layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight]
        reached += list(layer.self_attn.attention.prior.parameters())
        assert all(parameter.grad.abs().sum() > 0 for parameter in reached)


@quiet
@pytest.mark.parametrize(
    ("sites", "expected"),
    [
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
    with torch.no_grad():
        assert_same(*(each.encoder(Z, None, MEMORY_PADDING)[~MEMORY_PADDING] for each in (mine, theirs)))
    assert deterministic(mine).encoder.use_nested_tensor == theirs.encoder.use_nested_tensor


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


@pytest.mark.parametrize(
    ("options", "batch_first"), [({}, False), ({"bias": False}, True), ({"kdim": 3, "vdim": 6}, False)]
)
def test_a_layer_by_itself(options, batch_first):
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options)
    mine = bayesian(theirs)
    assert isinstance(mine, MultiheadAttention)
    x, z = (X, Z) if batch_first else (X.transpose(0, 1), Z.transpose(0, 1))
    inputs = x, z[..., : theirs.kdim], z[..., : theirs.vdim]
    for average in (True, False):
        assert_same(*(each(*inputs, average_attn_weights=average) for each in (mine, theirs)))
    one = [tensor.select(0 if batch_first else 1, 0) for tensor in inputs]  # unbatched
    assert_same(mine(*one)[0], theirs(*one)[0])
    back = deterministic(mine)
    torch.testing.assert_close(back.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert repr(back) == repr(theirs)


class Tied(nn.Module):
    """One attention under two names, and in two parents."""

    def __init__(self, layer):
        super().__init__()
        self.first = self.second = layer
        self.more = nn.ModuleList([layer])

    def forward(self, x):
        for layer in (self.first, self.second, self.more[0]):
            x = x + layer(x, x, x)[0]
        return x


def test_tied_layers_stay_tied():
    theirs = Tied(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    mine, x = bayesian(copy.deepcopy(theirs)), X
    assert mine.first is mine.second is mine.more[0]
    assert_same(mine(x), theirs(x))

    def model(x):
        with pyro.plate("batch", BATCH):
            return mine(x)

    for _ in range(2):  # the second run counts from the start
        assert list(AttentionGuide(model, Weibull())(x)) == ["first", "first.1", "first.2"]
    assert_same(AttentionGuide(model, Soft()).run(x).output, theirs(x))
    back = deterministic(mine)
    assert back.first is back.second is back.more[0]
    assert_same(back(x), theirs(x))


def test_layers_that_cannot_be_converted():
    """Nothing changes then, and the rest can be converted without them; tests of the layer try every reason."""
    bad = nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    module = nn.ModuleDict({"good": nn.MultiheadAttention(WIDTH, HEADS), "bad": bad})
    before = dict(module.items())
    with pytest.raises(ValueError, match=r"^'bad': .*add_bias_kv=True.*; or name the others by sites="):
        bayesian(module)
    assert dict(module.items()) == before
    assert bayesian(module, sites="good")["bad"] is bad
