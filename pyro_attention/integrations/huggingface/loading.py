"""Loading of Bayesian models that ``save_pretrained`` wrote."""

from __future__ import annotations

import warnings
from typing import Any

from pyro_attention.integrations._sites import PriorFactory
from pyro_attention.integrations.huggingface.attention import NAME
from pyro_attention.integrations.huggingface.convert import convert, load_transformers
from pyro_attention.integrations.huggingface.files import shards
from pyro_attention.integrations.huggingface.likelihoods import Likelihood

__all__ = ["from_pretrained"]

# options that say where a checkpoint is, and how it may be had
_WHERE = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


def from_pretrained(
    cls: Any,
    path: str,
    *,
    prior: PriorFactory | None = None,
    likelihood: Likelihood | None = None,
    **options: Any,
) -> Any:
    """Load a Bayesian model with its priors, from a folder or a hub name.

    Only safetensors files are read, never pickled weights, and no code that comes with a model is run unless
    ``trust_remote_code=True`` is among the options.

    Args:
        cls: A class of transformers, such as ``AutoModelForSequenceClassification``.
        path: Folder or name.
        prior: Needed where the priors were made by a function, which no file holds.
        likelihood: As for :func:`bayesian`; it is not saved.
        options: Of ``cls.from_pretrained``.

    Returns:
        The model, as :func:`bayesian` returns it.

    Raises:
        ValueError: The checkpoint is of another architecture, has no safetensors file or an index that names files
            elsewhere, or was not saved by a Bayesian model; prior parameters are missing.

    Example:
        >>> model.save_pretrained("fine-tuned")  # doctest: +SKIP
        >>> model = from_pretrained(AutoModelForSequenceClassification, "fine-tuned")  # doctest: +SKIP
    """
    transformers = load_transformers()
    options.setdefault("trust_remote_code", False)  # else transformers asks on the terminal
    where = {name: options[name] for name in _WHERE if name in options}
    config = options.get("config") or transformers.AutoConfig.from_pretrained(path, **where)
    expected = getattr(getattr(cls, "config_class", None), "model_type", None)
    if expected is not None and expected != config.model_type:
        raise ValueError(
            f"'{path}' holds a model of type '{config.model_type}', expected '{expected}' for {cls.__name__}; load it "
            f"with a class of its own architecture, such as one of the Auto classes"
        )
    if getattr(config, NAME, None) is None:
        raise ValueError(
            f"'{path}' was not saved by a Bayesian model, it has no prior parameters; convert it: "
            f"bayesian({cls.__name__}.from_pretrained('{path}'))"
        )
    where.pop("trust_remote_code", None)
    shards(path, config, where)  # transformers would read any file that an index names
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # prior parameters are "unexpected" to it
    try:
        model, report = cls.from_pretrained(path, use_safetensors=True, output_loading_info=True, **options)
    except OSError as error:
        raise ValueError(
            f"'{path}' cannot be read: {error}; only safetensors files are, pickled weights (.bin) may run any code: "
            f"save the model again with save_pretrained"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    if report["missing_keys"]:
        warnings.warn(
            f"'{path}' has no weights for {', '.join(sorted(report['missing_keys']))} of {type(model).__name__}: they "
            f"are new and want training",
            stacklevel=2,
        )
    return convert(model, prior=prior, sites="*", likelihood=likelihood, example=None, where=where)
