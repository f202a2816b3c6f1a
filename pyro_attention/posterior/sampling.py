"""Posterior samples of attention weights: passes of a model under its guide, each of one or many samples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any, Literal, get_args

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, attention_weights, check_guide, is_attention_site, plates_of, run_guide
from pyro_attention.registry import Registry

__all__ = [
    "CONDITIONS",
    "SAMPLERS",
    "AtMean",
    "Noise",
    "Pass",
    "Run",
    "depth",
    "evaluation_mode",
    "passes",
    "sample_posterior",
    "seeded",
]

# Pyro has one stack of handlers, and torch one generator, for all threads: they take turns.
_TURN = RLock()

Noise = Literal["attention", "dropout", "both", "none"]


def sample_posterior(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    log_weights: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    given: Literal["observations"] | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Draw attention weights from the posterior, :math:`W^{(s)} = \mathrm{normalize}(S^{(s)}),\ S^{(s)} \sim q`.

    Quantiles of the draws are intervals of single weights. Weights are not what Pyro takes for the value of a site,
    which is :math:`\log S`: for ``Predictive``, ``poutine.condition`` and ``replay`` there is :func:`sample_sites`.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalized weights.
        chunk_size: Samples drawn in one pass at most (see :mod:`pyro_attention.posterior.chunks`).
        seed: Seed of this call alone.
        given: "observations" gives draws of :math:`p(W \mid x, y)`, whatever the guide has seen: those of
            :func:`weighted_posterior`, drawn again by their weights, each item by itself; it warns where few draws
            carry the weight (:class:`UnreliableWeights`).
        kwargs: Keyword arguments of the model.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``; of alignments ``[S, ..., 1, N]``, or with
        ``log_weights`` the chosen keys ``[S, ...]``.

    Raises:
        TypeError: The guide is no AttentionGuide.
        ValueError: ``num_samples`` or ``chunk_size`` is no positive integer, chunks do not go with the model, or the
            model has no attention site.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    if given is not None:
        read = partial(Pass.weights, log_weights=log_weights)
        run = Run(guide, args, kwargs)
        with seeded(seed):
            return CONDITIONS[given](run, num_samples, noise, chunk_size, read)
    samples: dict[str, list[Tensor]] = {}
    with closing(passes(Run(guide, args, kwargs, whole=False), num_samples, noise, chunk_size, seed)) as draws:
        for drawn in draws:
            for name, value in drawn.weights(log_weights=log_weights):
                samples.setdefault(name, []).append(value)
            del drawn, value  # the next pass needs the memory
    return {name: torch.cat(samples.pop(name)) for name in list(samples)}  # one at a time, for the memory


@dataclass(frozen=True)
class Pass:
    """One run of the model: one sample, or ``size`` of them in an extra plate at the left of ``nesting`` dimensions."""

    trace: Any
    output: Any
    nesting: int | None = None
    size: int = 1

    def weights(self, *, log_weights: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Weights, or values, of every attention site, with one leading sample dimension."""
        for name, site in self.trace.nodes.items():
            if is_attention_site(site):
                value = site["value"].to_dense() if log_weights else attention_weights(site)
                yield name, self.rows(site, value)

    def rows(self, site: Any, value: Tensor) -> Tensor:
        """Return what a site has in this pass, such as its value, with one leading sample dimension."""
        if self.nesting is None or len(site["fn"].batch_shape) <= self.nesting:  # of a point mass one for all
            return value.expand(self.size, *value.shape)
        return value.flatten(0, self.nesting - depth(site))  # without the unit dimensions of plates that it is not in


def depth(site: Any) -> int:
    """Number of plate dimensions of a site, without that of the samples."""
    return max((-frame.dim for frame in plates_of(site).values()), default=0)


@dataclass(frozen=True)
class Run:
    """Runs a model under its guide, with its arguments and a handler to stand around; gives trace and output."""

    guide: Any
    args: Any
    kwargs: Any
    whole: bool = True  # or the attention alone is wanted

    def __call__(self, around: AbstractContextManager[Any] = nullcontext()) -> tuple[Any, Any]:  # noqa: B008
        with around:
            found = run_guide(self.guide, *self.args, **self.kwargs)
        if not any(map(is_attention_site, found.trace.nodes.values())):
            names = ", ".join(map(repr, found.trace.stochastic_nodes)) or "none"
            raise ValueError(
                f"the model has no attention site (its latent sites: {names}), so there are no attention weights to "
                f"draw; build it with LatentAttention or a layer that has one, convert a network by "
                f"integrations.torch_nn.bayesian or integrations.huggingface.bayesian, or, for other latent sites, use "
                f"pyro.infer.Predictive"
            )
        return found.trace, found.output


# Draws given more than the guide has seen, by what is given.
CONDITIONS: Registry[Callable[..., dict[str, Tensor]]] = Registry("condition")

# Ways to draw several samples in one pass.
SAMPLERS: Registry[Callable[[Run, int, int], Iterator[Pass]]] = Registry("sampler")


def passes(run: Run, num_samples: int, noise: Noise, chunk_size: int, seed: int | None) -> Generator[Pass, None, None]:
    """Run the model until all samples are drawn, validated at the first; arguments as of :func:`sample_posterior`."""
    check_guide(run.guide)
    if noise not in get_args(Noise):
        raise ValueError(f"noise is '{noise}', expected 'attention', 'dropout', 'both' or 'none'")
    for name, count in (("num_samples", num_samples), ("chunk_size", chunk_size)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} is {count!r}, expected an integer of at least 1")
    if noise in ("dropout", "both") and chunk_size > 1:
        seen = f"noise is '{noise}', and many samples of one pass would share dropout masks ahead of the attention"
        raise ValueError(f"{seen}; use chunk_size=1")
    attention = AtMean() if noise in ("dropout", "none") else nullcontext()
    with _TURN, torch.no_grad(), seeded(seed), evaluation_mode(dropout=noise in ("dropout", "both")), attention:
        single = (Pass(*(run(pyro.validation_enabled(False)) if i else run())) for i in range(num_samples))
        yield from single if chunk_size == 1 else SAMPLERS["chunks"](run, num_samples, chunk_size)


class AtMean(Messenger):
    """Makes every attention site a point mass at its posterior mean; stands outside the guide."""

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and isinstance(msg["fn"], AttentionDistribution):
            value = msg["fn"].mean_value
            msg["fn"] = pyro.distributions.Delta(value, event_dim=value.dim() - len(msg["fn"].batch_shape))


@contextmanager
def evaluation_mode(*, dropout: bool = False) -> Iterator[None]:
    """Run modules in evaluation mode, also those in the closure of a plain function; ``dropout`` leaves dropout on."""
    before: dict[nn.Module, bool] = {}

    def set_mode(module: nn.Module, _: Any) -> None:
        for part in [module] if module in before else module.modules():
            before.setdefault(part, part.training)
            is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
            part.training = dropout and (is_dropout or isinstance(getattr(part, "dropout", None), float))

    handle = register_module_forward_pre_hook(set_mode)
    try:
        yield
    finally:
        handle.remove()
        for module, training in before.items():
            module.training = training


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators inside the context and restore them after it; nothing when the seed is None."""
    # every other device's generator too would draw a warning where there are many
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
