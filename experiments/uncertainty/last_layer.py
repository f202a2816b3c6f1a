"""Laplace approximations of output layers, of classes and of spans, which cost no pass more than the mean."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class LastLayerPosterior:
    r"""Gaussian posterior of weights and biases of a linear layer that makes logits out of features.

    .. math:: \theta \sim \mathrm{Normal}\bigl(\hat\theta,\; (H + \sigma^{-2} I)^{-1}\bigr), \qquad
              H = \sum_i (\mathrm{diag}\, p_i - p_i p_i^\top) \otimes \phi_i \phi_i^\top

    The features stay as they are, so this Hessian of the cross entropy is exact.

    Args:
        layer: The trained layer, of D features and C classes.
        features: Features of the training items ``[items, D]``.

    Example:
        >>> posterior = LastLayerPosterior(torch.nn.Linear(3, 2), torch.randn(20, 3))
        >>> posterior.logits(torch.zeros(4, 3), prior_scale=1.0, num_samples=5).shape
        torch.Size([5, 4, 2])

    Source: Kristiadi et al. (2020), Being Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks.
    """

    def __init__(self, layer: torch.nn.Linear, features: Tensor) -> None:
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().cpu()
        self.mean = torch.cat([layer.weight.detach().cpu(), bias[:, None]], 1).double()  # [C, D + 1]
        inputs = _with_one(features)
        probabilities = (inputs @ self.mean.T).softmax(-1)
        classes = torch.diag_embed(probabilities) - probabilities[:, :, None] * probabilities[:, None, :]
        # entry by entry of [C, C]: all of them at once would hold items times (C D)^2 numbers
        rows = [torch.cat([(inputs * column[:, None]).T @ inputs for column in row.T], 1) for row in classes.unbind(1)]
        self.hessian = torch.cat(rows)

    def logits(self, features: Tensor, *, prior_scale: float, num_samples: int) -> Tensor:
        """Return logits ``[S, items, C]`` by draws of the layer, at a standard deviation of its prior."""
        precision = self.hessian + prior_scale**-2 * torch.eye(len(self.hessian), dtype=torch.float64)
        noise = torch.randn(len(self.hessian), num_samples, dtype=torch.float64)
        deviations = torch.linalg.solve_triangular(torch.linalg.cholesky(precision).mT, noise, upper=True)
        layers = self.mean + deviations.T.unflatten(-1, self.mean.shape)
        return torch.einsum("nd,scd->snc", _with_one(features), layers).float()


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], 1)


class SpanLayerPosterior:
    r"""Gaussian posterior of a linear layer that makes the logits of a span's first and last token out of features.

    Each of the K outputs is a softmax over the T tokens of an item, so the outputs are independent, and biases cancel.

    .. math:: w_k \sim \mathrm{Normal}\bigl(\hat w_k,\; (H_k + \sigma^{-2} I)^{-1}\bigr), \qquad
              H_k = \sum_i \Phi_i^\top (\mathrm{diag}\, p_{ik} - p_{ik} p_{ik}^\top) \Phi_i

    The features :math:`\Phi_i` ``[T, D]`` stay as they are, so this Hessian of the cross entropy is exact.

    Args:
        layer: The trained layer, of D features and K outputs.
        batches: Features ``[B, T, D]`` of the training items, and which tokens are possible, bool ``[B, T]``.

    Example:
        >>> items = torch.randn(20, 7, 3), torch.ones(20, 7, dtype=torch.bool)
        >>> SpanLayerPosterior(torch.nn.Linear(3, 2), [items]).sample(prior_scale=1.0, num_samples=5).shape
        torch.Size([5, 2, 3])

    Source: Kristiadi et al. (2020), Being Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks.
    """

    def __init__(self, layer: torch.nn.Linear, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.mean = layer.weight.detach().cpu()  # [K, D]
        self.hessian = torch.zeros(*self.mean.shape, self.mean.size(1), dtype=torch.float64)
        for features, allowed in batches:
            logits = torch.einsum("btd,kd->kbt", features, self.mean).masked_fill(~allowed, -torch.inf)
            for hessian, probabilities in zip(self.hessian, logits.softmax(-1), strict=True):
                weighted = (features * probabilities[..., None]).flatten(0, 1)
                expected = torch.einsum("btd,bt->bd", features, probabilities)
                hessian += weighted.T @ features.flatten(0, 1) - expected.T @ expected

    def sample(self, *, prior_scale: float, num_samples: int) -> Tensor:
        """Return draws of the weights ``[S, K, D]``, at a standard deviation of their prior."""
        precision = self.hessian + prior_scale**-2 * torch.eye(self.mean.size(1), dtype=torch.float64)
        noise = torch.randn(*self.mean.shape, num_samples, dtype=torch.float64)
        deviations = torch.linalg.solve_triangular(torch.linalg.cholesky(precision).mT, noise, upper=True)
        return self.mean + deviations.permute(2, 0, 1).float()
