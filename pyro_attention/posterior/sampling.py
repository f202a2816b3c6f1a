"""Posterior samples of attention weights: passes of a model under its guide, each of one or many samples."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
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

__all__ = [
    "AtMean",
    "Noise",
    "Pass",
    "Request",
    "SampleSize",
    "dropout_mode",
    "passes",
    "sample_posterior",
    "seeded",
    "stop_after",
]


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
    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.missing = set(names)

    def _pyro_sample(self, msg: Any) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            # Pyro calls it after all handlers, so the guide's trace has this site, too
            msg["continuation"] = self._stop

    @staticmethod
    def _stop(_: Any) -> None:
        raise _Enough


@contextmanager
def stop_after(names: Collection[str]) -> Iterator[None]:
    """End what runs inside as soon as all of these sites have their values; what follows them is not computed."""
    with suppress(_Enough), _Last(names):
        yield


@contextmanager
def dropout_mode(active: bool) -> Iterator[None]:
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
    if seed is None:
        yield
        return
    # every other device's generator too would draw a warning where there are many
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


class SampleSize(Messenger):
    """Measures the memory, ``bytes``, that a pass needs from its first attention site on; stands outside the guide.

    That is what many samples of one pass need many times; nothing ahead of that site is repeated. Samples run through
    the ``whole`` model, or else end at the last attention site.
    """

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.bytes, self._tensors = whole, 0, _NewTensors()

    def finish(self, output: Any) -> None:
        """Add what becomes of the output: about three copies, in a transform and in statistics."""
        if self.whole:
            copies = 3 * output.nbytes if isinstance(output, Tensor) else 0
            self.bytes = max(self._tensors.most, self._tensors.now + copies)

    def __enter__(self) -> SampleSize:
        super().__enter__()
        self._tensors.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tensors.__exit__(*error)
        super().__exit__(*error)

    def _pyro_sample(self, msg: Any) -> None:
        self._tensors.counting = self._tensors.counting or is_attention_site(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_attention_site(msg):
            # normalisation takes about three copies
            self.bytes = max(self._tensors.most, self._tensors.now + 3 * msg["value"].nbytes)


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


# What torch's allocators say: for a CPU on each system, for a GPU, and of a size beyond 64 bits.
_OUT_OF_MEMORY = "can't allocate memory", "not enough memory", "out of memory", "overflow"

# Pyro has one stack of handlers, and torch one generator, for all threads: they take turns.
_TURN = RLock()

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

    The first pass is one sample; the others are drawn in chunks. A chunk computes what is ahead of the first attention
    site once, and nothing behind the last one: many samples of a single site cost little more than two passes.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalised weights.
        chunk_size: Samples drawn in one pass, by a plate at the left (the model must broadcast over it, as for
            vectorised particles; two more passes check this). One when omitted, which suits every model.
        memory_budget: Bytes that the samples of one pass may take, beside the results: as many are drawn in it as fit,
            ``chunk_size`` at most, by what the first pass takes from the first attention site on.
        seed: Seed of this call alone; the global generator goes on as if nothing had happened.
        kwargs: Keyword arguments of the model.

    Other latent sites are random under every ``noise``. Threads take turns, each with a guide of its own. At the same
    time no other thread may run the model, train, or draw random numbers: a process has one stack of handlers, so that
    a model that another thread calls would be random, too, and one generator.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``; of alignments ``[S, ..., 1, N]``, or with
        ``log_weights`` the chosen keys ``[S, ...]``, int64. Weights are in float32, or float64 where the scores are.

    Raises:
        TypeError: The guide is no AttentionGuide, or ``num_samples`` or ``chunk_size`` is no integer.
        ValueError: ``num_samples`` or ``chunk_size`` below one, chunks with dropout, a memory budget below one sample,
            samples that do not fit in memory, attention sites that change from pass to pass, or chunks of a model that
            does not broadcast.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    check_guide(guide)
    request = Request(num_samples, noise, chunk_size, memory_budget, seed)
    with _TURN, closing(passes(guide, args, kwargs, request, whole=False)) as draws:
        return _collect(draws, num_samples, log_weights=log_weights)


def _collect(draws: Iterable[Pass], num_samples: int, *, log_weights: bool) -> dict[str, Tensor]:
    """Samples of every attention site; ValueError where a site was not reached by all of them."""
    samples: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for drawn in draws:
        for name, site in drawn.attention_sites():
            prior, value = site["infer"]["prior"], site["value"]
            value = value.to_dense() if log_weights else prior.weights(value)
            value = drawn.samples_first(value, site)
            if name not in samples:
                samples[name] = _room(name, num_samples, value)
            samples[name][counts[name] : counts[name] + len(value)] = value
            counts[name] += len(value)
        del drawn, prior, value, site  # the next pass needs the memory
    for name, count in counts.items():
        if count != num_samples:
            raise ValueError(
                f"site '{name}' was reached by {count} of {num_samples} samples, expected all: the attention sites of "
                f"a model may not change from pass to pass"
            )
    return samples


def _room(name: str, num_samples: int, value: Tensor) -> Tensor:
    """Memory for all samples of a site, of which ``value`` has one first."""
    shape = (num_samples, *value.shape[1:])
    try:
        return value.new_empty(shape)
    except RuntimeError as error:
        if not any(reason in str(error) for reason in _OUT_OF_MEMORY):
            raise
        size = 1e-9 * num_samples * value[0].nbytes
        raise ValueError(
            f"site '{name}': {num_samples} samples of shape {shape[1:]} would take {size:.1f} GB, more than can be "
            f"allocated; draw fewer, or use predict, which streams over samples"
        ) from error
