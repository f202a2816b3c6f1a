"""Simulation-based calibration: do intervals of attention weights hold the weights as often as their level says?

Intervals of observations are another question; :func:`pyro_attention.predict` with ``observed=`` gives these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_attention._checks import check_count
from pyro_attention._compat import with_handlers_of
from pyro_attention._typing import Args, Kwargs, Model, Trace
from pyro_attention.analysis.inputs import check_level
from pyro_attention.attention import name_sites
from pyro_attention.draws import Minibatch
from pyro_attention.families.amortized import Amortized
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, attention_weights, check_guide, is_deterministic
from pyro_attention.posterior.passes import evaluation_mode, seeded
from pyro_attention.posterior.sampling import sample_posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Coverage", "check_coverage"]

Infer = Callable[..., Mapping[str, Tensor]]


@dataclass(frozen=True)
class Coverage:
    """Coverage of the true attention weights by intervals of one site, and the ranks of these weights.

    Attributes:
        coverage: Share of weights inside their equal-tailed interval, by its level. Where a level ends between two
            ranks, as 0.95 of 99 draws does, the weights of that rank count in part, so that an exact posterior has the
            level on average.
        errors: Standard errors of these shares; the weights of an item count as one.
        ranks: Of one weight an item, drawn at random: the number of draws below the truth, int64 ``[items]``. Uniform
            on 0 to ``num_draws`` where the posterior is exact.
        num_draws: Posterior draws an item.
        chi_square: Pearson's statistic of the ranks in ``bins`` bins.
        p_value: Probability of one as large under an exact posterior.
        bins: Bins of equal width.
    """

    coverage: dict[float, float]
    errors: dict[float, float]
    ranks: Tensor
    num_draws: int
    chi_square: float
    p_value: float
    bins: int

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot a histogram of the ranks, with the band of 99 % of the bins of an exact posterior; needs matplotlib.

        Too many ranks at both ends: the posterior is too narrow. Too many in the middle: too wide. A slope: it is
        shifted.
        """
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(5, 3), layout="constrained").subplots()
        counts, share = _counts(self.ranks, self.num_draws, self.bins), 1 / self.bins
        error = 2.58 * (share * (1 - share) / len(self.ranks)) ** 0.5
        # over the bars, so that both of its ends are seen
        band = ax.axhspan(share - error, share + error, color="0.5", alpha=0.35, zorder=2, linewidth=0)
        band.set_label("99 % of an exact posterior")
        edges, heights = (torch.arange(self.bins) / self.bins).tolist(), (counts / len(self.ranks)).tolist()
        ax.bar(edges, heights, 1 / self.bins, align="edge", color="#1b6ca8", edgecolor="white")
        stated = ", ".join(f"{level:.0%}: {fraction:.3f}" for level, fraction in self.coverage.items())
        ax.set(xlabel="rank of the true weight among draws", ylabel="share", xlim=(0, 1), title=f"coverage {stated}")
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])  # leaves room for the legend
        ax.legend(frameon=False, loc="upper center")
        return ax


def check_coverage(
    model: Model | AttentionGuide,
    *args: object,
    infer: Infer | None = None,
    num_simulations: int = 1,
    num_draws: int = 99,
    levels: Sequence[float] = (0.5, 0.8, 0.9),
    bins: int = 20,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Coverage]:
    r"""Draw weights and observations from the model, infer the weights again, and count how often intervals hold them.

    .. math:: W, y \sim p(W)\,p(y \mid W), \quad W^{(1)}, \ldots, W^{(S)} \sim q(W \mid y) \quad\Rightarrow\quad
              \#\{s : W^{(s)} < W\} \text{ is uniform on } 0, \ldots, S \text{ if } q \text{ is the posterior}

    Data are drawn and weights inferred with all modules in evaluation mode (no dropout), which is restored afterwards.
    Handlers around a guide hold for its model as well; what ``poutine.condition`` gives is an observation, drawn anew.
    Every entry of the site's plates is an item of its own. The test asks for honest widths, not for narrow ones: the
    prior passes, too. It says nothing about data that the model does not describe; for these compare with weights that
    are known.

    Args:
        model: A Pyro model with attention sites, whose guide is in ``infer``; or a guide, with or without handlers
            around it, whose model is taken.
        args: Arguments of the model, with observations of the right shape, which are replaced.
        infer: Function of the drawn observations, by the names of their sites, and of the arguments; it returns draws
            ``[S, ...]`` of weights by the names of attention sites, S being ``num_draws``. By default
            :func:`sample_posterior` of the guide, conditioned on the observations. An inference network
            (:class:`Amortized`) reads them in the place of the arguments that were observed. Modules that it runs are
            in evaluation mode, too.
        num_simulations: Number of runs of the model; all items in plates of a run count.
        num_draws: Posterior draws of an item, one less than a multiple of ``bins``.
        levels: Levels of the intervals.
        bins: Number of bins of the ranks.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Returns:
        Coverage of the weights of every attention site, by its name.

    Raises:
        TypeError: There is neither a guide nor ``infer``.
        ValueError: A model without latent attention sites or observations, numbers of draws and bins that do not fit,
            too few items, a level outside (0, 1), draws that are missing or have another shape, or no ``infer`` beside
            an inference network where an observation is no argument.

    Example:
        >>> import pyro
        >>> from pyro.distributions import Normal
        >>> from pyro_attention import AttentionGuide, Dense, LatentAttention, LogNormal
        >>> from pyro_attention.families.lognormal import FixedLogNormalPrior
        >>> attention = LatentAttention("attention", FixedLogNormalPrior())
        >>> def model(scores, values, y):
        ...     with pyro.plate("items", len(scores)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
        ...         pyro.sample("y", Normal(mean, 1.0), obs=y)
        >>> inputs = torch.zeros(400, 1, 2), torch.randn(400, 1, 2, 1), torch.zeros(400)
        >>> coverage = check_coverage(AttentionGuide(model, LogNormal(scale=0.1)), *inputs, seed=0)["attention"]
        >>> coverage.coverage[0.9] < 0.5, coverage.p_value < 1e-6  # the prior, and so the truth, is ten times as wide
        (True, True)

    Source: Talts et al. (2018), Validating Bayesian Inference Algorithms with Simulation-Based Calibration.
    """
    guide: object = poutine.unwrap(model)
    simulated = with_handlers_of(model, guide.model) if isinstance(guide, AttentionGuide) else model
    if infer is None and not isinstance(guide, AttentionGuide):
        raise TypeError(f"model is a {type(guide).__name__}, expected an AttentionGuide, or infer= beside the model")
    check_count("num_simulations", num_simulations)
    if num_draws < 2 or bins < 2 or (num_draws + 1) % bins:
        raise ValueError(
            f"num_draws is {num_draws} and bins is {bins}, expected one less than a multiple of bins, such as 99 and 20"
        )
    for level in levels:
        check_level(level)
    runs_by_site: dict[str, list[tuple[Tensor, Tensor]]] = {}
    with seeded(seed), torch.no_grad(), evaluation_mode():
        for _ in range(num_simulations):
            with Minibatch():
                simulation = _simulate(simulated, args, kwargs)
                if infer is None:
                    draws: Mapping[str, Tensor] = _draws_of_guide(model, simulation, args, kwargs, num_draws)
                else:
                    draws = infer(simulation.observations, *args, **kwargs)
            for name, weights in simulation.weights.items():
                mask = simulation.masks[name]
                ranks = _ranks(name, weights, draws, num_draws).view_as(mask)
                runs_by_site.setdefault(name, []).append((ranks, mask))
        return {name: _coverage(runs, num_draws, levels, bins, name) for name, runs in runs_by_site.items()}


@dataclass
class _Simulation:
    """Draw of a model, by the names of its sites.

    Attributes:
        weights: True attention weights.
        masks: True at the weights that count, ``[items, weights]``.
        observations: Drawn observations.
        given: Values that were observed in the place of these.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    observations: dict[str, Tensor] = field(default_factory=dict)
    given: dict[str, object] = field(default_factory=dict)


def _simulate(model: Model, args: Args, kwargs: Kwargs) -> _Simulation:
    """Draw weights and observations from the model."""
    name_sites(model)
    trace: Trace = poutine.trace(poutine.uncondition(model)).get_trace(*args, **kwargs)
    drawn = _Simulation()
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or is_deterministic(site):
            continue
        if site["infer"].get("was_observed"):  # attention that is given, too: there is nothing to infer of it
            drawn.observations[name], drawn.given[name] = site["value"], site["infer"]["obs"]
        elif isinstance(site["fn"], AttentionDistribution):
            weights, mask = attention_weights(site), site["fn"].layout.counted_entries
            mask = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.expand(weights.shape)
            drawn.weights[name], drawn.masks[name] = weights, mask.reshape(site["fn"].batch_shape.numel(), -1)
    if not drawn.weights or not drawn.observations:
        missing = "latent attention site" if not drawn.weights else "observed site"
        raise ValueError(
            f"the model has no {missing}; pass the arguments with which it has one, such as y= of any values"
        )
    return drawn


def _draws_of_guide(
    guide: Model, simulation: _Simulation, args: Args, kwargs: Kwargs, num_draws: int
) -> dict[str, Tensor]:
    """Return draws ``[S, ...]`` of a guide, given the observations of a simulation."""
    conditioned: Any = poutine.condition(guide, data=simulation.observations)
    new_args: list[Any] = [*args]
    new_kwargs: dict[str, Any] = {**kwargs}
    if any(isinstance(family, Amortized) for family in check_guide(guide).attention_families):
        new_args, new_kwargs = _with_observations(simulation, args, kwargs)
    return sample_posterior(conditioned, *new_args, num_samples=num_draws, **new_kwargs)


def _with_observations(simulation: _Simulation, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of the model with the drawn observations among them, for an inference network.

    Raise ValueError where an observation is no argument.
    """
    given, observations, values = simulation.given, simulation.observations, [*args, *kwargs.values()]
    hidden = [name for name, value in given.items() if not any(value is other for other in values)]
    if hidden:
        raise ValueError(
            f"the guide has an inference network, which reads the arguments of the model, and the observation "
            f"'{hidden[0]}' is none of them, so the network would not see what was drawn; pass infer=, a function that "
            f"gives the network the drawn observations"
        )

    def drawn(value: object) -> object:
        return next((observations[name] for name, other in given.items() if other is value), value)

    return [drawn(value) for value in args], {key: drawn(value) for key, value in kwargs.items()}


def _ranks(name: str, truth: Tensor, draws: Mapping[str, Tensor], num_draws: int) -> Tensor:
    """Count the draws below each weight; among equal draws, as of alignments, the rank is random."""
    shape = tuple(draws[name].shape) if name in draws else None
    if shape != (num_draws, *truth.shape):
        actual = "no draws" if shape is None else f"draws of shape {shape}"
        raise ValueError(f"site '{name}': infer gave {actual}, expected {(num_draws, *truth.shape)}")
    below, equal = (draws[name] < truth).sum(0), (draws[name] == truth).sum(0)
    return below + (torch.rand(truth.shape, device=truth.device) * (equal + 1)).long()


def _coverage(
    runs: list[tuple[Tensor, Tensor]], num_draws: int, levels: Sequence[float], bins: int, name: str
) -> Coverage:
    """Return the coverage of a site.

    Args:
        runs: Of every run the ranks ``[items, weights]``, and a mask of those that count.
        num_draws: Posterior draws of an item.
        levels: Levels of the intervals.
        bins: Number of bins of the ranks.
        name: Name of the site, for messages.
    """
    ranks, mask = (torch.cat(parts) for parts in zip(*runs, strict=True))
    ranks, mask = ranks[mask.any(1)], mask[mask.any(1)]
    if len(ranks) < 5 * bins:
        raise ValueError(
            f"site '{name}': {len(ranks)} items for {bins} bins, expected at least {5 * bins}; raise num_simulations, "
            f"or give the model more data (only what lies in plates are several items)"
        )
    # distance of a rank from the middle, from 0 to nearly 1: the interval of a level holds those up to the level
    distance = ((2 * ranks.double() + 1) / (num_draws + 1) - 1).abs()
    width = 2 / (num_draws + 1)  # of a rank, part of which may lie inside
    inside = {level: ((level - distance) / width + 0.5).clamp(0, 1) for level in levels}
    shares = {level: (parts * mask).sum(1) / mask.sum(1) for level, parts in inside.items()}
    chosen = ranks.gather(1, mask.float().multinomial(1)).squeeze(1).cpu()
    expected = len(chosen) / bins
    chi_square = ((_counts(chosen, num_draws, bins) - expected).square() / expected).sum()
    return Coverage(
        coverage={level: share.mean().item() for level, share in shares.items()},
        errors={level: share.std().item() / len(share) ** 0.5 for level, share in shares.items()},
        ranks=chosen,
        num_draws=num_draws,
        chi_square=chi_square.item(),
        p_value=torch.special.gammaincc(torch.tensor((bins - 1) / 2).double(), chi_square.double() / 2).item(),
        bins=bins,
    )


def _counts(ranks: Tensor, num_draws: int, bins: int) -> Tensor:
    """Return the number of ranks in every bin, ``[bins]``."""
    return torch.bincount(ranks * bins // (num_draws + 1), minlength=bins)
