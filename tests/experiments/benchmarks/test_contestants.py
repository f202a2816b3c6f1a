"""What each benchmark times, at tiny sizes: contestants that should compute the same do, and the others train."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks import (
    alignment_schemes,
    blocked_attention,
    enumeration,
    fused_attention,
    graph_scaling,
    mcan,
    self_attention,
    transformer,
)
from experiments.benchmarks.config import FusedConfig, RingConfig
from experiments.benchmarks.graph_scaling import Graph
from experiments.benchmarks.measuring import peak_memory
from experiments.benchmarks.ring_attention import Ring
from experiments.benchmarks.ring_attention import run as print_ring
from experiments.files import UserError
from models.nmt import Translation
from models.vqa import MCANSizes
from pyro_attention import sample_posterior
from pyro_attention.blocked.ops.blocked_attention import blocked_attention as attend
from pyro_attention.blocked.ops.counter_noise import CounterNoise

PAGE = Path(__file__).parents[3] / "docs" / "running_on_more.md"
TOKENS = enumeration.Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
WORDS = alignment_schemes.Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
CLASSIFIER = self_attention.Sizes(batch=2, length=3, width=8, heads=2)
QUESTIONS = mcan.Sizes(3, 5, 4, features=5, vocabulary=9, answers=4, network=MCANSizes(8, 8, 2, 1, 16, 8), dropout=0.0)
BERT = transformer.Sizes(layers=1, heads=2, width=8, hidden=8, vocabulary=20, dropout=0.0, batch=3, length=5)


@pytest.mark.parametrize(
    ("module", "names", "size", "tolerance"),
    [
        (enumeration, enumeration.CONTESTANTS, TOKENS, {}),
        # up to the noise, on which the KL, by far the largest part, does not depend
        (blocked_attention, ("dense", "naive dense", "blocked"), 64, {"rtol": 1e-4, "atol": 0}),
        (transformer, ("soft", "eager", "sdpa"), BERT, {}),
    ],
)
def test_contestants_compute_the_same(module: Any, names: tuple[str, ...], size: Any, tolerance: Any) -> None:
    reference, *others = (module.make_step(name, size)() for name in names)
    for other in others:
        torch.testing.assert_close(other, reference, **tolerance)


# Names of a hand-written layer's parameters in ours.
OURS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj", "prior": "attention.prior.network"}


@pytest.mark.parametrize(
    ("names", "tolerance"),
    [
        ((self_attention.BY_HAND, self_attention.FUSED, "soft, ours"), {}),
        ((self_attention.NAIVE, self_attention.STOCK, "Weibull, ours"), {"rtol": 2e-2, "atol": 0}),  # of the noise
    ],
    ids=["deterministic", "Bayesian"],
)
def test_classifiers_of_equal_weights_have_equal_losses(names: tuple[str, ...], tolerance: dict[str, float]) -> None:
    x, labels = torch.randn(2, 3, 8), torch.tensor([0, 1])
    values, weights = [], dict[str, torch.Tensor]()
    for name in names:
        torch.manual_seed(0)
        loss = self_attention.make_loss(name, CLASSIFIER)
        if name.endswith("ours"):
            for key, value in weights.items():
                first, *rest = key.split(".")
                ours = key if first != "attention" else ".".join([first, rest[0], OURS[rest[1]], *rest[2:]])
                loss.model.network.get_parameter(ours).data.copy_(value)
        else:
            weights = weights or dict(loss.network.named_parameters())
        values.append(loss(x, labels).detach())
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], **tolerance)


@pytest.mark.parametrize("name", self_attention.CONTESTANTS)
def test_classifiers_train(name: str) -> None:
    step = self_attention.make_step(name, CLASSIFIER)
    losses = [step().item() for _ in range(20)]
    assert losses[-1] < losses[0]
    loss = self_attention.make_loss(name, CLASSIFIER)
    loss(torch.randn(2, 3, 8), torch.tensor([0, 1])).backward()
    without = [key for key, parameter in loss.named_parameters() if parameter.grad is None]
    assert all(name == "soft, ours" and ".prior." in key for key in without)  # there nothing reads the prior


def test_normalizers_are_beside_softmax_of_their_length() -> None:
    groups = list(self_attention.normalizers((2, 3), batch=2, width=8, heads=2))
    assert [next(iter(group)) for group in groups] == [
        f"{guide}, n = {length}, softmax" for guide in ("soft", "Weibull") for length in (2, 3)
    ]
    for step in groups[-1].values():
        losses = [step().item() for _ in range(20)]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("module", "name", "size"),
    [(mcan, "Weibull", QUESTIONS), (transformer, "Weibull", BERT), (transformer, "LogNormal", BERT)],
)
def test_bayesian_contestants_have_a_kl(module: Any, name: str, size: Any) -> None:
    soft, *losses = module.make_step("soft", size)(), *(module.make_step(name, size)() for _ in range(2))
    assert losses[0] == losses[1]
    assert losses[0].isfinite()
    assert losses[0] > soft + 10


@pytest.mark.parametrize("name", alignment_schemes.CONTESTANTS)
def test_alignment_schemes_leave_the_network_untrained(name: str) -> None:
    step, losses = alignment_schemes.make_step(name, WORDS), []
    for _ in range(2):
        torch.manual_seed(0)  # of dropout
        losses.append(step())
    torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_posterior_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks save passes; both guides are over one model, whose sure alignment is the mean of the samples."""
    passes: list[int] = []
    forward = Translation.forward
    monkeypatch.setattr(Translation, "forward", lambda *args, **options: passes.append(0) or forward(*args, **options))
    (group,) = alignment_schemes.posterior_samples(TOKENS)
    counts = []
    for call in group.values():
        passes.clear()
        call()
        counts.append(len(passes))
    assert counts == [1, alignment_schemes.SAMPLES, 2]
    soft, weibull, arguments = alignment_schemes.make_guides(replace(TOKENS, width=8))
    assert soft.model is weibull.model
    samples = sample_posterior(weibull, *arguments, num_samples=400, chunk_size=400)["alignment"]
    certain = sample_posterior(soft, *arguments, num_samples=1)["alignment"]
    torch.testing.assert_close(samples.mean(0), certain[0], atol=0.02, rtol=0)


def test_graph_layers() -> None:
    """All of them, also without a GPU or data."""
    first, second = graph_scaling.at_cora_size(Graph(9, 20), labelled=3)
    assert (next(iter(first)), next(iter(second))) == ("PyG GATConv, two layers", "PyG GATv2Conv, two layers")
    for step in (*first.values(), *second.values()):
        step()
    for name in graph_scaling.CONTESTANTS:
        found = graph_scaling.time_per_edge(name, Graph(10, 20), Graph(10, 40), rounds=2)
        assert 0 < found[f"{name}/per_edge_low"] <= found[f"{name}/per_edge"] <= found[f"{name}/per_edge_high"]


@pytest.mark.parametrize(("dtype", "causal"), [("float32", True), ("bfloat16", False)])
def test_fused_steps_in_plain_blocks_on_a_cpu(dtype: Any, causal: bool) -> None:
    config = FusedConfig(width=8, heads=2, batch=3, dtype=dtype, causal=causal)
    for name in fused_attention.CONTESTANTS:
        loss = fused_attention.make_step(name, config, 10, torch.device("cpu"))()
        assert (loss.shape, loss.dtype) == ((), torch.float32)
        assert loss.isfinite()


def test_memory_does_not_grow_with_pairs_or_alignments() -> None:
    """A tensor of all pairs takes 18 MB. All logits take 128 MB, the chunked ones 8 MB."""
    dense, blocked = (peak_memory(blocked_attention.make_step, name, 1536) for name in ("dense", "blocked"))
    assert dense > 90
    assert blocked < 0.7 * dense
    sizes = enumeration.Sizes(40, targets=20, width=8, vocabulary=2500)
    by_hand, chunked = (peak_memory(enumeration.make_step, name, sizes) for name in enumeration.CONTESTANTS[::2])
    assert by_hand > 128
    assert by_hand > 2 * chunked


# A ring of devices


def test_devices_that_know_seed_and_positions_draw_the_same_noise() -> None:
    """Each of four devices has a quarter of the queries, and sees a quarter of keys and values at a time."""
    heads, positions, block, seed = 2, 32, 8, 7
    q, k, v = torch.randn(3, heads, positions, 5, dtype=torch.float64)
    expected, _ = attend(q, k, v, noise="log_exponential", noise_scale=torch.tensor(0.3), seed=seed)
    found = []
    for device in range(4):
        mine = slice(device * block, (device + 1) * block)
        noise = CounterNoise("log_exponential", seed, (heads, positions, positions))
        sums, contexts = [], []
        for step in range(4):
            start = (device + step) % 4 * block
            theirs = slice(start, start + block)
            scores = q[:, mine] @ k[:, theirs].mT
            scores += 0.3 * noise.block(slice(None), mine, theirs, dtype=torch.float64)
            sums.append(scores.logsumexp(-1))
            contexts.append(scores.softmax(-1) @ v[:, theirs])
        shares = torch.stack(sums).softmax(0)
        found.append((shares[..., None] * torch.stack(contexts)).sum(0))
    torch.testing.assert_close(torch.cat(found, 1), expected)


def test_sizes_of_a_ring_are_those_of_its_tensors() -> None:
    ring = Ring(positions=48, devices=4, heads=3, width=5, itemsize=2).numbers()
    q, k, v, context, grad_context = torch.zeros(5, 3, 12, 5, dtype=torch.bfloat16)
    grad_q, grad_k, grad_v = torch.zeros(3, 3, 12, 5)
    assert ring["kept from forward to backward"] == sum(x.nbytes for x in (q, k, v, context, torch.zeros(2, 3, 12)))
    passing = sum(x.nbytes for x in (k, v, grad_k, grad_v))
    assert ring["more in backward"] == 2 * passing + grad_context.nbytes + grad_q.nbytes
    assert ring["sent in forward"] == 3 * (k.nbytes + v.nbytes)
    assert ring["sent in backward"] == 3 * (k.nbytes + v.nbytes) + 4 * (grad_k.nbytes + grad_v.nbytes)
    offsets, multipliers, _ = CounterNoise("normal", 0, (3, 12, 12)).keys
    assert ring["what the noise is made from"] == offsets.nbytes + multipliers.nbytes + 4 * 12
    assert ring["the noise, if it were held"] == torch.zeros(3, 12, 48).nbytes
    # 7 products of [12, 5] with [5, 12] in three heads, of which 2 in forward
    product = 3 * 2 * 12 * 12 * 5
    expected = min(2 * product / (2 * k.nbytes), 5 * product / passing)
    assert ring["operations for each byte sent, at least"] == expected


def test_the_page_shows_the_ring(capsys: pytest.CaptureFixture[str]) -> None:
    print_ring(RingConfig())
    part = f"<!-- begin ring_attention -->\n{capsys.readouterr().out}<!-- end ring_attention -->\n"
    assert part in PAGE.read_text(), f"put what python -m experiments.benchmarks.ring_attention prints into {PAGE}"
    with pytest.raises(UserError, match="positions is 96, which 5 devices cannot share evenly"):
        print_ring(RingConfig(positions=96, devices=(2, 5)))
