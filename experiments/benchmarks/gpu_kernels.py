"""Checks of the fused kernels on a GPU, and their times by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.stages import Item, Result
from experiments.benchmarks.throughput import clock
from experiments.report.statistics import Estimate, Row
from pyro_attention.blocked.ops import fused_kernels
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.blocked.ops.fused_attention import Tiles, kernel_options, launch, tiles, unfused
from pyro_attention.ops.noise import Dropout

SEED, DROPOUT = 3, 0.1
BFLOAT16 = torch.bfloat16

CHECKED = (
    "Largest differences of contexts, row normalizers and gradients from those of all pairs in float64 with the same "
    "noise, by the largest entry (or by 1 where all are smaller); for dropout, the difference of the share of zeros "
    'from its probability, in standard errors. "Equal": a second run gives the same bits. "By": the fused kernels in '
    "Triton, or PyTorch where they do not run."
)
CHECKS: dict[str, dict[str, Any]] = {
    "Weibull, bfloat16": {"noise": "log_exponential", "dtype": BFLOAT16},
    "Weibull, bfloat16, width 128": {"noise": "log_exponential", "dtype": BFLOAT16, "width": 128},
    "Weibull": {"noise": "log_exponential"},
    "Weibull, width 128": {"noise": "log_exponential", "width": 128},
    "LogNormal, bfloat16": {"noise": "normal", "dtype": BFLOAT16},
    "LogNormal": {"noise": "normal"},
    "no noise, bfloat16": {"noise": None, "dtype": BFLOAT16},
    "no noise": {"noise": None},
    "Weibull, causal, bfloat16": {"noise": "log_exponential", "causal": True, "dtype": BFLOAT16},
    "Weibull, causal": {"noise": "log_exponential", "causal": True},
    "Weibull, padding, bfloat16": {"noise": "log_exponential", "padded": True, "dtype": BFLOAT16},
    "Weibull, padding": {"noise": "log_exponential", "padded": True},
    "LogNormal, causal, padding": {"noise": "normal", "causal": True, "padded": True},
    "LogNormal, causal, padding, bfloat16, width 128": {
        "noise": "normal", "causal": True, "padded": True, "dtype": BFLOAT16, "width": 128,
    },
    "Weibull, odd lengths, bfloat16": {"noise": "log_exponential", "dtype": BFLOAT16, "length": 331, "keys": 77},
    "Weibull, odd lengths": {"noise": "log_exponential", "length": 77, "keys": 331},
    "Weibull, odd width": {"noise": "log_exponential", "width": 40},
    "Weibull, one key, bfloat16": {"noise": "log_exponential", "dtype": BFLOAT16, "length": 5, "keys": 1},
    "Weibull, float16": {"noise": "log_exponential", "dtype": torch.float16},
    "Weibull, bfloat16, width 256": {"noise": "log_exponential", "dtype": BFLOAT16, "width": 256},
}  # fmt: skip


def check_items(device: str) -> list[Item]:
    """Return a check of each case, and one of dropout."""

    def on_device(check: Callable[[], Result]) -> Callable[[], Result]:
        def run() -> Result:
            with torch.device(device):
                return check()

        return run

    def case(name: str) -> Callable[[], Result]:
        return on_device(lambda: Result([check(name, CHECKS[name], 300 if device == "cuda" else 20)]))

    items = [Item("Kernels", name, case(name), seconds=90) for name in CHECKS]
    return [*items, Item("Kernels", "dropout", on_device(lambda: Result([check_dropout()])))]


def check(name: str, case: Mapping[str, Any], length: int) -> Row:
    """Return the row of a case: the largest difference between blocked (if possible fused) and dense attention."""
    options = dict(case)
    width, dtype, padded = options.pop("width", 64), options.pop("dtype", torch.float32), options.pop("padded", False)
    queries = options.pop("length", length)
    keys = options.pop("keys", queries)
    generator = torch.Generator().manual_seed(SEED)
    shapes = ((2, 2, queries, width), (2, 2, keys, width), (2, 2, keys, width))
    vectors = [torch.randn(shape, generator=generator, device="cpu") for shape in shapes]
    vectors[0] = vectors[0] * width**-0.5
    inputs = [x.to(torch.get_default_device()).to(dtype) for x in vectors] + [torch.tensor([0.1, 0.7])]
    mask = (torch.arange(keys) < max(1, 2 * keys // 3)).expand(2, 1, keys) if padded else None

    def blocked(*x: Tensor) -> tuple[Tensor, Tensor]:
        return blocked_attention(*x[:3], noise_scale=x[3], seed=SEED, key_mask=mask, **options)

    outputs = _with_gradients(blocked, inputs)
    repeated = _with_gradients(blocked, inputs)
    reference = _with_gradients(lambda *x: _all_pairs(*x, mask=mask, **options), [x.double() for x in inputs])
    errors = [
        float((a - b).abs().max() / b.abs().max().clamp(min=1))
        for a, b in zip(outputs, reference, strict=True)
        if b.numel()
    ]
    equal = all(torch.equal(a, b) for a, b in zip(outputs, repeated, strict=True))
    labels = ("context", "normalizers", "dq", "dk", "dv", "dscale")
    parts = ", ".join(f"{label} {error:.1e}" for label, error in zip(labels, errors, strict=True))
    return _row(
        name, max(errors), allowed=1e-4 if dtype == torch.float32 else 3e-2, equal="yes" if equal else "no",
        engine="Triton" if unfused(*inputs[:3]) is None else "PyTorch", parts=parts,
    )  # fmt: skip


def _row(
    name: str, error: float, *, allowed: float, equal: str = "-", engine: str = "PyTorch", parts: str = "-"
) -> Row:
    difference = Estimate(error, digits=6) if math.isfinite(error) else str(error)
    right = "yes" if error <= allowed else "no"  # no comparison with NaN is true
    return {
        "case": name, "right": right, "equal": equal, "difference": difference, "allowed": Estimate(allowed, digits=4),
        "by": engine, "parts": parts,
    }  # fmt: skip


def _with_gradients(attend: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor]) -> list[Tensor]:
    """Return context and row normalizers, and the gradients of a weighted sum of both, in float64."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = attend(*leaves)
    loss = torch.stack(
        [(tensor.double() * torch.arange(tensor.numel()).view_as(tensor).cos()).sum() for tensor in outputs]
    ).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [tensor.detach().double() for tensor in (*outputs, *gradients)]


def _all_pairs(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, *, mask: Tensor | None, noise: Any, causal: bool = False
) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    may_attend = torch.ones(scores.shape[-2:], dtype=torch.bool)
    may_attend = (may_attend.tril() if causal else may_attend) & (may_attend if mask is None else mask.unsqueeze(-2))
    scores = scores.masked_fill(~may_attend, -math.inf)
    noisy = scores
    if noise is not None:
        counter = CounterNoise(noise, SEED, (scores[..., 0, 0].numel(), *scores.shape[-2:]), device=q.device)
        drawn = counter.block(slice(None), slice(None), dtype=torch.float32).view(scores.shape)
        noisy = scores + scale.view(-1, 1, 1) * drawn
    return noisy.softmax(-1) @ v, scores.logsumexp(-1)


def check_dropout() -> Row:
    """Return the row of the dropout of dense layers; blocked layers have none."""
    count = 2**20
    share = (Dropout(DROPOUT)(torch.ones(count)) == 0).double().mean().item()
    return _row("dropout", abs(share - DROPOUT) / math.sqrt(DROPOUT * (1 - DROPOUT) / count), allowed=5)


# Tiles

SWEPT = (
    "Milliseconds of each kernel alone by tile (queries x keys, warps, stages), Weibull noise, bfloat16, gradients of "
    "the scale and of the normalizers included, 8192 positions; the table of the library has those marked *."
)
# Compiled for compute capability 9.0 with Triton 3.6, all fit into 227 KB of shared memory. The only tiles that spill
# registers are (64, 64) and (64, 128) of backward_keys at width 128. There (64, 32, 4, 2) has no wgmma instructions;
# (32, 128, 8, 2) has them and spills nothing.
CANDIDATES = {
    ("forward", 64): (
        (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2),
        (128, 32, 8, 3), (128, 32, 4, 3),
    ),
    ("backward_queries", 64): (
        (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 32, 4, 2), (64, 32, 4, 3),
        (128, 32, 8, 2),
    ),
    ("backward_keys", 64): (
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 8, 2), (32, 64, 4, 2),
        (32, 64, 4, 3),
    ),
    ("forward", 128): ((128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3)),
    ("backward_queries", 128): ((64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2), (128, 32, 8, 2)),
    ("backward_keys", 128): ((64, 32, 4, 2), (64, 64, 4, 2), (64, 128, 8, 2), (32, 64, 4, 2), (32, 128, 8, 2)),
}  # fmt: skip
KERNELS = ("forward", "backward_queries", "backward_keys")


def sweep_items(*, compile_only: bool) -> list[Item]:
    """Return an item for each kernel and width, or for each tile if tiles are only compiled, side by side."""

    def item(kernel: str, width: int, candidates: tuple[tuple[int, ...], ...]) -> Item:
        name = f"{kernel}, width {width}" + f", {candidates[0]}" * compile_only
        table, length = ("Compilation", 256) if compile_only else ("Tiles", 8192)

        def measure() -> Result:
            rows = [sweep_row(kernel, width, Tiles(*tile), length=length) for tile in candidates]
            return Result([] if compile_only else rows)

        return Item(table, name, measure, seconds=40)

    if compile_only:
        return [item(*key, (tile,)) for key, candidates in CANDIDATES.items() for tile in candidates]
    return [item(*key, candidates) for key, candidates in CANDIDATES.items()]


def sweep_row(kernel: str, width: int, tile: Tiles, *, length: int, device: str = "cuda") -> Row:
    """Return the row of a kernel with a tile, 2048 / width heads of two sequences: its milliseconds, or its failure."""
    slices = 2 * 2048 // width if device == "cuda" else 1
    with torch.device(device):
        q, k, v, grad = (torch.randn(slices, length, width, dtype=BFLOAT16) for _ in range(4))
        q *= width**-0.5
        noise = CounterNoise("log_exponential", SEED, (slices, length, length), device=device)
        scale = torch.full((slices,), 0.1)
        context, normalizers = torch.empty_like(v), torch.zeros(2, slices, length)
        out, rows = [torch.empty_like(q) for _ in range(2)], torch.empty(slices, length)
    inputs = q, k, v, scale, None, *noise.keys
    # time does not depend on the values of the normalizers
    backward = *inputs, *normalizers, grad, rows.zero_(), rows.clone()
    arguments: tuple[Any, ...] = {
        "forward": (*inputs, context, *normalizers),
        "backward_queries": (*backward, out[0], rows.clone()),
        "backward_keys": (*backward, *out),
    }[kernel]
    options = kernel_options(q, v, "log_exponential", False, tile)
    function, block = getattr(fused_kernels, kernel), options["COLS" if kernel == "backward_keys" else "ROWS"]
    shown = f"{tile.rows} x {tile.columns}, {tile.warps}, {tile.stages}"
    chosen = tiles(width, BFLOAT16)[KERNELS.index(kernel)] == tile
    row: Row = {"kernel": kernel, "width": str(width), "tile": shown + " *" * chosen}

    def step() -> None:
        launch(function, q, block, *arguments, length, length, **options)

    try:
        step()
        return row | {"ms": Estimate(min(clock(step, 5)[0] for _ in range(3)), digits=3)}
    except Exception as error:
        if "OutOfResources" not in type(error).__name__:
            raise
        return row | {"ms": f"{type(error).__name__}: {str(error)[:80]}"}
