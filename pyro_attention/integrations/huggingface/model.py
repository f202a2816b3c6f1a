"""The Pyro model face of a converted model: a subclass of its class, with plate and observed site."""

from __future__ import annotations

import inspect
from functools import cache, wraps
from typing import Any

import pyro
from torch import Tensor

from pyro_attention.attention import pyro_runs_the_model
from pyro_attention.integrations.huggingface.attention import BATCH, fresh_name
from pyro_attention.integrations.huggingface.likelihoods import default_likelihood, logits_of

__all__ = ["BayesianModel", "bayesian_class"]

_LABELS = ("labels", "start_positions", "end_positions")


class BayesianModel:
    """What :func:`bayesian` adds to the class of a model.

    Attributes:
        deterministic_class: The class before.
    """

    deterministic_class: type
    pyro_likelihood: Any = None

    def pyro_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network in a plate over the batch, observe the labels if there are any, and return the logits."""
        inputs = inspect.signature(self.deterministic_class.forward).bind_partial(self, *args, **kwargs).arguments
        del inputs["self"]
        inputs |= inputs.pop("kwargs", {})
        whole = inputs.get("return_dict")
        inputs["return_dict"] = True
        labels = {name: inputs[name] for name in _LABELS if inputs.get(name) is not None}
        plate = pyro.plate(fresh_name("batch"), _batch_size(inputs), dim=-1)
        token = BATCH.set(plate)
        try:
            output = self.deterministic_class.forward(self, **inputs)
        finally:
            BATCH.reset(token)
        if labels:
            likelihood = self.pyro_likelihood or default_likelihood(self)
            if likelihood is None:
                raise ValueError(
                    f"the likelihood of {type(self).__name__} is not known; pass bayesian(..., likelihood=function), "
                    f"a function of output and labels that declares the observed sites by pyro.sample(..., obs=)"
                )
            with plate:
                likelihood(output, labels)
        return output if whole else logits_of(output)


@cache
def bayesian_class(original: type) -> type:
    """The subclass of a model class that is a Pyro model too, under the same name."""

    @wraps(original.forward)  # Trainer reads the signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if pyro_runs_the_model():
            return self.pyro_forward(*args, **kwargs)
        return original.forward(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:  # noqa: ARG001
        return _rebuild, (original,), self.__dict__

    members = {
        "forward": forward, "deterministic_class": original, "__reduce_ex__": reduce,
        "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
    }  # fmt: skip
    return type(original.__name__, (BayesianModel, original), members)


def _rebuild(original: type) -> Any:
    made = bayesian_class(original)
    return made.__new__(made)


def _batch_size(inputs: dict[str, Any]) -> int:
    """Size of the batch: the first dimension of the first tensor."""
    return next(len(value) for value in inputs.values() if isinstance(value, Tensor))
