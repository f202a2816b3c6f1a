"""What a head's labels are distributed as, given its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Bernoulli, Categorical, Normal
from torch import Tensor

__all__ = ["LABELS", "Likelihood", "likelihood_of", "logits_of", "next_tokens", "observations"]

Likelihood = Callable[[Any, Mapping[str, Tensor]], None]

LABELS = ("labels", "start_positions", "end_positions")
_IGNORED = -100  # transformers' label of a position that does not count


def likelihood_of(model: Any) -> Likelihood:
    """The likelihood of a model's head: the one that was given, or that of its class.

    Raises:
        ValueError: None was given, and the head is none that is known.
    """
    if model.pyro_likelihood is not None:
        return model.pyro_likelihood  # type: ignore[no-any-return]
    name = type(model).__name__
    if name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        return lambda output, labels: _classification(output, labels, model.config)
    if name.endswith("ForConditionalGeneration"):
        return _tokens if model.config.is_encoder_decoder else next_tokens
    for suffix, likelihood in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return likelihood
    raise ValueError(
        f"the likelihood of {name} is not known, its labels have no distribution; pass bayesian(..., likelihood=f), "
        f"where f(output, labels) declares the observed sites by pyro.sample(..., obs=labels['labels']) for a batch in "
        f"a plate at dim -1"
    )


def logits_of(output: Any) -> Tensor:
    """What a Pyro model of this head returns: its logits, those of start and end stacked ``[B, 2, T]``, or states."""
    if getattr(output, "start_logits", None) is not None:
        return torch.stack([output.start_logits, output.end_logits], 1)
    logits = getattr(output, "logits", None)
    tensor: Tensor = output[0] if logits is None else logits
    return tensor


def observations(labels: Mapping[str, Tensor], *, shifted: bool = False) -> Tensor:
    """Number of labels that count, as Trainer counts them; of examples where the labels are positions."""
    if "labels" not in labels:
        return torch.tensor(len(next(iter(labels.values()))))
    target = labels["labels"]
    if target.is_floating_point():
        return torch.tensor(len(target))
    return ((target[:, 1:] if shifted else target) != _IGNORED).sum()


def _classification(output: Any, labels: Mapping[str, Tensor], config: Any) -> None:
    """A class, several yes-or-no labels, or numbers with a standard deviation of 1."""
    logits, target = output.logits.float(), labels["labels"]
    kind = config.problem_type
    if kind is None:
        single = "multi_label" if target.is_floating_point() else "single_label"
        kind = "regression" if config.num_labels == 1 else single
    if kind.startswith("regression"):
        pyro.sample("labels", Normal(logits, 1.0).to_event(1), obs=_fit(target.float(), logits.shape))
    elif kind.startswith("multi_label"):
        pyro.sample("labels", Bernoulli(logits=logits).to_event(1), obs=_fit(target.float(), logits.shape))
    else:
        _choice(output, labels)


def _choice(output: Any, labels: Mapping[str, Tensor]) -> None:
    """One of some classes."""
    logits = output.logits.float()
    target = _fit(labels["labels"], logits.shape[:-1])
    _check_classes(target, logits.size(-1))
    pyro.sample("labels", Categorical(logits=logits), obs=target)


def _tokens(output: Any, labels: Mapping[str, Tensor]) -> None:
    """One class a position; positions labelled -100 do not count."""
    _positions(output.logits, labels["labels"])


def next_tokens(output: Any, labels: Mapping[str, Tensor]) -> None:
    """The next token of every position; those labelled -100 do not count."""
    _positions(output.logits[:, :-1], labels["labels"][:, 1:])


def _positions(logits: Tensor, target: Tensor) -> None:
    target = _fit(target, logits.shape[:-1])
    counts = target != _IGNORED
    _check_classes(target[counts], logits.size(-1))
    likelihood = Categorical(logits=logits.float()).mask(counts).to_event(1)
    pyro.sample("labels", likelihood, obs=target.masked_fill(~counts, 0))


def _span(output: Any, labels: Mapping[str, Tensor]) -> None:
    """First and last position of an answer; those outside the window do not count."""
    for name, logits in (("start_positions", output.start_logits), ("end_positions", output.end_logits)):
        if name not in labels:
            raise ValueError(f"the labels are {', '.join(labels)}, expected start_positions and end_positions")
        target = _fit(labels[name], logits.shape[:1])
        inside = (target >= 0) & (target < logits.size(-1))
        with poutine.mask(mask=inside):
            pyro.sample(name, Categorical(logits=logits.float()), obs=target.masked_fill(~inside, 0))


_BY_SUFFIX: dict[str, Likelihood] = {
    "MultipleChoice": _choice,
    "NextSentencePrediction": _choice,
    "TokenClassification": _tokens,
    "MaskedLM": _tokens,
    "CausalLM": next_tokens,
    "LMHeadModel": next_tokens,
    "QuestionAnswering": _span,
}


def _fit(target: Tensor, shape: torch.Size) -> Tensor:
    """Labels in the shape of their distribution; ValueError where they are more or fewer."""
    if target.numel() != shape.numel() or len(target) != shape[0]:
        raise ValueError(f"labels have shape {tuple(target.shape)}, expected {tuple(shape)}")
    return target.reshape(shape)


def _check_classes(target: Tensor, classes: int) -> None:
    """Raise unless labels are classes."""
    if target.is_floating_point():
        raise TypeError(
            f"labels are {target.dtype}, expected integers 0 .. {classes - 1}; set config.problem_type to 'regression' "
            f"or 'multi_label_classification' for numbers"
        )
    if target.numel() and (target.min() < 0 or target.max() >= classes):
        raise ValueError(
            f"labels lie in {target.min().item()} .. {target.max().item()}, expected classes 0 .. {classes - 1}; load "
            f"the model with num_labels= as many as there are classes"
        )
