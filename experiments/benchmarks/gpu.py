"""On one GPU: whether the fused kernels are right, what attention and training steps cost, and how often they wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks.layers import BLOCKWISE, SOFTMAX, Positions, SoftmaxLayer, make_blocked_step
from experiments.benchmarks.measuring import Benchmark, Step, training_step
from experiments.benchmarks.networks import Sizes, Tokens, make_bert_step, make_scheme_step
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import write_environment
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Estimate, Row
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.ops.noise import Dropout

FLEX = "flex_attention"
SEED, DROPOUT = 3, 0.1


@dataclass(frozen=True, kw_only=True)
class GPUConfig:
    """Check the fused kernels on a GPU, time attention and training steps there, and count what they wait for.

    Args:
        device: "cpu" tries the command itself, at tiny sizes, where there is no GPU.
        out: Folder for the numbers.
        results: Folder for the published numbers; none when omitted.
    """

    device: Literal["cuda", "cpu"] = "cuda"
    out: Path = Path("runs", "benchmarks")
    results: Path | None = None


def run(config: GPUConfig) -> None:
    """Check, time and count, and write the numbers.

    Raises:
        UserError: There is no GPU, or a kernel is not right, which is said after the numbers are written.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no GPU here; --device cpu tries the command at tiny sizes")
    benchmarks = [replace(one, device=config.device, memory=config.device == "cuda") for one in BENCHMARKS]
    if config.device == "cpu":
        benchmarks = [replace(one, sizes=TINY[one.title]) for one in benchmarks]
    with torch.device(config.device):
        checks = [check(name, case, 300 if config.device == "cuda" else 20) for name, case in CHECKS.items()]
        checks.append(check_dropout())
    waiting = [row for one in benchmarks[1:] for row in waits(one)]
    timed = [Part(title=one.title, text=one.text, rows=one.measure(one.rounds), labels=2) for one in benchmarks]
    parts = [
        Part(title="Kernels", text=CHECKED, rows=checks),
        *timed,
        Part(title="Waits", text=COUNTED, rows=waiting, labels=2),
    ]
    report = Report("On a GPU", "speed-gpu", parts)
    write_environment(config.out, torch.device(config.device))
    source = source_of([config.out], command_line("experiments.benchmarks gpu", GPUConfig(device=config.device)))
    print(report.terminal(), write_results(config.results or config.out, report, source), sep="\n")
    if wrong := [str(row["case"]) for row in checks if row["right"] == "no"]:
        raise UserError(f"not right: {', '.join(wrong)}")


# Kernels

CHECKED = (
    "Largest differences of contexts, row normalisers and gradients from those of all pairs in float64 with the same "
    "noise, by the largest entry (or by 1 where all are smaller); of dropout, of the share of zeros from the one asked "
    "for, in standard errors."
)
CHECKS: dict[str, dict[str, Any]] = {
    "no noise": {"noise": None},
    "Weibull": {"noise": "log_exponential"},
    "LogNormal": {"noise": "normal"},
    "Weibull, causal": {"noise": "log_exponential", "causal": True},
    "Weibull, padding": {"noise": "log_exponential", "padded": True},
    "LogNormal, causal, padding": {"noise": "normal", "causal": True, "padded": True},
    "Weibull, width 128": {"noise": "log_exponential", "width": 128},
    "Weibull, causal, bfloat16": {"noise": "log_exponential", "causal": True, "dtype": torch.bfloat16},
    "Weibull, bfloat16, width 256": {"noise": "log_exponential", "dtype": torch.bfloat16, "width": 256},
}


def check(name: str, case: Mapping[str, Any], length: int) -> Row:
    """A row of a case: the largest difference of blocked attention, fused where it can be, from all pairs at once."""
    options = dict(case)
    width, dtype, padded = options.pop("width", 64), options.pop("dtype", torch.float32), options.pop("padded", False)
    generator = torch.Generator().manual_seed(SEED)
    vectors = torch.randn(3, 2, 2, length, width, generator=generator, device="cpu").to(torch.get_default_device())
    vectors = vectors * torch.tensor([width**-0.5, 1, 1]).view(3, 1, 1, 1, 1)
    inputs = [*vectors.to(dtype).unbind(), torch.tensor([0.1, 0.7])]
    mask = (torch.arange(length) < 2 * length // 3).expand(2, 1, length) if padded else None
    found, wanted = (
        _with_gradients(attend, [x.detach().to(kind).requires_grad_() for x in inputs for kind in [as_type or x.dtype]])
        for attend, as_type in (
            (lambda *x: blocked_attention(*x[:3], noise_scale=x[3], seed=SEED, key_mask=mask, **options), None),
            (lambda *x: _all_pairs(*x, mask=mask, **options), torch.float64),
        )
    )
    error = max(
        float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1))
        for a, b in zip(found, wanted, strict=True)
    )
    return _row(name, error, allowed=1e-4 if dtype == torch.float32 else 3e-2)


def _row(name: str, error: float, *, allowed: float) -> Row:
    cells = {"difference": Estimate(error, digits=6), "allowed": Estimate(allowed, digits=4)}
    return {"case": name, **cells, "right": "yes" if error <= allowed else "no"}  # no comparison with NaN is true


def _with_gradients(attend: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Context and row normalisers, and the gradients of a sum of both with weights that vary."""
    outputs = attend(*inputs)
    loss = sum((each.double() * torch.arange(each.numel()).view_as(each).cos()).sum() for each in outputs)
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return [each.double() for each in (*outputs, *gradients)]


def _all_pairs(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor, *, mask: Tensor | None, noise: Any, causal: bool = False
) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    seen = (seen.tril() if causal else seen) & (seen if mask is None else mask.unsqueeze(-2))
    scores = scores.masked_fill(~seen, -math.inf)
    noisy = scores
    if noise is not None:
        counter = CounterNoise(noise, SEED, (scores[..., 0, 0].numel(), *scores.shape[-2:]), device=q.device)
        drawn = counter.block(slice(None), slice(None), dtype=torch.float32).view(scores.shape)
        noisy = scores + scale.view(-1, 1, 1) * drawn
    return noisy.softmax(-1) @ v, scores.logsumexp(-1)


def check_dropout() -> Row:
    """A row of the dropout of dense layers; blocked ones have none."""
    count = 2**20
    share = (Dropout(DROPOUT)(torch.ones(count)) == 0).double().mean().item()
    return _row("dropout", abs(share - DROPOUT) / math.sqrt(DROPOUT * (1 - DROPOUT) / count), allowed=5)


# Attention and training steps


def make_attention_step(contestant: str, sizes: Positions) -> Step | None:
    """Forward and backward, as of :func:`make_blocked_step`, also of torch's flex_attention, without noise."""
    if contestant != FLEX:
        return make_blocked_step(contestant, sizes)
    from torch.nn.attention.flex_attention import flex_attention

    torch.manual_seed(0)
    layer = SoftmaxLayer(torch.randn(3, 1, sizes.heads, sizes.length, sizes.width, dtype=sizes.dtype))
    if not layer.vectors.is_cuda:  # there it has no backward pass
        return None
    attend = torch.compile(flex_attention, dynamic=False)
    return training_step(layer, loss=lambda: attend(*layer.vectors).square().mean(dtype=torch.float32), optimizer=None)


BENCHMARKS = (
    Benchmark(
        title="Attention",
        text="Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, beside two of "
        "torch's softmax attention, without anything Bayesian: 16 heads of width 64 in bfloat16, by CUDA events.",
        make_step=make_attention_step,
        contestants=(SOFTMAX, FLEX, BLOCKWISE),
        sizes={f"{n} positions": Positions(n, heads=16, width=64, dtype=torch.bfloat16) for n in (2048, 8192, 32768)},
        rounds=10,
    ),
    Benchmark(
        title="BERT",
        text="Training steps (forward, backward, AdamW) of a BERT of base size, 32 x 128 tokens with padding.",
        make_step=make_bert_step,
        contestants=("sdpa", "soft", "Weibull"),
        sizes={"base": Tokens(layers=12, heads=12, width=768, hidden=3072, length=128)},
        rounds=20,
    ),
    Benchmark(
        title="Translation",
        text="Training steps (forward, backward, Adam) of a translation model, untrained, by inference scheme: 64 "
        "sentences of 25 words, 32000 tokens, two layers of width 768, that of the decoder of Deng et al. (2018).",
        make_step=make_scheme_step,
        contestants=("soft", "weibull", "marginal", "categorical_enum"),
        sizes={"the paper's": Sizes(batch=64, width=768, vocabulary=32_000)},
        rounds=10,
    ),
)
TINY: dict[str, dict[str, Any]] = {
    "Attention": {"32 positions": Positions(32, heads=2, width=8)},
    "BERT": {"tiny": Tokens(layers=1, heads=2, width=8, hidden=8, vocabulary=20, batch=3, length=5)},
    "Translation": {"tiny": Sizes(3, targets=2, batch=2, width=4, vocabulary=6)},
}

# Waits

COUNTED = (
    "How often a step, with its optimizer's, waits for its device, by the profiler's count of cudaStreamSynchronize. "
    "Steps are later ones than those in which all values are validated."
)


def waits(benchmark: Benchmark) -> list[Row]:
    """A row for each contestant of training steps, at the first size."""
    name, size = next(iter(benchmark.sizes.items()))
    rows: list[Row] = []
    for one in benchmark.contestants:
        with torch.device(benchmark.device):
            step = benchmark.make_step(one, size)
            assert step is not None, one
            for _ in range(11):
                step()
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (benchmark.device == "cuda")
            with profile(activities=activities) as seen:
                step()
        count = sum(each.count for each in seen.key_averages() if each.key.endswith("StreamSynchronize"))
        rows.append({"step": f"{benchmark.title}, {name}", "contestant": one, "waits": Estimate(count, digits=0)})
    return rows
