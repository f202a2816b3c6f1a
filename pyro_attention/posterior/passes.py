"""Passes of a model under its guide, each of which draws one or many posterior samples."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyro
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention.guide import AttentionGuide, is_attention_site, run_guide
from pyro_attention.posterior.handlers import AtMean, dropout_mode, seeded, stop_after
from pyro_attention.posterior.sample_size import SampleSize

__all__ = ["Noise", "Pass", "Request", "passes"]

Noise = Literal["attention", "dropout", "both", "none"]


@dataclass(frozen=True)
class Request:
    """How many samples to draw, of what, and how many in a pass: see :func:`pyro_attention.sample_posterior`."""

    num_samples: int
    noise: Noise
    chunk_size: int | None
    memory_budget: float | None
    seed: int | None

    def __post_init__(self) -> None:
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise is '{self.noise}', expected 'attention', 'dropout', 'both' or 'none'")
        chunk_size = 1 if self.chunk_size is None else self.chunk_size
        for name, count in (("num_samples", self.num_samples), ("chunk_size", chunk_size)):
            if not isinstance(count, int):
                raise TypeError(f"{name} is {count!r}, expected an integer; memory_budget chooses a chunk_size")
            if count < 1:
                raise ValueError(f"{name} is {count}, expected at least 1")
        if self.memory_budget is not None and not self.memory_budget > 0:
            raise ValueError(f"memory_budget is {self.memory_budget}, expected a positive number of bytes, as 1e9")
        if self.dropout and (self.memory_budget is not None or chunk_size > 1):
            name = "chunk_size" if self.memory_budget is None else "memory_budget"
            raise ValueError(
                f"{name} is {getattr(self, name)} with noise='{self.noise}': samples of one pass would share dropout "
                f"masks ahead of the first attention; use chunk_size=1"
            )

    @property
    def dropout(self) -> bool:
        """Whether dropout is random."""
        return self.noise in ("dropout", "both")

    def chunk(self, sample_bytes: int) -> int:
        """Samples in a pass, when one takes so many bytes; ValueError when it takes more than there are."""
        if self.memory_budget is None:
            return self.chunk_size or 1
        if sample_bytes > self.memory_budget:
            raise ValueError(
                f"memory_budget is {self.memory_budget:.3g} bytes, expected at least {sample_bytes}, about what one "
                f"sample takes; raise it, give the model a smaller batch, or omit it for one sample a pass"
            )
        return int(min(self.memory_budget / max(1, sample_bytes), self.chunk_size or self.num_samples))


@dataclass(frozen=True)
class Pass:
    """One run of the model: ``size`` samples, in one extra plate at the left when ``vectorized``."""

    trace: Any
    output: Any
    size: int = 1
    nesting: int = 0
    vectorized: bool = False

    def attention_sites(self) -> Iterator[tuple[str, Any]]:
        """Name and trace node of every attention site."""
        return ((name, site) for name, site in self.trace.nodes.items() if is_attention_site(site))

    def weights(self) -> dict[str, Tensor]:
        """Attention weights by site, with one leading sample dimension."""
        return {
            name: self.samples_first(site["infer"]["prior"].weights(site["value"]), site)
            for name, site in self.attention_sites()
        }

    def samples_first(self, value: Tensor, site: Any) -> Tensor:
        """Site value with one leading sample dimension, without the unit dimensions of plates it is not in."""
        return value.flatten(0, self.nesting - _depth(site)) if self.vectorized else value.unsqueeze(0)

    def outputs(self) -> Tensor:
        """The model's return value, which must be a tensor, with a leading sample dimension."""
        if not isinstance(self.output, Tensor):
            raise TypeError(
                f"the model returned {type(self.output).__name__}, expected a tensor such as logits; return it from "
                f"the model, or make the guide of a function that picks it: AttentionGuide(lambda x: model(x)[0], ...)"
            )
        if not self.vectorized:
            return self.output.unsqueeze(0)
        if self.output.dim() == 0 or self.output.size(0) != self.size:
            raise ValueError(
                f"the model returned shape {tuple(self.output.shape)} for {self.size} samples in one pass, expected a "
                f"leading dimension of {self.size}; use chunk_size=1 unless the model broadcasts over it"
            )
        return self.output


def passes(
    guide: AttentionGuide, args: Any, kwargs: Any, request: Request, *, whole: bool
) -> Generator[Pass, None, None]:
    """Run the model under the guide until all samples are drawn.

    The first pass is one sample, and shows the model's plates, its attention sites and their sizes; those after it are
    chunks. Unless the ``whole`` model is wanted they end at the last attention site, and have no output.
    """
    attention = AtMean() if request.noise in ("dropout", "none") else nullcontext()
    with torch.no_grad(), seeded(request.seed), dropout_mode(request.dropout), attention:
        size = SampleSize(whole=whole)
        first = Pass(*_run(guide, args, kwargs, *([] if request.memory_budget is None else [size])))
        size.finish(first.output)
        chunk_size = request.chunk(size.bytes)
        sites = [site for site in first.trace.nodes.values() if site["type"] == "sample"]
        nesting = max((_depth(site) for site in sites), default=0)
        names = [name for name, _ in first.attention_sites()]
        yield first
        if chunk_size > 1 and request.num_samples > 1:
            _check_chunks(guide, args, kwargs, first, nesting, [] if whole else names)
        del first, sites
        for start in range(1, request.num_samples, chunk_size):
            chunk = min(chunk_size, request.num_samples - start)
            around: list[AbstractContextManager[Any]] = [] if whole else [stop_after(names)]
            if chunk_size > 1:
                around.append(pyro.plate("_samples", chunk, dim=-1 - nesting))
            yield Pass(*_run(guide, args, kwargs, *around), chunk, nesting, chunk_size > 1)


def _check_chunks(
    guide: AttentionGuide, args: Any, kwargs: Any, first: Pass, nesting: int, names: Collection[str]
) -> None:
    """Raise unless each of two samples in a pass is what one alone is: attention at its mean, the rest as in the first.

    The output is compared, or the weights of the sites of these names.
    """
    latent = first.trace.stochastic_nodes
    rest = {
        name: site
        for name, site in first.trace.nodes.items()
        if name in latent and not is_attention_site(site) and not site_is_subsample(site)
    }
    if len(names) == 1 and not rest:  # nothing is drawn ahead of it
        return
    together = {
        name: site["value"].expand(2, *[1] * (nesting - _depth(site)), *site["value"].shape)
        for name, site in rest.items()
    }

    def run(values: dict[str, Tensor], *around: AbstractContextManager[Any]) -> tuple[Any, Any]:
        until = [stop_after(names)] if names else []
        return _run(guide, args, kwargs, AtMean(values), *until, *around)

    alone = Pass(*run({name: site["value"] for name, site in rest.items()}))
    try:
        plate = pyro.plate("_samples", 2, dim=-1 - nesting)
        pair = Pass(*run(together, plate), 2, nesting, vectorized=True)
        expected, results = (drawn.weights() if names else {"the output": drawn.outputs()} for drawn in (alone, pair))
        for name, one in expected.items():
            two, scale = results[name], one.nan_to_num(0, 0, 0).abs().max().item()
            if two.shape[1:] != one.shape[1:]:
                raise ValueError(f"{name} has shape {tuple(two.shape[1:])}, expected {tuple(one.shape[1:])}")
            # as close as results in half precision are
            if not two.isclose(one, rtol=0, atol=0.01 * scale, equal_nan=True).all():
                raise ValueError(f"{name} has other numbers where two samples are in one pass than where one is")
    except Exception as error:
        error.add_note(
            "The model does not broadcast over a dimension of samples at the left: use chunk_size=1, or let the model "
            "count dimensions from the right, as in mean(-2) for mean(1), and draw no noise of its own."
        )
        raise


def _run(guide: AttentionGuide, args: Any, kwargs: Any, *around: AbstractContextManager[Any]) -> tuple[Any, Any]:
    """Trace and output of one run; the output of one that is stopped is None."""
    output = None
    with ExitStack() as stack:
        for handler in around:
            stack.enter_context(handler)
        # a run that is stopped returns no trace of its own
        tracer = stack.enter_context(poutine.trace())
        output = run_guide(guide, *args, **kwargs).output
    return tracer.trace, output


def _depth(site: Any) -> int:
    """Number of plate dimensions of a site, without that of the samples."""
    frames = site["cond_indep_stack"]
    return max((-frame.dim for frame in frames if frame.vectorized and frame.name != "_samples"), default=0)
