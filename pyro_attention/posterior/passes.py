"""Passes of a model under its guide, each of one or many samples.

Many samples of one pass are in a plate at the left of those of the model, where a replay shows that the model
broadcasts over it (:func:`pyro_attention.draws.broadcasts`); the part of the model before the first attention site is
then computed once for all samples. Samples of a model that does not broadcast are drawn one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from threading import RLock
from typing import Literal, get_args

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.seed_messenger import SeedMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_attention._checks import check_count
from pyro_attention._compat import DROPOUT, handlers_around
from pyro_attention._typing import Args, Kwargs, Message, Model, Trace
from pyro_attention.draws import Minibatch, Replayed, SharedDraws, broadcasts, is_point_mass
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import DRAWS, attention_weights, check_guide, is_attention_site, plates_of, run_guide

__all__ = [
    "AtMean",
    "Noise",
    "Pass",
    "Run",
    "depth",
    "evaluation_mode",
    "in_evaluation",
    "is_latent",
    "outputs",
    "passes",
    "read_draws",
    "seeded",
]

# Pyro has one stack of handlers, and torch one generator, for all threads: they take turns.
_TURN = RLock()
_LARGEST = 2**18  # weights of a site in a pass; with more, the tensors of a stack leave the cache of a processor

Noise = Literal["attention", "dropout", "both", "none"]


@dataclass(frozen=True)
class Pass:
    """One run of the model: one sample, or ``size`` samples in a plate at the left of ``nesting`` dimensions."""

    trace: Trace
    output: object
    nesting: int | None = None
    size: int = 1

    def weights(self, *, log_weights: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every attention site with its weights, or its value, with a leading sample dimension."""
        for name, site in self.trace.nodes.items():
            if is_attention_site(site):
                value = site["value"].to_dense() if log_weights else attention_weights(site)
                yield name, self.rows(site, value)

    def latent_values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every latent or attention site with its value, with a leading sample dimension."""
        for name, site in self.trace.nodes.items():
            if is_attention_site(site) or is_latent(site):
                yield name, self.rows(site, site["value"].to_dense())

    def rows(self, site: Message, value: Tensor) -> Tensor:
        """Return a tensor of a site, such as its value, with a leading sample dimension."""
        if self.nesting is None or _batch_dims(site) <= self.nesting:  # one for all samples
            return value.expand(self.size, *value.shape)
        return value.flatten(0, self.nesting - depth(site))  # without the unit dimensions of plates that it is not in


def _batch_dims(site: Message) -> int:
    """Return the number of batch dimensions of a site; none of samples for a point mass and for given attention."""
    if site["is_observed"] and is_attention_site(site):
        prior: AttentionDistribution = site["infer"]["prior"]
        return attention_weights(site).dim() - len(prior.full_shape) + len(prior.batch_shape)
    return len(site["fn"].batch_shape)


def is_latent(site: Message) -> bool:
    """Return whether a site is a latent variable: drawn, and no index of a plate."""
    return site["type"] == "sample" and not site["is_observed"] and not site_is_subsample(site)


def depth(site: Message) -> int:
    """Return the number of plate dimensions of a site, without the plate of the samples."""
    return max((-frame.dim for frame in plates_of(site).values()), default=0)


@dataclass(frozen=True)
class Run:
    """Run of a model under its guide, which a call repeats.

    Attributes:
        guide: The guide, with or without handlers around it.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        whole: Whether the whole model is needed, or its attention alone.
    """

    guide: Model
    args: Args
    kwargs: Kwargs
    whole: bool = True

    def __call__(self, around: AbstractContextManager[object] = nullcontext()) -> tuple[Trace, object]:  # noqa: B008
        """Run the model inside a handler, and return its trace and its output."""
        with around:
            result = run_guide(self.guide, *self.args, **self.kwargs)
        if not any(map(is_attention_site, result.trace.nodes.values())):
            names = ", ".join(map(repr, result.trace.stochastic_nodes)) or "none"
            raise ValueError(
                f"the model has no attention site (its latent sites: {names}), so there are no attention weights to "
                f"draw; build it with LatentAttention or a layer that has one, convert a network by "
                f"integrations.torch_nn.bayesian or integrations.huggingface.bayesian, or, for other latent sites, use "
                f"pyro.infer.Predictive"
            )
        return result.trace, result.output


def read_draws(
    run: Run,
    read: Callable[[Pass], Iterator[tuple[str, Tensor]]],
    *,
    num_samples: int,
    noise: Noise,
    chunk_size: int,
    seed: int | None,
) -> dict[str, Tensor]:
    """Return tensors that ``read`` yields from every pass, joined over the samples ``[S, ...]``, by the site's name."""
    samples: dict[str, list[Tensor]] = {}
    with closing(passes(run, num_samples, noise, chunk_size, seed)) as draws:
        for drawn in draws:
            for name, value in read(drawn):
                samples.setdefault(name, []).append(value)
            del drawn, value  # the next pass needs the memory
    return {name: torch.cat(samples.pop(name)) for name in list(samples)}  # one at a time, for the memory


def passes(run: Run, num_samples: int, noise: Noise, chunk_size: int, seed: int | None) -> Generator[Pass, None, None]:
    """Run the model until all samples are drawn; all are of one minibatch, and the first pass is validated.

    Args:
        run: The run that is repeated.
        num_samples: Number of samples.
        noise: What is random; see :func:`sample_posterior`.
        chunk_size: Samples in one pass at most.
        seed: Seed of all passes.

    Raises:
        TypeError: The guide is no AttentionGuide.
        ValueError: A number is no positive integer, ``noise`` is unknown, several samples would share dropout, or all
            of them their seed.
    """
    check_guide(run.guide)
    if noise not in get_args(Noise):
        raise ValueError(f"noise is '{noise}', expected 'attention', 'dropout', 'both' or 'none'")
    for name, count in (("num_samples", num_samples), ("chunk_size", chunk_size)):
        check_count(name, count)
    if noise in ("dropout", "both") and chunk_size > 1:
        problem = f"noise is '{noise}', and many samples of one pass would share dropout masks ahead of the attention"
        raise ValueError(f"{problem}; use chunk_size=1")
    if num_samples > 1:
        _check_not_seeded(run.guide)
    attention = AtMean() if noise in ("dropout", "none") else nullcontext()
    with (
        _TURN,
        torch.no_grad(),
        seeded(seed),
        evaluation_mode(dropout=noise in ("dropout", "both")),
        attention,
        Minibatch(),
    ):
        yield from _draw(run, num_samples, chunk_size)


def _check_not_seeded(guide: Model) -> None:
    """Raise ValueError where poutine.seed around a guide or its model makes all runs the same."""
    handlers = [*handlers_around(guide), *handlers_around(check_guide(guide).model)]
    if any(isinstance(handler, SeedMessenger) for handler in handlers):
        raise ValueError(
            "poutine.seed around the guide or its model seeds every run, so that all samples would be the same one; "
            "leave it out, and pass seed= to this call"
        )


def _draw(run: Run, num_samples: int, chunk_size: int) -> Iterator[Pass]:
    """Yield passes of at most ``chunk_size`` samples.

    The first has one sample, and so has every pass where a model does not broadcast.

    Where the attention alone is wanted, passes after the first end when its sites have their values. On a CPU, samples
    of several sites are so few in a pass that they take no longer than one by one.
    """
    first = Pass(*run())
    left = num_samples - 1
    if chunk_size > 1 and left:
        is_fixed = _fixed_attention(first.trace)
        # what nothing is drawn for is repeated, as its samples would not show
        plate = pyro.plate if all(is_fixed.values()) else SharedDraws
        nesting = max((depth(site) for site in first.trace.nodes.values() if site["type"] == "sample"), default=0)
        if not run.whole:
            run = _Early(run.guide, run.args, run.kwargs, sites=tuple(is_fixed))
        may_share = _may_share_a_pass(run, first.trace, is_fixed, nesting, plate)
        chunk_size = _worthwhile_size(chunk_size, first.trace, is_fixed) if may_share else 1
    yield first
    del first  # the next pass needs the memory
    while left:
        count = min(chunk_size, left)
        with pyro.validation_enabled(False):
            result = run(plate(DRAWS, count, dim=-1 - nesting)) if chunk_size > 1 else run()
        yield Pass(*result, nesting, count) if chunk_size > 1 else Pass(*result)
        left -= count
        del result


def _fixed_attention(trace: Trace) -> dict[str, bool]:
    """Return the attention sites of a run, and whether they are given or point masses, so that nothing is drawn."""
    return {
        name: site["is_observed"] or is_point_mass(site["fn"])
        for name, site in trace.nodes.items()
        if is_attention_site(site)
    }


def _worthwhile_size(chunk_size: int, trace: Trace, is_fixed: Mapping[str, bool]) -> int:
    """Return the size of chunks, smaller where on a CPU a pass would take longer than its samples one by one."""
    values = [trace.nodes[name]["value"] for name, fixed in is_fixed.items() if not fixed]
    if len(values) < 2 or values[0].device.type != "cpu":
        return chunk_size
    largest_site: int = max(value.numel() for value in values)
    return min(chunk_size, max(1, _LARGEST // largest_site))


def _may_share_a_pass(
    run: Run, first: Trace, is_fixed: Mapping[str, bool], nesting: int, plate: type[pyro.plate]
) -> bool:
    """Return whether samples may share a pass.

    Args:
        run: The run that is repeated.
        first: Trace of the first run.
        is_fixed: Attention sites, and whether nothing is drawn at them.
        nesting: Number of nested plates of the model.
        plate: Class of the plate of the samples.
    """
    if isinstance(run, _Early):
        ahead = takewhile(lambda site: site["name"] != run.sites[-1], first.nodes.values())
        if not any(is_latent(site) and not is_point_mass(site["fn"]) for site in ahead):
            return True  # nothing that its last site reads is drawn
    if all(is_fixed.values()) and any(first.nodes[name]["is_observed"] for name in is_fixed):
        return False  # the output of attention that is given has no dimension for the samples

    def look() -> Replayed:
        trace, output = run()
        return Replayed([trace], output)

    model, kind = check_guide(run.guide).model, (type(run), *is_fixed.items())
    return broadcasts(run.guide, model, kind, look, nesting=nesting, plate=plate)


@dataclass(frozen=True)
class _Early(Run):
    """Run that ends when all of some sites have their values, without an output."""

    sites: tuple[str, ...] = ()

    def __call__(self, around: AbstractContextManager[object] = nullcontext()) -> tuple[Trace, object]:  # noqa: B008
        tracer = poutine.trace()  # a run that is stopped returns no trace of its own
        with suppress(_Enough), _Stop(self.sites), around:
            super().__call__(tracer)
        return tracer.trace, None


class _Enough(BaseException):
    """End of a pass; not an ``Exception``, which a model might catch."""


class _Stop(Messenger):
    """Handler that ends a run as soon as all of some sites have their values."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.missing = set(names)

    def _pyro_sample(self, msg: Message) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            # Pyro calls it after all handlers, so the guide's trace has this site, too
            msg["continuation"] = self._stop

    @staticmethod
    def _stop(_: Message) -> None:
        raise _Enough


def outputs(drawn: Pass) -> Tensor:
    """Return the model's return value in a pass, which must be a tensor, with a leading sample dimension."""
    if not isinstance(drawn.output, Tensor):
        raise TypeError(
            f"the model returned {type(drawn.output).__name__}, expected a tensor such as logits; return it from the "
            f"model, or make the guide of a function that picks it: AttentionGuide(lambda x: model(x)[0], ...)"
        )
    output = drawn.output.unsqueeze(0) if drawn.nesting is None else drawn.output
    if output.shape[:1] != (drawn.size,):
        raise ValueError(
            f"the model returned shape {tuple(output.shape)} for {drawn.size} samples in one pass, expected a leading "
            f"dimension of {drawn.size}; use chunk_size=1 unless the model broadcasts over it"
        )
    return output


class AtMean(Messenger):
    """Handler around a guide that makes every attention site a point mass at its posterior mean."""

    def _pyro_sample(self, msg: Message) -> None:
        if not msg["is_observed"] and isinstance(msg["fn"], AttentionDistribution):
            value = msg["fn"].mean_value
            msg["fn"] = pyro.distributions.Delta(value, event_dim=value.dim() - len(msg["fn"].batch_shape))


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode within the context; afterwards each of its modules has its own mode again."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def evaluation_mode(*, dropout: bool = False) -> Iterator[None]:
    """Run modules in evaluation mode, also those in the closure of a plain function; ``dropout`` leaves dropout on."""
    before: dict[nn.Module, bool] = {}

    def set_mode(module: nn.Module, _: object) -> None:
        for part in [module] if module in before else module.modules():
            before.setdefault(part, part.training)
            is_dropout = isinstance(part, DROPOUT)
            part.training = dropout and (is_dropout or isinstance(getattr(part, "dropout", None), float))

    handle = register_module_forward_pre_hook(set_mode)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    if dropout:  # torch's fused layer of a Transformer has none
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        handle.remove()
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in before.items():
            module.training = training


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators inside the context and restore them after it; nothing when the seed is None."""
    # all of them are seeded; named, because torch warns of many where it is left to find them
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
