"""Posterior samples of attention weights: passes of a model under its guide, each of one or many samples."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal, get_args

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, check_guide, is_attention_site, run_guide

__all__ = ["AtMean", "Noise", "Pass", "passes", "sample_posterior", "seeded"]

# Pyro has one stack of handlers, and torch one generator, for all threads: they take turns.
_TURN = RLock()

Noise = Literal["attention", "dropout", "both", "none"]


def sample_posterior(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    log_weights: bool = False,
    chunk_size: int | None = None,
    memory_budget: float | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Draw attention weights from the posterior, :math:`W^{(s)} = \mathrm{normalize}(S^{(s)}),\ S^{(s)} \sim q`.

    A pass computes what is ahead of the first attention site once for all its samples, and only the first pass what is
    behind the last site. Other latent sites are random under every ``noise``. Threads take turns; meanwhile no other
    thread may run the model, train, or draw random numbers.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalised weights.
        chunk_size: Samples drawn in one pass, by a plate at the left (the model must broadcast over it, as for
            vectorised particles; two more passes check this). One when omitted, which suits every model.
        memory_budget: Bytes that the samples of one pass may take, beside the results: as many are drawn in it as fit,
            ``chunk_size`` at most, by what the first pass, of one sample, takes from the first attention site on.
        seed: Seed of this call alone; the global generator goes on as if nothing had happened.
        kwargs: Keyword arguments of the model.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``; of alignments ``[S, ..., 1, N]``, or with
        ``log_weights`` the chosen keys ``[S, ...]``, int64. Weights are in float32, or float64 where the scores are.

    Raises:
        TypeError: The guide is no AttentionGuide, or ``num_samples`` or ``chunk_size`` is no integer.
        ValueError: ``num_samples`` or ``chunk_size`` below one, chunks with dropout or of a model that does not
            broadcast, a memory budget below one sample, or attention sites that change from pass to pass.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    samples: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    draws = passes(guide, args, kwargs, num_samples, noise, chunk_size, memory_budget, seed, whole=False)
    with closing(draws):
        for drawn in draws:
            for name, value in drawn.weights(log_weights=log_weights):
                if name not in samples:
                    samples[name] = value.new_empty((num_samples, *value.shape[1:]))
                samples[name][counts[name] : counts[name] + len(value)] = value
                counts[name] += len(value)
            del drawn, value  # the next pass needs the memory
    for name, count in counts.items():
        if count != num_samples:
            raise ValueError(
                f"site '{name}' was reached by {count} of {num_samples} samples, expected all: the attention sites of "
                f"a model may not change from pass to pass"
            )
    return samples


@dataclass(frozen=True)
class Pass:
    """One run of the model: ``size`` samples, in one extra plate at the left when ``vectorized``."""

    trace: Any
    output: Any
    size: int = 1
    nesting: int = 0
    vectorized: bool = False

    def weights(self, *, log_weights: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Weights, or values, of every attention site, with one leading sample dimension."""
        for name, site in self.trace.nodes.items():
            if is_attention_site(site):
                value = site["value"].to_dense() if log_weights else site["infer"]["prior"].weights(site["value"])
                # without the unit dimensions of plates that the site is not in
                yield name, value.flatten(0, self.nesting - _depth(site)) if self.vectorized else value.unsqueeze(0)

    def outputs(self) -> Tensor:
        """The model's return value, which must be a tensor, with a leading sample dimension."""
        if not isinstance(self.output, Tensor):
            raise TypeError(
                f"the model returned {type(self.output).__name__}, expected a tensor such as logits; return it from "
                f"the model, or make the guide of a function that picks it: AttentionGuide(lambda x: model(x)[0], ...)"
            )
        output = self.output if self.vectorized else self.output.unsqueeze(0)
        if output.shape[:1] != (self.size,):
            raise ValueError(
                f"the model returned shape {tuple(output.shape)} for {self.size} samples in one pass, expected a "
                f"leading dimension of {self.size}; use chunk_size=1 unless the model broadcasts over it"
            )
        return output


def passes(
    guide: AttentionGuide,
    args: Any,
    kwargs: Any,
    num_samples: int,
    noise: Noise,
    chunk_size: int | None,
    memory_budget: float | None,
    seed: int | None,
    *,
    whole: bool,
) -> Generator[Pass, None, None]:
    """Run the model under the guide until all samples are drawn; arguments are those of :func:`sample_posterior`.

    The first pass is one sample, and shows the model's plates, its attention sites and their sizes; those after it are
    chunks. Unless the ``whole`` model is wanted they end at the last attention site, and have no output.
    """
    check_guide(guide)
    _check_options(num_samples, noise, chunk_size, memory_budget)
    attention = AtMean() if noise in ("dropout", "none") else nullcontext()
    with _TURN, torch.no_grad(), seeded(seed), _dropout_mode(noise in ("dropout", "both")), attention:
        size = _SampleSize()
        first = Pass(*_run(guide, args, kwargs, *([] if memory_budget is None else [size, size.tensors])))
        if memory_budget is not None:
            sample_bytes = size.with_copies_of(first.output) if whole else size.at_last_site
            if sample_bytes > memory_budget:
                raise ValueError(
                    f"memory_budget is {memory_budget:.3g} bytes, expected at least {sample_bytes}, about what one "
                    f"sample takes; raise it, give the model a smaller batch, or omit it for one sample a pass"
                )
            chunk_size = int(min(memory_budget / max(1, sample_bytes), chunk_size or num_samples))
        chunk_size = chunk_size or 1
        sites = [site for site in first.trace.nodes.values() if site["type"] == "sample"]
        nesting = max(map(_depth, sites), default=0)
        last = [] if whole else [site["name"] for site in sites if is_attention_site(site)]
        yield first
        if chunk_size > 1 and num_samples > 1:
            _check_chunks(guide, args, kwargs, first, nesting, last)
        del first, sites  # the next pass needs the memory
        for start in range(1, num_samples, chunk_size):
            chunk = min(chunk_size, num_samples - start)
            plate = [pyro.plate("_samples", chunk, dim=-1 - nesting)] if chunk_size > 1 else []
            yield Pass(*_run(guide, args, kwargs, *_until(last), *plate), chunk, nesting, chunk_size > 1)


def _check_options(num_samples: int, noise: Noise, chunk_size: int | None, memory_budget: float | None) -> None:
    """Raise TypeError or ValueError unless samples can be drawn with these options."""
    if noise not in get_args(Noise):
        raise ValueError(f"noise is '{noise}', expected 'attention', 'dropout', 'both' or 'none'")
    for name, count in (("num_samples", num_samples), ("chunk_size", 1 if chunk_size is None else chunk_size)):
        if not isinstance(count, int):
            raise TypeError(f"{name} is {count!r}, expected an integer; memory_budget chooses a chunk_size")
        if count < 1:
            raise ValueError(f"{name} is {count}, expected at least 1")
    if memory_budget is not None and not memory_budget > 0:
        raise ValueError(f"memory_budget is {memory_budget}, expected a positive number of bytes, as 1e9")
    if noise in ("dropout", "both") and (memory_budget is not None or (chunk_size or 1) > 1):
        seen = f"chunk_size is {chunk_size}" if memory_budget is None else f"memory_budget is {memory_budget}"
        raise ValueError(
            f"{seen} with noise='{noise}': samples of one pass would share dropout masks ahead of the first attention; "
            f"use chunk_size=1"
        )


def _check_chunks(guide: Any, args: Any, kwargs: Any, first: Pass, nesting: int, last: Collection[str]) -> None:
    """Raise unless each of two samples in a pass is what one alone is: attention at its mean, the rest as in the first.

    The output is compared, or the weights of the sites that come last.
    """
    latent = [first.trace.nodes[name] for name in first.trace.stochastic_nodes]
    rest = [site for site in latent if not is_attention_site(site) and not site_is_subsample(site)]
    if len(last) == 1 and not rest:  # nothing is drawn ahead of it
        return
    one = {site["name"]: site["value"] for site in rest}
    two = {
        site["name"]: site["value"].expand(2, *[1] * (nesting - _depth(site)), *site["value"].shape) for site in rest
    }
    alone = Pass(*_run(guide, args, kwargs, AtMean(one), *_until(last)))
    try:
        plate = pyro.plate("_samples", 2, dim=-1 - nesting)
        pair = Pass(*_run(guide, args, kwargs, AtMean(two), *_until(last), plate), 2, nesting, vectorized=True)
        found, wanted = (dict(drawn.weights()) if last else {"output": drawn.outputs()} for drawn in (pair, alone))
        for name, expected in wanted.items():
            atol = 0.01 * expected.nan_to_num(0, 0, 0).abs().max().item()  # as close as results in half precision are
            same = found[name].shape[1:] == expected.shape[1:]
            if not (same and found[name].isclose(expected, rtol=0, atol=atol, equal_nan=True).all()):
                raise ValueError(f"{name} is another one where two samples are in one pass than where one is")
    except Exception as error:
        error.add_note(
            "The model does not broadcast over a dimension of samples at the left: use chunk_size=1, or let the model "
            "count dimensions from the right, as in mean(-2) for mean(1), and draw no noise of its own."
        )
        raise


def _run(guide: Any, args: Any, kwargs: Any, *around: AbstractContextManager[Any]) -> tuple[Any, Any]:
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


class AtMean(Messenger):
    """Sets every attention weight to its posterior mean, and other sites to given values; stands outside the guide."""

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.values = {} if values is None else values

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and isinstance(msg["fn"], AttentionDistribution):
            msg["value"] = msg["fn"].mean_value
        elif msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


class _Enough(BaseException):
    """Ends a pass; no Exception, which a model might catch."""


class _Last(Messenger):
    """Ends what runs inside as soon as all of these sites have their values."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.missing = set(names)

    def __exit__(self, kind: Any, *error: Any) -> bool:  # type: ignore[override]
        super().__exit__(kind, *error)
        return kind is _Enough

    def _pyro_sample(self, msg: Any) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            # Pyro calls it after all handlers, so the guide's trace has this site, too
            msg["continuation"] = self._stop

    @staticmethod
    def _stop(_: Any) -> None:
        raise _Enough


def _until(names: Collection[str]) -> list[_Last]:
    return [_Last(names)] if names else []


@contextmanager
def _dropout_mode(active: bool) -> Iterator[None]:
    """Evaluation mode for every module that runs, except dropout when it is to be sampled.

    A hook on all modules also reaches those that a plain model function holds in its closure. The first call of a
    module sets what is inside it, too, as a layer may read the mode of a dropout that it does not call.
    """
    before: dict[nn.Module, bool] = {}

    def set_mode(module: nn.Module, _: Any) -> None:
        for part in [module] if module in before else module.modules():
            before.setdefault(part, part.training)
            is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
            part.training = active and (is_dropout or isinstance(getattr(part, "dropout", None), float))

    handle = register_module_forward_pre_hook(set_mode)
    try:
        yield
    finally:
        handle.remove()
        for module, training in before.items():
            module.training = training


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators inside the context and restore them after it; nothing when the seed is None.

    Example:
        >>> with seeded(0):
        ...     first = torch.rand(1)
        >>> with seeded(0):
        ...     bool(first == torch.rand(1))
        True
    """
    # every other device's generator too would draw a warning where there are many
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield


class _SampleSize(Messenger):
    """Bytes that a pass needs from its first attention site on: what many samples need many times; around a guide."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.at_last_site = _NewTensors(), 0

    def with_copies_of(self, value: Any) -> int:
        """With about three copies of a value, as normalisation takes, or a transform with its statistics."""
        copies = 3 * value.nbytes if isinstance(value, Tensor) else 0
        return max(self.tensors.most, self.tensors.now + copies)

    def _pyro_sample(self, msg: Any) -> None:
        self.tensors.counting |= is_attention_site(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_attention_site(msg):
            self.at_last_site = self.with_copies_of(msg["value"])


class _NewTensors(TorchDispatchMode):
    """Bytes of the tensors that operations make while ``counting``: there now, and the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.counting, self.now, self.most = False, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.counting:
            seen = {storage._cdata for storage in _storages((args, kwargs))}
            for storage in _storages(output):
                # a view, or an operation in place, makes nothing new
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes())
        return output

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def _storages(tree: Any) -> list[Any]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided)
    # a subclass that answers every operation itself need not have a storage
    return [leaf.untyped_storage() for leaf in leaves if type(leaf).__torch_dispatch__ is Tensor.__torch_dispatch__]
