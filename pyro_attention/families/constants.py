"""Priors with constants."""

from __future__ import annotations

import math

import torch

from pyro_attention._checks import check_positive
from pyro_attention.families.base import Prior, check_constant, shown

__all__ = ["ConstantPrior"]


class ConstantPrior(Prior):
    """A prior that keeps constants in buffers, so that they are in its state dict and go where it goes."""

    def add_positive(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a positive constant in a buffer, as its logarithm; ValueError when it is not positive and finite."""
        check_constant(name, value)
        check_positive(name, value)
        self.register_buffer(f"log_{of}{name}", torch.tensor(math.log(value)))

    def add_constant(self, name: str, value: float, *, of: str = "") -> None:
        """Keep a constant in a buffer; ValueError when it is not finite."""
        check_constant(name, value)
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a finite number")
        self.register_buffer(f"{of}{name}", torch.tensor(float(value)))

    def extra_repr(self) -> str:
        buffers = self.named_buffers(recurse=False)
        return ", ".join(
            f"{name.removeprefix('log_')}={shown(value.exp() if name.startswith('log_') else value)}"
            for name, value in buffers
        )
