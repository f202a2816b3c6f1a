"""Conversion of a model of transformers to a Bayesian model, and back.

Under a guide of ``model.generate`` every step is a call: each new token draws its own weights over the past, whose
keys and values are cached as they were drawn before. Where another model or the text itself proposes tokens, a step
draws weights for several of them, also for those that are not accepted. Outside Pyro ``generate`` is deterministic as
before.

Likelihoods: classes and tokens are Categorical, without those labeled -100, several labels Bernoulli, numbers Normal
with a standard deviation of 1 (so standardize them), and the two ends of an answer Categorical each.

Gradient checkpointing is refused at the backward pass: it would draw the weights anew.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from pyro_attention.families.base import PRIORS
from pyro_attention.integrations._sites import PriorFactory, make_prior, read_sites
from pyro_attention.integrations.huggingface.adapters import (
    base_model,
    check_adapters,
    has_adapters,
    save_priors_with_adapters,
)
from pyro_attention.integrations.huggingface.attention import CHILD, NAME, SiteAttention, attend, compact_mask
from pyro_attention.integrations.huggingface.model import BayesianModel, Likelihood, bayesian_class
from pyro_attention.integrations.huggingface.probe import difference, probe, probe_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["bayesian", "deterministic"]

Network = TypeVar("Network", bound=nn.Module)

_MARK = f".{CHILD}."


class _PriorConfig(TypedDict):
    """Registered prior in a configuration: its name and its options."""

    name: str
    options: dict[str, object]


class _SavedAttention(TypedDict):
    """Latent attention in the configuration of a saved model: its prior, None for a function, and its sites."""

    prior: _PriorConfig | None
    sites: list[str]


def bayesian(
    model: Network,
    *,
    prior: PriorFactory | None = None,
    sites: str | Sequence[str] = "*",
    likelihood: Likelihood | None = None,
    example: Mapping[str, object] | None = None,
) -> Network:
    r"""Make a model of transformers Bayesian, in place, and return it: its attention weights become sample sites.

    .. math:: W = \mathrm{normalize}(S), \quad \log S \sim q(\cdot \mid QK^\top \mathrm{scaling} + \mathrm{mask}), \quad
              S \sim p(\cdot \mid K) \text{ a priori}

    Class name, configuration, ``save_pretrained``, ``generate`` and Trainer work as before, and where Pyro does not run
    the model, it computes the same numbers as before. Where Pyro runs it, it is a Pyro model: its batch lies in the
    plate ``batch``, labels that are passed are observed, and it returns its logits (start and end of an answer stacked,
    ``[B, 2, T]``; the first output of a model without a head), or all of its output with ``return_dict=True``. So
    ``AttentionGuide(model, Weibull())``, :class:`AttentionELBO`, ``predict``, ``sample_posterior`` and ``check_model``
    take it as it is.

    The name of a site is the path of its module; a module that runs more than once in a pass, as ALBERT's layers do,
    has one site a call: ``path``, ``path.1`` and so on. Modules that match no pattern keep ordinary attention. The KL
    leaves out padded queries; in a decoder that reads its labels, those behind the last label that counts, too. The
    docstring of this module describes likelihoods and ``generate``.

    Adapters of PEFT: call ``bayesian`` on the model that has the adapter. The priors are then trained and saved with
    the adapter; :func:`load_adapter` loads them. ``merge_and_unload`` keeps them.

    Args:
        model: A ``PreTrainedModel``, or a ``PeftModel`` of one, which is returned.
        prior: Name of a registered prior, a class of priors (or a partial of one), or a function of a head's width,
            called once a site. Contextual Gamma by default; a checkpoint of a Bayesian model has its own priors, which
            transformers calls unexpected when it loads them; it holds no function, so pass a function again.
        sites: Pattern of module paths, or several, as in ``fnmatch``.
        likelihood: Function of output and labels that declares the observed sites, instead of the head's likelihood.
        example: A small batch of inputs, for models that read neither texts nor images nor mel spectrograms.

    Returns:
        The model that was passed, converted in place.

    Raises:
        ImportError: transformers is not installed.
        TypeError: The model is no model of transformers, or ``prior`` makes no priors.
        ValueError: The model is Bayesian already, has no attention that calls the attention interface, or passes
            arguments to it that are not supported; no site matches; its numbers would change; prior parameters of its
            checkpoint are lost; it is quantized, or accelerate has replaced its forward; its adapter cannot hold
            priors, or was saved with some.

    Example:
        >>> model = BertForSequenceClassification.from_pretrained("bert-base-uncased")  # doctest: +SKIP
        >>> guide = AttentionGuide(bayesian(model), Weibull(10.0))  # doctest: +SKIP
        >>> loss = AttentionELBO()(model, guide)(**batch)  # doctest: +SKIP
        >>> model.save_pretrained("tuned")  # doctest: +SKIP
        >>> model = bayesian(BertForSequenceClassification.from_pretrained("tuned"))  # doctest: +SKIP

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.4.
    """
    network = base_model(model)
    saved = _saved(network, sites)
    check_adapters(model)
    prior = _prior(prior, saved)
    inputs = probe_inputs(network) if example is None else example
    _own_config(model)
    before = _implementations(network.config)
    try:
        chosen = _attach(network, prior, sites, saved, inputs)
        _check_same(network, inputs, before)
    except Exception:
        _remove(network, before)
        raise
    setattr(network.config, NAME, {"prior": _prior_to_config(prior), "sites": chosen})
    _set_class(network, bayesian_class(type(network)))
    assert isinstance(network, BayesianModel)
    network.pyro_likelihood, network.pyro_before, network.pyro_saved_priors = likelihood, before, saved is not None
    save_priors_with_adapters(network)
    return model


def deterministic(model: Network) -> Network:
    """Undo :func:`bayesian` in place, and return the model, with the weights that it has now.

    The priors are lost; save the model before, to keep them.

    Args:
        model: A model of :func:`bayesian`; a model with an adapter has to be merged first.

    Returns:
        The model that was passed, of its original class.

    Raises:
        TypeError: The model has no latent attention.
        ValueError: It has an adapter of PEFT.

    Example:
        >>> original = deterministic(bayesian(model))  # doctest: +SKIP
    """
    if not isinstance(model, BayesianModel):
        raise TypeError(f"model is a {type(model).__name__} without latent attention, expected one of bayesian(model)")
    if has_adapters(model):
        raise ValueError(
            f"this {type(model).__name__} has an adapter, whose file holds the priors; call "
            f"deterministic(model.merge_and_unload()), or disable the adapter"
        )
    before, original = model.pyro_before, model.deterministic_class
    del model.pyro_before, model.pyro_likelihood, model.pyro_saved_priors
    delattr(model.config, NAME)
    _remove(model, before)
    _set_class(model, original)
    return model


def _set_class(model: PreTrainedModel, network_class: type[PreTrainedModel]) -> None:
    model.__class__ = network_class


def _own_config(model: nn.Module) -> None:
    """Give a model its own configuration: all models that transformers makes of a configuration share it."""
    copies: dict[int, object] = {}  # deepcopy's memory, so that the modules of the model still share theirs
    for module in model.modules():
        # not a configuration that a wrapper passes on
        if isinstance(vars(module).get("config"), _transformers().PreTrainedConfig):
            module.config = copy.deepcopy(module.config, copies)


def _saved(model: PreTrainedModel, sites: str | Sequence[str]) -> _SavedAttention | None:
    """Return the latent attention in the configuration of a model that a Bayesian model has saved; else None."""
    transformers = _transformers()
    if not isinstance(model, transformers.PreTrainedModel):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a PreTrainedModel of transformers; for attention of torch.nn "
            f"use pyro_attention.integrations.torch_nn"
        )
    if isinstance(model, BayesianModel):
        raise ValueError(f"this {type(model).__name__} is Bayesian already; call deterministic(model) first")
    if "forward" in vars(model):
        raise ValueError(
            f"the forward of this {type(model).__name__} was replaced on the model itself, as prepare() of accelerate "
            f"and device_map= over several devices do, so labels would not be observed; load it without device_map=, "
            f"and call bayesian(model) first, then prepare() or accelerate.dispatch_model"
        )
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise ValueError(
            f"this {type(model).__name__} is quantized, and priors of its keys would have to be computed in numbers "
            f"that it does not have; load it without quantization_config=, such as with dtype=torch.bfloat16"
        )
    saved: _SavedAttention | None = getattr(model.config, NAME, None)
    if saved is not None and sites != "*":
        raise ValueError(
            f"sites is {sites!r}, but the checkpoint has its own sites and trained priors; leave sites= out"
        )
    return saved


def _attach(
    model: PreTrainedModel,
    prior: PriorFactory,
    sites: str | Sequence[str],
    saved: _SavedAttention | None,
    inputs: Mapping[str, object],
) -> list[str]:
    """Give attention modules their latent weights, and return the paths of these modules."""
    model.set_attn_implementation(NAME)
    # a model that cannot take it says so, and keeps what it had
    calls = probe(model, inputs)[0] if model.config._attn_implementation == NAME else {}
    if not calls:
        raise ValueError(
            f"{type(model).__name__} never called the attention interface of transformers in a forward pass: it has "
            f"no attention, or its family ('{model.config.model_type}') computes it by code of its own; use a family "
            f"that follows the interface, such as bert, roberta, gpt2, llama, bart, t5 or vit"
        )
    modules = {path: module for path, module in model.named_modules() if module in calls}
    paths = _site_paths(model, saved["sites"], modules) if saved else read_sites(sites, modules, of="attention module")
    for path in paths:
        module, call = modules[path], calls[modules[path]]
        latent = SiteAttention(path, make_prior(prior, call.head_dim, site=path), self_attention=call.self_attention)
        setattr(module, CHILD, latent.to(model.device, model.dtype).train(module.training))
    probe(model, inputs, training=[modules[path] for path in paths])  # they note their dropout
    if saved is not None:
        _load_priors(model)
    return list(paths)


def _transformers() -> ModuleType:
    """Return the package transformers, with the attention and mask functions registered."""
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "pyro_attention.integrations.huggingface needs transformers: pip install 'pyro-attention[transformers]'"
        ) from error
    masking = import_module("transformers.masking_utils")
    transformers.AttentionInterface.register(NAME, attend)
    masking.AttentionMaskInterface.register(NAME, compact_mask)
    return transformers


def _prior(prior: PriorFactory | None, saved: _SavedAttention | None) -> PriorFactory:
    """Return the factory of all priors: ``prior`` if it is passed, else that of the checkpoint, else the default."""
    if prior is not None:
        return prior
    if saved is None:
        return "gamma_contextual"
    if saved["prior"] is None:
        raise ValueError("the priors of this checkpoint were made by a function, which it cannot hold; pass prior=")
    return partial(PRIORS[saved["prior"]["name"]], **saved["prior"]["options"])


def _check_same(model: PreTrainedModel, inputs: Mapping[str, object], before: dict[str, object]) -> None:
    """Raise ValueError unless the converted model computes what it computed before."""
    _, after = probe(model, inputs)
    model.set_attn_implementation(before)
    _, expected = probe(model, inputs)
    model.set_attn_implementation(NAME)
    worst, tolerance = difference(expected, after), 1e-4 if model.dtype in (torch.float32, torch.float64) else 0.03
    if not worst <= tolerance:
        raise ValueError(
            f"{type(model).__name__} gives other numbers with the attention of this library (relative difference "
            f"{worst:.2g}): its family '{model.config.model_type}' changes scores or weights in a way that it does not "
            f"tell the attention function, and is not supported"
        )


def _implementations(config: PreTrainedConfig) -> dict[str, object]:
    """Return the attention implementations of a configuration and its parts, for ``set_attn_implementation``."""
    inner = {name: getattr(config, name) for name in config.sub_configs}
    return {"": config._attn_implementation} | {
        name: _implementations(sub) for name, sub in inner.items() if sub is not None
    }


def _remove(model: PreTrainedModel, before: dict[str, object]) -> None:
    """Remove latent attention from a model."""
    for module in model.modules():
        if CHILD in module._modules:
            delattr(module, CHILD)
    model.set_attn_implementation(before)


def _prior_to_config(factory: PriorFactory) -> _PriorConfig | None:
    """Return name and options of a registered prior; None for a function, which no configuration can hold."""
    prior: object = factory
    options: Mapping[str, object] = {}
    if isinstance(factory, partial) and not factory.args:
        prior, options = factory.func, factory.keywords
    names = [name for name, member in PRIORS.items() if prior in (name, member)]
    try:
        json.dumps(dict(options))
    except TypeError:
        return None
    return {"name": names[0], "options": dict(options)} if names else None


def _load_priors(model: PreTrainedModel) -> None:
    """Read the prior parameters from the checkpoint that a model was loaded from."""
    parameters = {name: tensor for name, tensor in model.state_dict().items() if _MARK in name}
    source, prefix = model.config._name_or_path, f"{model.base_model_prefix}."
    held = {name.removeprefix(prefix): tensor for name, tensor in _priors_in_files(source, model.config)}
    loaded = {name: held[name.removeprefix(prefix)] for name in parameters if name.removeprefix(prefix) in held}
    for name, tensor in loaded.items():
        if tensor.shape != parameters[name].shape:
            raise ValueError(
                f"'{name}' has shape {tuple(tensor.shape)} in '{source}', expected {tuple(parameters[name].shape)}; "
                f"the checkpoint was written with another prior: leave prior= out"
            )
    missing = sorted(parameters.keys() - loaded.keys())
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(parameters)} prior parameters are missing in '{source}', such as '{missing[0]}', "
            f"but its configuration says that it was saved with them; load a folder of safetensors files that "
            f"save_pretrained wrote, or delete config.{NAME} to begin with fresh priors"
        )
    model.load_state_dict(loaded, strict=False)


def _priors_in_files(source: str, config: PreTrainedConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield prior parameters in the safetensors files of a folder, or of the local copy of a folder of the hub."""
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    revision = getattr(config, "_commit_hash", None) or "main"
    beside = cached_file(source, "config.json", revision=revision) if source else None
    for path in [] if beside is None else sorted(Path(beside).parent.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = file.keys()
            yield from ((name, file.get_tensor(name)) for name in names if _MARK in name)


def _site_paths(model: PreTrainedModel, saved: list[str], modules: Collection[str]) -> list[str]:
    """Return the paths of the saved sites in a model, which may be the base of the saved model or its extension."""
    prefix = f"{model.base_model_prefix}."
    here = {path.removeprefix(prefix): path for path in modules}
    absent = [name for name in saved if name.removeprefix(prefix) not in here]
    if absent:
        raise ValueError(
            f"the checkpoint has latent attention at '{absent[0]}', which {type(model).__name__} does not have; "
            f"load it with the class that was saved, {', '.join(model.config.architectures or ['unknown'])}"
        )
    return [here[name.removeprefix(prefix)] for name in saved]
