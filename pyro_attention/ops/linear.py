"""Linear layers of dense and sparse inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["apply_linear"]


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer of ``[..., in_features]``, or of a sparse matrix ``[N, in_features]``, CSR or COO.

    Example:
        >>> layer, x = nn.Linear(3, 2), torch.eye(3)
        >>> torch.allclose(apply_linear(layer, x.to_sparse()), apply_linear(layer, x))
        True
    """
    if x.layout == torch.strided:
        return torch.as_tensor(layer(x))
    with torch.autocast(x.device.type, enabled=False):  # there is no sparse product in half precision
        product: Tensor = torch.sparse.mm(x, layer.weight.T)
        return product if layer.bias is None else product + layer.bias
