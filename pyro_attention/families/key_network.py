"""Parts of the priors of weights: a network of the keys, and constants."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float, check_count, check_positive
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.base import Prior, shown
from pyro_attention.layout import Layout

__all__ = ["ConstantPrior", "KeyNetwork"]


class KeyNetwork(nn.Module):
    r"""Contextual prior weights, in log space: :math:`\log\Psi = \log\mathrm{softmax}(w^\top \mathrm{ReLU}(V k + b))`.

    The softmax runs over the keys a query may attend to: the unpadded ones, the past under a causal mask, a node's
    neighborhood. The last linear map has no bias, because the softmax cancels it.

    Args:
        key_dim: Width of a key.
        heads: One network a head, or 1 for a network shared by all heads.
        hidden_dim: Width of the hidden layer.
        all_nodes: On a graph, let the softmax run over all its nodes, as the released code does; the weights of a
            neighborhood then add up to far less than one.

    Raises:
        ValueError: A size below one; at a call, missing keys, keys of another width, or ``all_nodes`` without a graph.

    Example:
        >>> from pyro_attention import Dense
        >>> KeyNetwork(8)(torch.randn(2, 5, 8), Dense()).exp().sum(-1).allclose(torch.ones(2, 1))
        True

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3.
    """

    def __init__(self, key_dim: int, heads: int = 1, *, hidden_dim: int = 10, all_nodes: bool = False) -> None:
        super().__init__()
        for name, size in (("key_dim", key_dim), ("heads", heads), ("hidden_dim", hidden_dim)):
            check_count(name, size)
        self.all_nodes = all_nodes
        # He-normal weights and zero biases, as in the released code
        self.hidden_weight = nn.Parameter(torch.randn(heads, key_dim, hidden_dim) * math.sqrt(2 / key_dim))
        self.hidden_bias = nn.Parameter(torch.zeros(heads, 1, hidden_dim))
        self.output_weight = nn.Parameter(torch.randn(heads, hidden_dim, 1) * math.sqrt(2 / hidden_dim))

    def extra_repr(self) -> str:
        heads, key_dim, hidden_dim = self.hidden_weight.shape
        return f"{key_dim}, heads={heads}, hidden_dim={hidden_dim}{', all_nodes=True' if self.all_nodes else ''}"

    def forward(self, keys: Tensor | None, layout: Layout) -> Tensor:
        """Return ``log Psi`` of keys in the layout's shape, which broadcasts to the scores; zero where masked."""
        if keys is None:
            raise ValueError("a contextual prior needs the keys: pass keys= to LatentAttention")
        keys = layout.heads_first(keys)
        heads, key_dim, _ = self.hidden_weight.shape
        if keys.size(-1) != key_dim or heads not in (1, keys.size(-3)):
            expected = f"{heads if heads > 1 else 'any number of'} heads of width {key_dim}"
            actual = f"{keys.size(-3)} heads of width {keys.size(-1)}"
            raise ValueError(f"keys have {actual}, but the contextual prior expects {expected}")
        shape = keys.shape[:-1]
        hidden, bias, output = self.hidden_weight.mT.contiguous(), self.hidden_bias.mT, self.output_weight.mT
        if heads == 1:  # one product for all, of matrices, as their gradients are laid out as they are themselves
            keys = keys.reshape(-1, key_dim)
            hidden, bias, output = hidden.squeeze(0), bias.squeeze(0), output.squeeze(0)
        # weights on the left: products and sums run along the keys, the long dimension, in half of the time
        products = hidden @ keys.to(hidden.dtype).mT
        potential = (output @ products.add_(bias).relu_()).reshape(shape)
        if self.all_nodes:
            if not isinstance(layout, EdgeList):
                raise ValueError(f"all_nodes is meant for graphs, but the layout is {type(layout).__name__}")
            return layout.spread_keys(as_float(potential).log_softmax(-1))
        return layout.log_softmax(layout.spread_keys(as_float(potential)))


class ConstantPrior(Prior):
    """Prior of keys and constants alone; the constants are buffers, in its state dict, and move with it."""

    reads_scores = False

    def add_positive(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a positive constant in a buffer, as its logarithm; ValueError when it is not positive and finite."""
        check_positive(name, value)
        self.register_buffer(f"log_{of}{name}", torch.tensor(math.log(value)))

    def add_constant(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a constant in a buffer; ValueError when it is not finite."""
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a finite number")
        self.register_buffer(f"{of}{name}", torch.tensor(float(value)))

    def extra_repr(self) -> str:
        buffers = self.named_buffers(recurse=False)
        return ", ".join(
            f"{name.removeprefix('log_')}={shown(value.exp() if name.startswith('log_') else value)}"
            for name, value in buffers
        )
