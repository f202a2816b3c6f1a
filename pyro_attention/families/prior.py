"""Prior networks: from the scores or keys of an attention call to the prior distribution of its weights."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_numbers, check_constant, check_positive
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.families.log_weights import LogWeights
from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = ["PRIORS", "Prior"]

PRIORS: Registry[type[Prior]] = Registry("prior")

_TRAINED = "a prior with a trained parameter is a subclass of Prior"


class Prior(nn.Module):
    """Maps (scores, keys, layout) to the prior of one attention call; subclasses implement :meth:`forward`.

    Raises:
        TypeError: A number requires a gradient, as an ``nn.Parameter`` does.
        ValueError: A number that is not finite, or not positive where it must be; where the prior reads the keys, a
            size below one and, at a call, keys of another width.

    Attributes:
        kind: The kind of its distributions, which a posterior family must share.
        normalizes: Scores may enter as log-softmax; False where their size means something.
        over_queries_obstacle: Why no weights may be normalised over queries too; None where they may.
    """

    kind: ClassVar[str] = LogWeights.kind
    normalizes: ClassVar[bool] = True
    over_queries_obstacle: ClassVar[str | None] = None

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> AttentionDistribution:
        """Prior over weights, or their logarithms, of the shape of ``scores``.

        Args:
            scores: As they enter the site. Gamma, LogNormal and Gaussian priors read their shape only; those of
                alignments and the Dirichlet prior read the values, too.
            keys: In the layout's own shape, ``[..., H, N, D]`` dense, ``[..., N, H, D]`` on graphs.
            layout: Where the weights live.
        """
        raise NotImplementedError

    def soft_weights(self, scores: Tensor, layout: Layout) -> Tensor:
        """Weights of ordinary attention with these scores, in a layout of their shape: softmax, or an own mean.

        A model may go on with them where it needs no site, as the input feed of a decoder does.
        """
        return layout.softmax(scores)

    def add_positive(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a positive constant in a buffer, as its logarithm; ValueError when it is not positive and finite."""
        check_constant(name, value, _TRAINED)
        check_positive(name, value)
        self.register_buffer(f"log_{of}{name}", torch.tensor(math.log(value)))

    def add_constant(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a constant in a buffer; ValueError when it is not finite."""
        check_constant(name, value, _TRAINED)
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a finite number")
        self.register_buffer(f"{of}{name}", torch.tensor(float(value)))

    def extra_repr(self) -> str:
        shown = {
            name.removeprefix("log_"): as_numbers(value.exp() if name.startswith("log_") else value)
            for name, value in self.named_buffers(recurse=False)
        }
        return ", ".join(f"{name}={value}" for name, value in shown.items())
