"""Draws of the values of latent sites, as Pyro's own tools take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention.guide import AttentionGuide, check_guide, is_attention_site, keeps_prior
from pyro_attention.posterior.given import read_draws
from pyro_attention.posterior.passes import Noise, Pass, Run

__all__ = ["sample_sites"]


def sample_sites(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    chunk_size: int = 1,
    seed: int | None = None,
    given: Literal["observations"] | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Draw values of all latent sites from the posterior, for ``Predictive``, ``poutine.condition`` and ``replay``.

    The value of an attention site is :math:`\log S`, of which the weights are a function (of an alignment, the index of
    a key); :func:`sample_posterior` gives the weights, which Pyro would misread. Sites that are no attention come from
    the same runs, so that what depends on each other stays together.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model; with the observations where these are given.
        num_samples: Number of draws S.
        noise: What is random, as in :func:`sample_posterior`.
        chunk_size: Draws in one pass at most.
        seed: Seed of this call alone.
        given: "observations" gives draws of :math:`p(S \mid x, y)`, as in :func:`sample_posterior`.
        kwargs: Keyword arguments of the model.

    Returns:
        By the names of the sites ``[S, ...]``: all attention sites, and latent sites that have a posterior or stand in
        the guide's ``keep_prior``. With ``given`` all latent sites; without it what else keeps its prior is left out,
        because it may be an observation that the model was not passed.

    Raises:
        TypeError: As there.
        ValueError: As there.

    Example:
        >>> import torch
        >>> import pyro
        >>> from pyro.infer import Predictive
        >>> from pyro_attention import Dense, FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     with pyro.plate("items", len(scores)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context[..., 0, 0]
        ...         return pyro.sample("y", pyro.distributions.Normal(mean, 0.1))
        >>> inputs = torch.zeros(5, 1, 3), torch.randn(5, 1, 3, 1)
        >>> draws = sample_sites(AttentionGuide(model, Weibull()), *inputs, num_samples=20)
        >>> sorted(draws), Predictive(model, posterior_samples=draws)(*inputs)["y"].shape
        (['attention'], torch.Size([20, 5]))
    """
    messenger = check_guide(guide)

    def read(drawn: Pass) -> Iterator[tuple[str, Tensor]]:
        for name, site in drawn.trace.nodes.items():
            if is_attention_site(site) or (
                _is_latent(site) and (given is not None or not keeps_prior(site) or messenger.keeps_prior(name))
            ):
                yield name, drawn.rows(site, site["value"].to_dense())

    run = Run(guide, args, kwargs)
    return read_draws(run, read, num_samples=num_samples, noise=noise, chunk_size=chunk_size, seed=seed, given=given)


def _is_latent(site: Any) -> bool:
    return site["type"] == "sample" and not site["is_observed"] and not site_is_subsample(site)
