"""Fused kernels agree with the blocks in plain PyTorch: in Triton's interpreter, and on a GPU where there is one."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pyro_attention.blocked.ops import blocked_attention as blocked_module
from pyro_attention.blocked.ops import fused_attention as fused_module
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.fused_attention import tiles, unfused

CHECKS = Path(__file__).with_name("fused_attention_checks.py")
KERNELS = ["forward", "backward_queries", "backward_keys"]
POINTERS = {"MASK": "*u8", "OFFSETS": "*i32", "MULTIPLIERS": "*i32", "COLUMNS": "*i32"}
POINTERS |= dict.fromkeys(["SCALE", "NOISY", "PLAIN", "INNER", "GRAD_PLAIN", "GRAD_SCALE"], "*fp32")


def test_in_the_interpreter(tmp_path):
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, CHECKS],
        cwd=CHECKS.parents[2], env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout


def stand_in(dtype=torch.bfloat16, shape=(8, 64), is_cuda=True):
    return SimpleNamespace(is_cuda=is_cuda, dtype=dtype, device="cuda", size=lambda dim: shape[dim])


@pytest.mark.parametrize(
    ("tensor", "capability", "reason"),
    [
        ({"shape": (1, 256)}, (8, 0), None),
        ({"dtype": torch.float32, "shape": (8, 129)}, (9, 0), "widths 64 to 129, expected 1 to 128 in torch.float32"),
        ({}, (7, 5), "compute capability below 8.0"),
        ({"is_cuda": False}, (8, 0), "on a GPU alone"),
        ({"dtype": torch.float64}, (8, 0), "dtype torch.float64, expected torch.float32"),
        ({"shape": (8, 257)}, (8, 0), "widths 64 to 257, expected 1 to 256 in torch.bfloat16"),
        ({"shape": (2**25, 64)}, (8, 0), "33554432 positions of width 64"),
    ],
)
def test_what_is_fused(tensor, capability, reason, monkeypatch):
    monkeypatch.setattr(fused_module, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    actual = unfused(stand_in(), stand_in(), stand_in(**tensor))
    assert actual is None if reason is None else reason in actual
    monkeypatch.setattr(fused_module, "find_spec", lambda name: None)
    assert "Triton is not installed" in str(unfused(stand_in(), stand_in(), stand_in()))


def test_products_are_rounded_where_those_of_torch_are():
    """By the new switch alone: after it, torch raises where the old one is read."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one switch")
    before = matmul.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            matmul.fp32_precision = precision
            assert (fused_module._precision() == "tf32") == (precision == "tf32")
    finally:
        matmul.fp32_precision = before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "noise"), [("forward", "normal"), ("backward_queries", None), ("backward_keys", "log_exponential")]
)
def test_compiles_for_a_gpu(kernel, noise, tmp_path, monkeypatch):
    """To machine code for compute capability 9.0, which needs no GPU."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pyro_attention.blocked.ops import fused_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function, tile = getattr(fused_kernels, kernel), tiles(64, torch.bfloat16)[KERNELS.index(kernel)]
    constants = {
        "WIDTH": 64, "VALUE_WIDTH": 40, "PADDED": 64, "VALUE_PADDED": 64, "NOISE": noise, "FAST": True,
        "CAUSAL": noise != "normal", "PRECISION": "tf32x3", "ROWS": tile.rows, "COLS": tile.columns,
    }  # fmt: skip
    if noise is None:
        constants |= dict.fromkeys(["SCALE", "OFFSETS", "MULTIPLIERS", "COLUMNS", "GRAD_SCALE"])
    names = function.arg_names
    types = {"queries": "i32", "keys": "i32"} | {name: POINTERS.get(name, "*bf16") for name in names if name.isupper()}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    values = {(names.index(name),): value for name, value in constants.items() if name in names}
    compiled = triton.compile(
        ASTSource(function, signature, constexprs=values),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True},
    )
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= 99 * 2**10  # what the smaller GPUs have
    assert ("lg2.approx" in compiled.asm["ptx"]) == (noise is not None)


def inputs(dtype, length=1024):
    tensors = [torch.randn(2, 3, length, 64, device="cuda") for _ in range(3)]
    tensors = [(tensors[0] / 8).to(dtype), tensors[1].to(dtype), tensors[2].to(dtype)]
    scale = torch.tensor([0.1, 0.5, 1.0], device="cuda")
    return [tensor.requires_grad_() for tensor in (*tensors, scale)]


def results(leaves, **options):
    torch.manual_seed(1)
    scale = leaves[3] if options["noise"] is not None else None
    outputs = blocked_attention(*leaves[:3], noise_scale=scale, seed=5, **options)
    loss = sum((output.float() * torch.randn(output.shape, device="cuda")).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("noise", "causal"), [("log_exponential", True), ("normal", False), (None, True)])
def test_equals_blocked_on_a_gpu(noise, causal, dtype, monkeypatch):
    pytest.importorskip("triton")
    leaves = inputs(dtype)
    mask = torch.rand(2, 1, 1024, device="cuda") < 0.9
    options = {"noise": noise, "causal": causal, "key_mask": mask}
    assert unfused(*leaves[:3]) is None
    actual, again = results(leaves, **options), results(leaves, **options)
    assert all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))
    monkeypatch.setattr(blocked_module, "unfused", lambda *tensors: "not here")
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for a, b in zip(actual, results(leaves, **options), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.detach().abs().max().clamp(min=1)))
