"""Tiny forward passes that show which modules call the attention function, and that their numbers stay the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pyro_attention.integrations.huggingface.attention import OBSERVER
from pyro_attention.posterior.passes import in_evaluation

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["Call", "difference", "probe", "probe_inputs", "tensors"]

_LENGTH, _TARGETS = 5, 3  # of encoder and decoder: different, so that cross attention shows


@dataclass
class Call:
    """Record of the calls of the attention function that a module makes in one pass.

    Attributes:
        head_dim: Width of a key.
        count: Number of calls.
        self_attention: Whether there were as many keys as queries in every call.
    """

    head_dim: int
    count: int = 0
    self_attention: bool = True


def probe(
    model: nn.Module, inputs: Mapping[str, object], *, training: Sequence[nn.Module] = ()
) -> tuple[dict[nn.Module, Call], object]:
    """Record the calls of every attention module in one forward pass in evaluation mode.

    Args:
        model: A model of transformers.
        inputs: Its inputs by name.
        training: Modules that run in training mode, so that they pass on their dropout.

    Returns:
        The calls by module, and the output of the model.

    Raises:
        ValueError: The model fails on these inputs.
    """
    calls: dict[nn.Module, Call] = {}

    def observe(module: nn.Module, query: Tensor, key: Tensor) -> None:
        call = calls.setdefault(module, Call(key.size(-1)))
        call.count += 1
        call.self_attention &= query.size(-2) == key.size(-2)

    token = OBSERVER.set(observe)
    try:
        with torch.no_grad(), _evaluation(model):
            for module in training:
                module.training = True
            output = model(**inputs)
    except (IndexError, RuntimeError, AttributeError, KeyError) as error:
        shapes = ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in inputs.items() if isinstance(value, Tensor)
        )
        raise ValueError(
            f"{type(model).__name__} fails on a tiny batch of {shapes}: {error}; pass bayesian(..., example=) with one "
            f"small batch of its inputs"
        ) from error
    finally:
        OBSERVER.reset(token)
    return calls, output


def probe_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make one short example of a model's inputs from its configuration; the last position of a text is padded.

    Raises:
        ValueError: The model reads neither texts, images nor mel spectrograms, or its configuration does not tell their
            sizes.
    """
    remedy = "pass bayesian(..., example=) with one small batch of its inputs"
    try:
        inputs = _made_inputs(model)
    except AttributeError as error:
        raise ValueError(f"no inputs of {type(model).__name__} can be made up ({error}); {remedy}") from error
    if not inputs:
        names = inspect.signature(model.forward).parameters
        raise ValueError(
            f"{type(model).__name__} reads {', '.join(names)}, expected input_ids, pixel_values or input_features; "
            f"{remedy}"
        )
    return inputs


def _made_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    config, device = model.config, model.device
    names = inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "input_ids" in names and "input_features" not in names:
        inputs["input_ids"] = _tokens(config, _LENGTH, device)
        inputs["attention_mask"] = torch.tensor([[1] * (_LENGTH - 1) + [0]], device=device)
        if type(model).__name__.endswith("MultipleChoice"):
            inputs = {name: tensor.unsqueeze(1) for name, tensor in inputs.items()}
    if "input_features" in names:
        shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
        inputs["input_features"] = torch.randn(shape, device=device, dtype=model.dtype)
    if "pixel_values" in names:
        vision = getattr(config, "vision_config", config)
        size = (vision.image_size,) * 2 if isinstance(vision.image_size, int) else tuple(vision.image_size)
        shape = (1, getattr(vision, "num_channels", 3), *size)
        inputs["pixel_values"] = torch.randn(shape, device=device, dtype=model.dtype)
    # a decoder that classifies reads the text of the encoder, which it is not given anew
    classifies = type(model).__name__.endswith("SequenceClassification")
    if config.is_encoder_decoder and "decoder_input_ids" in names and not classifies:
        inputs["decoder_input_ids"] = _tokens(config, _TARGETS, device)
    return inputs


def tensors(output: object) -> dict[str, Tensor]:
    """Return the floating-point tensors of a model's output, by name."""
    items = output.items() if isinstance(output, Mapping) else {"output": output}.items()
    return {name: value for name, value in items if isinstance(value, Tensor) and value.is_floating_point()}


def difference(before: object, after: object) -> float:
    """Return the largest difference of two outputs, relative to the largest entry of each tensor or to 1."""
    old, new = tensors(before), tensors(after)
    worst = [(old[name].float() - new[name].float()).abs().max() / old[name].abs().max().clamp(min=1) for name in old]
    return max((value.item() for value in worst), default=0.0)


def _tokens(config: PreTrainedConfig, length: int, device: torch.device) -> Tensor:
    """Return some ordinary tokens; the last but one ends a sentence, which some heads look for."""
    special = [value for name, value in config.to_dict().items() if name.endswith("_token_id")]
    vocabulary = range(config.get_text_config().vocab_size)
    tokens = [token for token in vocabulary if token not in special][:length] or [0] * length
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and end in vocabulary:
        tokens[-2] = end
    return torch.tensor([tokens], device=device)


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Run modules in evaluation mode inside; restore their modes and the random generator afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with in_evaluation(model), torch.random.fork_rng(devices):
        yield
