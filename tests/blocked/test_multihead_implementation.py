"""Which implementation a layer chooses by itself, and what it says where it cannot choose the better one."""

import functools
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pyro
import pytest
import torch

from pyro_attention import (
    AttentionGuide,
    DirichletPrior,
    DoublyNormalized,
    FixedGammaPrior,
    Hybrid,
    MultiheadAttention,
    ScaledDotProduct,
    Weibull,
)
from pyro_attention.blocked import BlockedMultiheadAttention, BlockedValue
from pyro_attention.blocked import choice as implementation_module

BATCH, HEADS, LENGTH, WIDTH = 3, 2, 6, 8
WEIGHTS = BATCH * HEADS * LENGTH**2
MASK = torch.zeros(LENGTH, LENGTH)


class OtherPrior(FixedGammaPrior):
    """Might read the scores."""


class OtherScore(ScaledDotProduct):
    """Might be no product."""


@pytest.fixture(autouse=True)
def forget_warnings():
    implementation_module._warn_once.cache_clear()


@pytest.fixture
def large(monkeypatch):
    """A call of WEIGHTS weights is just large enough for blocks."""
    monkeypatch.setattr(implementation_module, "_MANY_WEIGHTS", WEIGHTS)


@pytest.fixture
def huge(large, monkeypatch):
    """A call of WEIGHTS weights is just too large to hold them."""
    monkeypatch.setattr(implementation_module, "_MOST_WEIGHTS", WEIGHTS - 1)


def make(implementation="auto", **options):
    score = options.pop("score", None)
    layer = BlockedMultiheadAttention(WIDTH, HEADS, implementation=implementation, **options)
    layer.score = score or layer.score
    return layer


def kind(layer, **arguments):
    """What a call of WEIGHTS weights makes of the site's value."""
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def model():
        with pyro.plate("batch", BATCH):
            return layer(x, x, x, **{"need_weights": False, **arguments})

    return type(AttentionGuide(model, Weibull())()["attention"])


WANTED = ({}, {"need_weights": True}, "need_weights=True.*pass need_weights=False, draw some by sample_posterior")
AT_CALLS = [
    ({}, {"attn_mask": MASK}, "attn_mask, only key_padding_mask, query_padding_mask and is_causal"),
    ({"dropout": 0.1}, {}, r"dropout of the weights \(here 0.1 in training mode\)"),
    ({"score": OtherScore()}, {}, "scores by OtherScore, only ScaledDotProduct"),
]
OF_LAYERS = [
    ({"normalizer": DoublyNormalized()}, {}, "the normalizer DoublyNormalized, only Softmax"),
    ({"prior": OtherPrior()}, {}, "the prior OtherPrior, only Gamma and LogNormal priors that do not read the scores"),
]


@pytest.mark.parametrize(
    ("many", "most", "expected"),
    [
        (WEIGHTS + 1, 2**31, torch.Tensor),
        (WEIGHTS, 2**31, BlockedValue),
        (WEIGHTS, WEIGHTS - 1, BlockedValue),
    ],
    ids=["few", "many", "too many"],
)
def test_auto_is_blocked_where_it_is_large_and_possible(many, most, expected, monkeypatch):
    monkeypatch.setattr(implementation_module, "_MANY_WEIGHTS", many)
    monkeypatch.setattr(implementation_module, "_MOST_WEIGHTS", most)
    assert kind(make(dropout=0.1).eval()) is expected


@pytest.mark.parametrize(("options", "arguments", "message"), AT_CALLS + OF_LAYERS)
def test_auto_warns_once_where_a_large_call_stays_dense(options, arguments, message, large):
    layer = make(**options)
    with pytest.warns(UserWarning, match=f"site 'attention'.*'auto' keeps.*dense.*not support {message}"):
        assert kind(layer, **arguments) is torch.Tensor
    assert kind(layer, **arguments) is torch.Tensor  # a second warning would be an error


def test_auto_says_nothing_where_weights_are_asked_for_or_few(large, monkeypatch):
    assert kind(make(), need_weights=True) is torch.Tensor
    assert kind(make("dense"), attn_mask=MASK) is torch.Tensor
    monkeypatch.setattr(implementation_module, "_MANY_WEIGHTS", WEIGHTS + 1)
    assert kind(make(), attn_mask=MASK) is torch.Tensor


@pytest.mark.parametrize(("options", "arguments", "message"), [WANTED, *AT_CALLS, *OF_LAYERS])
def test_auto_raises_beyond_what_can_be_held(options, arguments, message, huge, monkeypatch):
    layer = make(**options)
    expected = rf"site 'attention': weights of shape \(3, 2, 6, 6\) would take .* GB.*not support {message}.*'dense', "
    with pytest.raises(ValueError, match=expected + "which computes them all the same"):
        kind(layer, **arguments)
    layer.implementation = "dense"
    assert kind(layer, **arguments) is torch.Tensor
    layer.implementation = "auto"
    monkeypatch.setattr(implementation_module, "_MOST_WEIGHTS", WEIGHTS)
    with warnings.catch_warnings(action="ignore"):
        assert kind(layer, **arguments) is torch.Tensor


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, "1280.0"), (torch.float64, "2560.0")], ids=str)
def test_sizes(dtype, size):
    """No memory is taken: the tensors are expanded."""
    q = torch.zeros((), dtype=dtype).expand(2, 400_000, 4)
    choose = functools.partial(implementation_module.is_blocked, "auto", q, q, q, site="a", wanted=True)
    assert choose(obstacle=None)
    with pytest.raises(ValueError, match=rf"shape \(2, 400000, 400000\) would take {size} GB"):
        choose(obstacle="something")


@pytest.mark.parametrize(("options", "arguments", "message"), [WANTED, *AT_CALLS])
def test_what_is_not_blocked_raises(options, arguments, message):
    layer = make("blocked", **options)
    with pytest.raises(ValueError, match=f"site 'attention'.*not support {message}.*implementation='dense'"):
        kind(layer, **arguments)


@pytest.mark.parametrize(
    ("options", "arguments", "message"), [*OF_LAYERS, ({"prior": DirichletPrior()}, {}, "the pri")]
)
def test_layers_that_are_never_blocked_are_not_built(options, arguments, message):
    expected = f"site 'attention': implementation='blocked' does not support {message}.*implementation='dense'"
    with pytest.raises(ValueError, match=expected):
        make("blocked", **options)
    layer = make(**options)
    layer.implementation = "blocked"
    with pytest.raises(ValueError, match=expected):
        kind(layer, **arguments)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_of_a_normalizer(heads):
    message = r"Hybrid has 2 mixing weights, attention 4 heads; pass Hybrid\(heads=4\)"
    layer = MultiheadAttention(8, 4, normalizer=Hybrid(heads))
    with pytest.raises(ValueError, match=message) if heads == 2 else nullcontext():
        layer(*[torch.zeros(3, 8)] * 3)


def test_unknown_implementation():
    expected = "implementation is 'fast', expected 'dense', 'blocked' or 'auto'"
    with pytest.raises(ValueError, match=expected):
        make("fast")
    layer = make()
    layer.implementation = "fast"
    with pytest.raises(ValueError, match=expected):
        kind(layer)


@pytest.fixture
def not_fused(monkeypatch):
    """As on a GPU whose kernels cannot take the tensors."""
    monkeypatch.setattr(implementation_module, "_slow", lambda *tensors: "dtype torch.float64")


def test_auto_is_dense_where_a_gpu_has_no_fused_kernel(not_fused, large):
    layer = make()
    with pytest.warns(UserWarning, match="'auto' keeps a large call dense.*slow without.*: dtype torch.float64"):
        assert kind(layer) is torch.Tensor
    assert kind(layer) is torch.Tensor


@pytest.mark.parametrize("implementation", ["blocked", "auto"])
def test_slow_blocks_warn_once(implementation, not_fused, huge):
    layer = make(implementation)
    with pytest.warns(UserWarning, match="site 'attention'.*without the fused kernels.*slower: dtype torch.float64"):
        assert kind(layer) is BlockedValue
    assert kind(layer) is BlockedValue


@pytest.mark.parametrize(("is_cuda", "reason"), [(False, "None"), (True, "torch.float64")], ids=["cpu", "gpu"])
def test_kernels_are_missed_on_a_gpu_alone(is_cuda, reason):
    tensor = SimpleNamespace(is_cuda=is_cuda, dtype=torch.float64)
    assert reason in str(implementation_module._slow(tensor, tensor, tensor))
