"""Draws of the values of latent sites, in the form that Pyro's own tools take."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pyro_attention.guide import AttentionGuide, check_guide, is_attention_site, keeps_prior
from pyro_attention.posterior.passes import Noise, Pass, Run, is_latent, read_draws

__all__ = ["sample_sites"]


def sample_sites(
    guide: AttentionGuide,
    *args: object,
    num_samples: int = 100,
    noise: Noise = "attention",
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: object,
) -> dict[str, Tensor]:
    r"""Draw values of all latent sites from the posterior, for ``Predictive``, ``poutine.condition`` and ``replay``.

    The value of an attention site is :math:`\log S`, from which the weights follow (of an alignment it is the index of
    a key); :func:`sample_posterior` returns the weights, which Pyro would misread. Values of other sites come from the
    same runs, so their dependence on the attention is kept. Values given the observations are
    ``importance_posterior(..., values=True).resample()``.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of draws S.
        noise: What is random, as in :func:`sample_posterior`.
        chunk_size: Draws in one pass at most.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Returns:
        Values ``[S, ...]`` by the name of the site: of all attention sites, and of latent sites that have a posterior
        or stand in the guide's ``keep_prior``. Another site that keeps its prior is left out, because it may be an
        observation that the model was not passed.

    Raises:
        TypeError: The guide is no AttentionGuide.
        ValueError: ``num_samples`` or ``chunk_size`` is no positive integer, or the model has no attention site.

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
            has_posterior = not keeps_prior(site) or messenger.keeps_prior(name)
            if is_attention_site(site) or (is_latent(site) and has_posterior):
                yield name, drawn.rows(site, site["value"].to_dense())

    run = Run(guide, args, kwargs)
    return read_draws(run, read, num_samples=num_samples, noise=noise, chunk_size=chunk_size, seed=seed)
