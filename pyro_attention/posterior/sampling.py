"""Posterior samples of attention weights."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from pyro_attention.guide import AttentionGuide
from pyro_attention.posterior.passes import Noise, Pass, Run, read_draws

__all__ = ["sample_posterior"]


def sample_posterior(
    guide: AttentionGuide,
    *args: object,
    num_samples: int = 100,
    noise: Noise = "attention",
    log_weights: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: object,
) -> dict[str, Tensor]:
    r"""Draw attention weights from the guide, :math:`W^{(s)} = \mathrm{normalize}(S^{(s)}),\ S^{(s)} \sim q`.

    Quantiles of the draws are intervals of single weights. Pyro takes :math:`\log S` for the value of a site, not the
    weights: for ``Predictive``, ``poutine.condition`` and ``replay`` use :func:`sample_sites`. Draws given the
    observations, whatever the guide has seen, are ``importance_posterior(...).resample()``.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalized weights.
        chunk_size: Samples drawn in one pass at most, where the model broadcasts over them
            (see :mod:`pyro_attention.posterior.passes`).
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``; of alignments ``[S, ..., 1, N]``, or with
        ``log_weights`` the chosen keys ``[S, ...]``.

    Raises:
        TypeError: The guide is no AttentionGuide.
        ValueError: ``num_samples`` or ``chunk_size`` is no positive integer, or the model has no attention site.

    Example:
        >>> import torch
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    return read_draws(
        Run(guide, args, kwargs, whole=False), partial(Pass.weights, log_weights=log_weights), num_samples=num_samples,
        noise=noise, chunk_size=chunk_size, seed=seed,
    )  # fmt: skip
