"""Thousands of steps take no more memory than hundreds."""

import gc
import tracemalloc
from pathlib import Path

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_attention import AttentionELBO, AttentionGuide, Weibull
from tests.toy_models import SelfAttention, Sequences

STEPS = 5000
WARM = 500
MOST_GROWTH = 64 * 2**10  # of Python's objects: 15 bytes a step
MOST_RESIDENT = 16 * 2**20  # of the process: less than 4 kB a step, which one kept trace takes
PAGE = 4096


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_steps_of_svi_take_no_more_memory() -> None:
    model, data = SelfAttention(), Sequences.random()
    guide = AttentionGuide(model, Weibull())
    svi = SVI(model, guide, Adam({"lr": 1e-3}), loss=AttentionELBO())

    def steps(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            svi.step(data.x, data.y, data.padding)
        gc.collect()
        # type() asks no object, some of which warn when they are asked
        objects = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
        return tracemalloc.get_traced_memory()[0], resident(), objects

    pyro.set_rng_seed(0)
    tracemalloc.start()
    try:
        before = steps(WARM)
        after = steps(STEPS - WARM)
    finally:
        tracemalloc.stop()
    traced, whole, tensors = (end - start for start, end in zip(before, after, strict=True))
    print(f"{STEPS} steps: {traced} bytes of Python's objects, {whole} of the process, {tensors} tensors more")
    assert traced < MOST_GROWTH
    assert whole < MOST_RESIDENT
    assert tensors == 0
