"""Laplace approximation of the output layer of a classifier, which costs no pass more than its mean."""

from __future__ import annotations

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
