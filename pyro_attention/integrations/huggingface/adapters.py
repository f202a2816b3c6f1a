"""Adapters of PEFT, such as LoRA, with which the priors of the attention weights are trained, saved and loaded.

PEFT freezes every parameter but those of its adapters, and an adapter file holds nothing else. A prior network is
saved with an adapter where it is one of its ``modules_to_save``; :func:`bayesian` enters it there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pyro_attention.integrations.huggingface.attention import CHILD, SiteAttention

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

    from pyro_attention.integrations.huggingface.model import BayesianModel

__all__ = [
    "base_model", "check_adapters", "check_priors_are_saved", "has_adapters", "load_adapter",
    "save_priors_with_adapters",
]  # fmt: skip

_LINES = (
    "    model = bayesian(get_peft_model(model, config))        # then train\n"
    "    model.save_pretrained(folder)                          # the adapter, and the priors with it\n"
    "    model = load_adapter(bayesian(model), folder)          # in another process"
)


def base_model(model: nn.Module) -> PreTrainedModel:
    """Return the model of transformers inside a ``PeftModel``, or the model itself.

    Args:
        model: A model of transformers or of PEFT; any other object is returned as it is.

    Raises:
        ValueError: The model is a ``PeftMixedModel``.
    """
    peft = sys.modules.get("peft")  # without it in the process, no model can have an adapter
    if peft is not None and isinstance(model, peft.PeftMixedModel):
        raise ValueError(
            "model is a PeftMixedModel, which PEFT can neither save nor load; expected one of "
            "get_peft_model(model, config) without mixed=True"
        )
    base: Any = model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model
    network: PreTrainedModel = base
    return network


def check_adapters(model: nn.Module) -> None:
    """Raise ValueError where the adapters of a model cannot hold priors, or held some that are lost.

    Args:
        model: The model that is passed to :func:`bayesian`: one of transformers, or a ``PeftModel``.
    """
    for name, config in _adapters(model).items():
        if config.is_prompt_learning:
            raise ValueError(
                f"adapter '{name}' is {config.peft_type.value}, which changes no module of the network and saves none; "
                f"expected an adapter inside the layers, such as LoraConfig or IA3Config"
            )
        if CHILD in (config.modules_to_save or ()):
            raise ValueError(
                f"adapter '{name}' was saved with priors, but was put on a model without latent attention, where they "
                f"are lost; make the model Bayesian first: load_adapter(bayesian(model), folder)"
            )


def save_priors_with_adapters(model: nn.Module) -> None:
    """Enter the latent attention of a model among the ``modules_to_save`` of its adapters.

    Every adapter gets priors of its own, which train where the adapter does. PEFT saves and loads them with it, and
    ``merge_and_unload`` leaves those of the active adapter in the model.

    Args:
        model: The model of transformers that holds adapters; nothing is done where it holds none.
    """
    adapters = _adapters(model)
    if not adapters:
        return
    wrapper_class = import_module("peft.utils").ModulesToSaveWrapper
    active = _active_adapter(model)
    for config in adapters.values():
        config.modules_to_save = [*(config.modules_to_save or ()), CHILD]
    for module in [module for module in model.modules() if CHILD in module._modules]:
        wrapper = wrapper_class(module._modules[CHILD], active)
        for name in adapters:
            wrapper.update(name)
        wrapper.set_adapter(active, inference_mode=adapters[active].inference_mode)
        setattr(module, CHILD, wrapper)


def check_priors_are_saved(model: BayesianModel) -> None:
    """Raise ValueError where priors would neither train nor be saved with the adapters of a Bayesian model.

    So it is after ``get_peft_model(bayesian(model), config)``: PEFT froze the priors, and its file holds none of them.
    Priors that came with the checkpoint of the base may stay frozen, as they come back with it.

    Args:
        model: A Bayesian model of transformers.
    """
    if not torch.is_grad_enabled() or not has_adapters(model):
        return
    lost = [path for path, latent in _latent(model) if _is_lost(latent)]
    frozen = not any(weight.requires_grad for _, latent in _latent(model) for weight in latent.parameters())
    if lost and not (model.pyro_saved_priors and frozen):
        raise ValueError(
            f"the priors of {len(lost)} attention sites, such as '{lost[0]}', are not part of the active adapter: PEFT "
            f"froze them, and save_pretrained leaves them out. Either pass modules_to_save=['{CHILD}'] to the "
            f"configuration of the adapter, or let bayesian() do it:\n{_LINES}"
        )


def load_adapter(model: PreTrainedModel, folder: str | Path, **options: object) -> PeftModel:
    """Load a saved adapter onto a Bayesian model, with the priors that were trained with it.

    ``PeftModel.from_pretrained`` loads it too, but ignores tensors that have no place in the model.

    Args:
        model: A model of :func:`bayesian`, of the same base, prior and sites as the adapter was trained with.
        folder: Folder that ``save_pretrained`` of the trained model wrote, or its name on the hub.
        options: Options of ``PeftModel.from_pretrained``, such as ``is_trainable=True`` to train on.

    Returns:
        The ``PeftModel``.

    Raises:
        ImportError: PEFT is not installed.
        ValueError: The model is not Bayesian or has an adapter already; the adapter was trained on another base model,
            with another prior or other sites, or holds no priors.

    Example:
        >>> model = bayesian(BertForSequenceClassification.from_pretrained("bert-base-uncased"))  # doctest: +SKIP
        >>> guide = AttentionGuide(load_adapter(model, "adapter"), Weibull(10.0))  # doctest: +SKIP
    """
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise ImportError("load_adapter needs PEFT: pip install peft") from error
    if not any(_latent(model)):
        raise ValueError(f"this {type(model).__name__} has no latent attention, expected a result of bayesian(model)")
    if has_adapters(model):
        raise ValueError(f"this {type(model).__name__} has an adapter already; load its base model anew")
    config = peft.PeftConfig.from_pretrained(str(folder))
    _check_base(model, config, folder)
    if CHILD not in (getattr(config, "modules_to_save", None) or ()):
        raise ValueError(
            f"the adapter in '{folder}' holds no priors: it was trained without latent attention, or without its "
            f"priors. Load it onto the plain model, and call bayesian() on that, which begins with fresh priors"
        )
    _check_tensors(model, config, peft.load_peft_weights(str(folder), device="cpu"), folder)
    loaded: PeftModel = peft.PeftModel.from_pretrained(model, str(folder), **options)
    return loaded


def _check_base(model: PreTrainedModel, config: PeftConfig, folder: str | Path) -> None:
    """Raise where an adapter names another base model; the same name in another folder is the same model."""
    trained, here = config.base_model_name_or_path or "", model.config._name_or_path or ""
    if trained and here and Path(trained).name != Path(here).name:
        raise ValueError(
            f"the adapter in '{folder}' was trained on '{trained}', but the model was loaded from '{here}'; load that "
            f"base model. If it is the same model under another name, change base_model_name_or_path in "
            f"adapter_config.json"
        )


def _check_tensors(model: nn.Module, config: PeftConfig, tensors: dict[str, torch.Tensor], folder: str | Path) -> None:
    """Raise where the tensors of an adapter are not those that this model has places for."""
    prefix = "base_model.model."
    sizes = {f"{prefix}{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    mark = f".{CHILD}."
    held, expected = ({name for name in named if mark in name} for named in (tensors, sizes))
    other = sorted(held ^ expected)
    if other:
        where = "the adapter" if other[0] in held else "the model"
        raise ValueError(
            f"the priors of the adapter in '{folder}' are not those of the model: {len(other)} tensors differ, such as "
            f"'{other[0].removeprefix(prefix)}', which only {where} has; give bayesian() the prior= and sites= that "
            f"the adapter was trained with, on a base model of the same layers"
        )
    layers = {name.rpartition(".lora_")[0] for name in tensors if ".lora_" in name}
    absent = sorted(path for path in layers if not any(name.startswith(f"{path}.") for name in sizes))
    if absent:
        raise ValueError(
            f"the adapter in '{folder}' has weights for '{absent[0].removeprefix(prefix)}', which "
            f"{type(model).__name__} does not have: it was trained on another base model"
            f"{f', {config.base_model_name_or_path!r}' if config.base_model_name_or_path else ''}"
        )
    for name in sorted(tensors.keys() & sizes.keys()):
        if tuple(tensors[name].shape) != sizes[name]:
            raise ValueError(
                f"'{name.removeprefix(prefix)}' has shape {tuple(tensors[name].shape)} in '{folder}', but "
                f"{sizes[name]} in the model; the adapter was trained on another base model or with another prior"
            )


def _adapters(model: nn.Module) -> dict[str, Any]:
    """Return the configurations of the adapters inside a model, by name; their fields depend on the adapter."""
    peft = sys.modules.get("peft")
    has_config = has_adapters(model) or (peft is not None and isinstance(model, peft.PeftModel))
    return dict(getattr(model, "peft_config", {})) if has_config else {}


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model holds layers of PEFT, as it does not after ``merge_and_unload``, despite its config."""
    if "peft" not in sys.modules:
        return False
    layer = import_module("peft.tuners.tuners_utils").BaseTunerLayer
    return any(isinstance(module, layer) for module in model.modules())


def _active_adapter(model: nn.Module) -> str:
    """Return the name of the active adapter of a model; PEFT allows one where modules are saved with it."""
    layer = import_module("peft.tuners.tuners_utils").BaseTunerLayer
    active = next(module.active_adapters for module in model.modules() if isinstance(module, layer))
    if len(active) != 1:
        raise ValueError(f"adapters {active} are active, expected one; call model.set_adapter(name) first")
    name: str = active[0]
    return name


def _latent(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the latent attention of a model by the path of its attention module, in PEFT's wrapper if it has one."""
    for path, module in model.named_modules():
        if CHILD in module._modules:
            yield path, getattr(module, CHILD)


def _is_lost(latent: nn.Module) -> bool:
    """Return whether the parameters of a prior are in no active adapter."""
    if not any(True for _ in latent.parameters()):
        return False
    if isinstance(latent, SiteAttention):
        return True
    # an adapter without these modules leaves the list empty
    wrapper: Any = latent  # PEFT's ModulesToSaveWrapper
    active = [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    return not wrapper.disable_adapters and not active
