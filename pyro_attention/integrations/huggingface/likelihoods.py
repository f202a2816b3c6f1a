"""What a head's labels are distributed as, given its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Bernoulli, Categorical, Normal
from torch import Tensor

__all__ = ["Likelihood", "default_likelihood", "logits_of"]

Likelihood = Callable[[Any, Mapping[str, Tensor]], None]

_IGNORED = -100  # transformers' label of a position that does not count


def classification(output: Any, labels: Mapping[str, Tensor], config: Any) -> None:
    """One label an example: a class, several yes-or-no labels, or a number."""
    logits, target = output.logits.float(), labels["labels"]
    kind = getattr(config, "problem_type", None)
    if kind is None:
        integers = not target.is_floating_point()
        kind = "regression" if logits.size(-1) == 1 else "single_label" if integers else "multi_label"
    if kind.startswith("regression"):
        pyro.sample("labels", Normal(logits.squeeze(-1), 1.0), obs=target.float())
    elif kind.startswith("multi_label"):
        pyro.sample("labels", Bernoulli(logits=logits).to_event(1), obs=target.float())
    else:
        _check_classes(target, logits.size(-1))
        pyro.sample("labels", Categorical(logits=logits), obs=target)


def tokens(output: Any, labels: Mapping[str, Tensor]) -> None:
    """One class a position; positions labelled -100 do not count."""
    _positions(output.logits, labels["labels"])


def next_tokens(output: Any, labels: Mapping[str, Tensor]) -> None:
    """The next token of every position; those labelled -100 do not count."""
    _positions(output.logits[:, :-1], labels["labels"][:, 1:])


def span(output: Any, labels: Mapping[str, Tensor]) -> None:
    """First and last position of an answer."""
    for name, logits in (("start_positions", output.start_logits), ("end_positions", output.end_logits)):
        target = labels[name].flatten()
        # as transformers: answers outside the window do not count
        inside = (target >= 0) & (target < logits.size(-1))
        with poutine.mask(mask=inside):
            pyro.sample(name, Categorical(logits=logits.float()), obs=target.clamp(0, logits.size(-1) - 1))


_BY_SUFFIX: dict[str, Any] = {
    "SequenceClassification": classification,
    "ImageClassification": classification,
    "MultipleChoice": classification,
    "TokenClassification": tokens,
    "MaskedLM": tokens,
    "ConditionalGeneration": tokens,
    "CausalLM": next_tokens,
    "LMHeadModel": next_tokens,
    "QuestionAnswering": span,
}


def default_likelihood(model: Any) -> Likelihood | None:
    """The likelihood of a head, by the name of its class; None where it is not known."""
    name = type(model).__name__
    for suffix, likelihood in _BY_SUFFIX.items():
        if name.endswith(suffix):
            if likelihood is classification:
                return lambda output, labels: classification(output, labels, model.config)
            return likelihood  # type: ignore[no-any-return]
    return None


def logits_of(output: Any) -> Tensor:
    """The tensor that a Pyro model of this head returns."""
    if getattr(output, "start_logits", None) is not None:
        return torch.stack([output.start_logits, output.end_logits])
    logits = getattr(output, "logits", None)
    tensor: Tensor = logits if isinstance(logits, Tensor) else output[0]
    return tensor


def _positions(logits: Tensor, target: Tensor) -> None:
    counts = target != _IGNORED
    _check_classes(target[counts], logits.size(-1))
    likelihood = Categorical(logits=logits.float())
    with poutine.mask(mask=counts.new_ones(())):
        pyro.sample("labels", likelihood.mask(counts).to_event(1), obs=target.clamp(min=0))


def _check_classes(target: Tensor, classes: int) -> None:
    if target.numel() and (target.min() < 0 or target.max() >= classes):
        raise ValueError(
            f"labels lie in {target.min().item()} .. {target.max().item()}, expected classes 0 .. {classes - 1}; load "
            f"the model with num_labels= as many as there are classes"
        )
