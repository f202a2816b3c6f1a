"""The Pyro model face of a converted model: a subclass of its class, with a plate and observed sites."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from functools import cache, wraps
from typing import Any

from torch import Tensor

from pyro_attention.attention import pyro_runs_the_model
from pyro_attention.integrations.huggingface.attention import BATCH, batch_plate
from pyro_attention.integrations.huggingface.likelihoods import LABELS, likelihood_of, logits_of

__all__ = ["BayesianModel", "bayesian_class"]


class BayesianModel:
    """What :func:`bayesian` adds to the class of a model.

    Attributes:
        deterministic_class: The class before.
        pyro_likelihood: The likelihood that was given, or None.
    """

    deterministic_class: type
    pyro_likelihood: Any

    def pyro_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network in a plate over the batch, observe the labels if there are any, and return the logits.

        With ``return_dict=True``, as ``generate`` calls it, the whole output is returned.
        """
        labels = {name: kwargs.pop(name, None) for name in LABELS}  # first: a head without labels knows no such name
        inputs = _named(self.deterministic_class.forward, self, args, kwargs)  # type: ignore[attr-defined]
        whole = inputs.pop("return_dict", None)
        labels |= {name: inputs.pop(name) for name in LABELS if name in inputs}
        labels = {name: target for name, target in labels.items() if target is not None}
        likelihood = likelihood_of(self) if labels else None
        self._add_decoder_inputs(inputs, labels)
        plate = batch_plate("batch", _batch_size(self, inputs))
        token = BATCH.set(None if isinstance(plate, nullcontext) else plate)
        try:
            output = self.deterministic_class.forward(self, **inputs, return_dict=True)  # type: ignore[attr-defined]
        finally:
            BATCH.reset(token)
        if likelihood is not None:
            with plate:
                likelihood(output, labels)
        return output if whole else logits_of(output)

    def _add_decoder_inputs(self, inputs: dict[str, Any], labels: dict[str, Tensor]) -> None:
        """Let the decoder read the labels, which transformers does itself only where it makes a loss of them."""
        if not type(self).__name__.endswith("ForConditionalGeneration") or "labels" not in labels:
            return
        if any(inputs.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds")):
            return
        prepare = getattr(self, "prepare_decoder_input_ids_from_labels", None)
        if prepare is None:
            inputs["labels"] = labels["labels"]
        else:
            inputs["decoder_input_ids"] = prepare(labels["labels"])


@cache
def bayesian_class(original: type) -> type:
    """The subclass of a model class that is a Pyro model too, under the same name."""
    forward_before: Any = original.forward  # type: ignore[attr-defined]

    @wraps(forward_before)  # Trainer reads the signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if pyro_runs_the_model():
            return self.pyro_forward(*args, **kwargs)
        return forward_before(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:  # noqa: ARG001
        return _rebuild, (original,), self.__dict__

    members = {
        "forward": forward, "deterministic_class": original, "__reduce_ex__": reduce,
        "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
    }  # fmt: skip
    return type(original.__name__, (BayesianModel, original), members)


def _rebuild(original: type) -> Any:
    """An empty model, to be unpickled."""
    made: Any = bayesian_class(original)
    return made.__new__(made)


def _named(forward: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name."""
    signature = inspect.signature(forward)
    named = dict(signature.bind_partial(model, *args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    del named["self"]
    return named


def _batch_size(model: Any, inputs: dict[str, Any]) -> int:
    """First dimension of what the model reads first."""
    known = [inputs.get(model.main_input_name), *inputs.values()]
    sizes = [len(value) for value in known if isinstance(value, Tensor) and value.dim()]
    if not sizes:
        raise ValueError(f"{type(model).__name__} was given no tensor, expected {model.main_input_name}")
    return sizes[0]
