from pathlib import Path

import pytest
import torch

from experiments.benchmarks.config import RingConfig
from experiments.benchmarks.ring_attention import Ring, run, section
from experiments.files import UserError
from experiments.harness.cli import run_script
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise

PAGE = Path(__file__).parents[3] / "docs" / "running_on_more.md"


def test_devices_that_know_seed_and_positions_draw_the_same_noise() -> None:
    """Each of four devices has a quarter of the queries, and sees a quarter of keys and values at a time."""
    heads, positions, block, seed = 2, 32, 8, 7
    q, k, v = torch.randn(3, heads, positions, 5, dtype=torch.float64)
    expected, _ = blocked_attention(q, k, v, noise="log_exponential", noise_scale=torch.tensor(0.3), seed=seed)
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


def test_sizes_of_tensors() -> None:
    ring = Ring(positions=48, devices=4, heads=3, width=5, itemsize=2)
    q, k, v, context, grad_context = torch.zeros(5, 3, 12, 5, dtype=torch.bfloat16)
    grad_q, grad_k, grad_v = torch.zeros(3, 3, 12, 5)
    log_sums = torch.zeros(2, 3, 12)
    assert ring.kept == sum(x.nbytes for x in (q, k, v, context, log_sums))
    passing = sum(x.nbytes for x in (k, v, grad_k, grad_v))
    assert ring.in_backward == 2 * passing + grad_context.nbytes + grad_q.nbytes
    assert ring.forward_traffic == 3 * (k.nbytes + v.nbytes)
    assert ring.backward_traffic == 3 * (k.nbytes + v.nbytes) + 4 * (grad_k.nbytes + grad_v.nbytes)
    here, columns = CounterNoise("normal", 0, (3, 12, 12)), 12
    offsets, multipliers, _ = here.keys
    assert ring.noise == offsets.nbytes + multipliers.nbytes + 4 * columns
    assert ring.held_noise == torch.zeros(3, 12, 48).nbytes
    # 7 products of [12, 5] with [5, 12] in three heads, of which 2 in forward
    assert ring.operations_per_byte == min(2 * 3 * 2 * 12 * 12 * 5 / (2 * k.nbytes), 5 * 3 * 2 * 12 * 12 * 5 / passing)


def test_the_page_shows_what_the_script_computes(capsys: pytest.CaptureFixture[str]) -> None:
    run(RingConfig())
    text = section(RingConfig())
    assert capsys.readouterr().out.strip() == text
    part = f"<!-- begin ring_attention -->\n{text}\n<!-- end ring_attention -->\n"
    assert part in PAGE.read_text(), f"put what python -m experiments.benchmarks.ring_attention prints into {PAGE}"


def test_the_devices_are_none_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(RingConfig, run, name="ring_attention", arguments=["--devices", "[2, 4]"]) == 0
    assert "| of each device | 2 devices | 4 devices |" in capsys.readouterr().out


def test_other_sizes() -> None:
    text = section(RingConfig(positions=96, devices=(2, 3, 96), half=False))
    assert text.splitlines()[2] == "| of each device | 2 devices | 3 devices | 96 devices |"
    assert "--positions 96 --devices '[2, 3, 96]' --no-half`" in text
    with pytest.raises(UserError, match="positions is 96, which 5 devices cannot share evenly"):
        section(RingConfig(positions=96, devices=(2, 5)))
