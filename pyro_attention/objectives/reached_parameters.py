"""Checks of parameters: those that a loss does not reach, and frozen ones that a step would train."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from pyro import poutine
from pyro.nn.module import PyroModule
from torch import Tensor, nn
from torch.autograd.graph import Node

from pyro_attention._typing import Model
from pyro_attention.attention import LatentAttention
from pyro_attention.families.base import Prior

__all__ = [
    "FrozenWarning",
    "frozen_parameters",
    "leaves_of",
    "thawed_parameters",
    "unreached_parameters",
    "warn_of_thawed",
]


class FrozenWarning(UserWarning):
    """Warning that Pyro trains parameters that were frozen."""


def leaves_of(loss: Tensor) -> list[Tensor]:
    """Return the tensors without a history that a loss depends on, and that take gradients."""
    leaves, visited, stack = list[Tensor | None](), set[Node](), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in visited:
            visited.add(node)
            stack += [parent for parent, _ in node.next_functions]
            leaves.append(getattr(node, "variable", None))
    return [leaf for leaf in leaves if leaf is not None]


def unreached_parameters(loss: Tensor, model: Model, sites: Collection[str]) -> str | None:
    """Describe the parameters of attention layers that a loss does not depend on; None where it reaches all of them.

    Parameters of priors are left out, as a posterior without a prior term, such as ``Soft``, does not use them.

    Args:
        loss: The loss of one step.
        model: A module, or the method of one; the layers of a function are not known.
        sites: Names of the attention sites that the step has reached.
    """
    function: object = poutine.unwrap(model)
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, nn.Module):
        return None
    reached = set(map(id, leaves_of(loss)))
    names = []
    for path, layer in _layers(owner).items():
        if not any(site == name or site.endswith("/" + name) for name in _site_names(layer) for site in sites):
            continue
        priors = {id(weight) for part in layer.modules() if isinstance(part, Prior) for weight in part.parameters()}
        for name, weight in layer.named_parameters():
            if weight.requires_grad and id(weight) not in reached | priors:
                names.append(f"{path}.{name}")
    if not names:
        return None
    return (
        f"the loss does not depend on {len(names)} parameters of attention layers ({', '.join(names[:8])}), so they do "
        f"not train; look for weights that do not depend on the queries, a .detach(), or an output that is not used, "
        f"or freeze them by requires_grad_(False)"
    )


def _layers(owner: nn.Module) -> dict[str, nn.Module]:
    """Return layers of a model that have an attention site of their own, by path."""
    return {
        path: module
        for path, module in owner.named_modules()
        if path and any(isinstance(part, LatentAttention) for part in module.children())
        if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    }


def _site_names(layer: nn.Module) -> list[str]:
    return [part.name for part in layer.modules() if isinstance(part, LatentAttention)]


def frozen_parameters(*functions: Model) -> dict[str, nn.Parameter]:
    """Return the frozen parameters of PyroModules among models and guides, by name; a run under Pyro thaws them."""
    owners = (getattr(poutine.unwrap(function), "__self__", poutine.unwrap(function)) for function in functions)
    return {
        f"{path}.{name}" if path else name: weight
        for owner in owners
        if isinstance(owner, nn.Module)
        for path, module in owner.named_modules()
        if isinstance(module, PyroModule)
        for name, weight in module._parameters.items()
        if isinstance(weight, nn.Parameter) and not weight.requires_grad
    }


def thawed_parameters(frozen: Mapping[str, nn.Parameter]) -> str | None:
    """Describe the parameters that were frozen before a step and take gradients after it; None where there are none."""
    names = [name for name, weight in frozen.items() if weight.requires_grad]
    if not names:
        return None
    return (
        f"{len(names)} parameters that were frozen take gradients now ({', '.join(names[:8])}), and SVI trains them: "
        f"every parameter of a PyroModule is a param site, and Pyro thaws these. Hold what is frozen in a plain "
        f"torch.nn module inside the PyroModule, or make it a buffer"
    )


def warn_of_thawed(frozen: Mapping[str, nn.Parameter]) -> None:
    """Warn of parameters that were frozen before a step and take gradients after it."""
    problem = thawed_parameters(frozen)
    if problem is not None:
        warnings.warn(problem, FrozenWarning, stacklevel=3)
