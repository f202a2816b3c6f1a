"""How an objective is trained: its backward pass under SVI, and as a module under every kind of parallel training."""

from __future__ import annotations

from typing import Any

import torch
from pyro import poutine
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from torch import Tensor

from pyro_attention._checks import parameters_elsewhere, unregistered_parameters

__all__ = ["DifferentiableELBO", "WholeELBOModule", "other_model"]


class DifferentiableELBO(ELBO):
    """An objective with ``differentiable_loss``, which is all that its training needs."""

    def __call__(self, model: Any, guide: Any) -> ELBOModule:
        """The loss as a module, called with the arguments of the model.

        Raises:
            ValueError: The guide is that of another model; at the first call: the loss depends on parameters that
                belong to no module of its own.
        """
        _raise(other_model(model, guide))
        return WholeELBOModule(model, guide, self)

    def watch(self, loss: Tensor) -> None:
        """Look at the loss of a training step, before its backward pass."""

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Value of the loss; its gradient is added to the parameters of the param store.

        Raises:
            ValueError: The loss depends on no parameter, or on one that SVI would not train, or the guide is that of
                another model.
        """
        _raise(other_model(model, guide))
        with poutine.trace(param_only=True) as tracer:
            loss: Tensor = self.differentiable_loss(model, guide, *args, **kwargs)  # type: ignore[attr-defined]
        if not loss.requires_grad:
            raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
        # stock Pyro skips the backward pass silently when nothing is registered
        if is_validation_enabled():
            _raise(unregistered_parameters(loss, tracer.trace))
        self.watch(loss)
        loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        if isinstance(poutine.unwrap(guide), GuideMessenger):
            # it runs its model, under the handlers around it, which another run would lack
            model = _nothing
        super()._guess_max_plate_nesting(model, guide, args, kwargs)


def _nothing(*_: Any, **__: Any) -> None:
    """A model without sites."""


class WholeELBOModule(ELBOModule):
    """Pyro's module of a loss, whose graph reaches every parameter, those too that this step does not use.

    DistributedDataParallel waits for all of them.
    """

    elbo: DifferentiableELBO
    _complete = False  # nothing is missing among the parameters, as the first step has shown

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().forward(*args, **kwargs)
        if not loss.requires_grad:
            return loss
        if not self._complete and is_validation_enabled():
            _raise(parameters_elsewhere(loss, self))
            self._complete = True
        self.elbo.watch(loss)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return _Reach.apply(loss, *parameters)  # type: ignore[no-any-return]


def other_model(model: Any, guide: Any) -> str | None:
    """What is wrong when a guide that is a handler stands over another model; None when it does not."""
    messenger: Any = poutine.unwrap(guide)
    if not isinstance(messenger, GuideMessenger) or poutine.unwrap(model) == poutine.unwrap(messenger.model):
        return None
    return (
        "the model is not that of the guide, which runs its own one and leaves the other untrained; pass guide.model, "
        "or make a guide of this model"
    )


def _raise(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)


class _Reach(torch.autograd.Function):
    """The first argument; the others get no gradient, but their hooks are called."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.count
