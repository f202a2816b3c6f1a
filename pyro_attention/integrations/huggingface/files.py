"""Prior parameters in the files of a model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_attention.integrations.huggingface.attention import CHILD, NAME

__all__ = ["load_priors", "shards", "site_paths"]

_MARK = f".{CHILD}."


def load_priors(model: Any, where: Mapping[str, Any]) -> None:
    """Read the prior parameters from the checkpoint that a model was loaded from.

    Args:
        model: The model.
        where: Options of transformers that lead to the checkpoint, such as a subfolder.

    Raises:
        ValueError: There is no such checkpoint, or it lacks parameters.
    """
    wanted = {name: tensor for name, tensor in model.state_dict().items() if _MARK in name}
    source = model.config._name_or_path
    names = _names_in_files(source, model.config, where)
    prefix = f"{model.base_model_prefix}."
    found: dict[str, Tensor] = {}
    for name, tensor in wanted.items():
        held = next((key for key in (name, prefix + name, name.removeprefix(prefix)) if key in names), None)
        if held is not None:
            found[name] = _read(names[held], held)
            if found[name].shape != tensor.shape:
                raise ValueError(
                    f"'{name}' has shape {tuple(found[name].shape)} in '{source}', expected {tuple(tensor.shape)}; the "
                    f"checkpoint was written with another prior: leave prior= out"
                )
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(wanted)} prior parameters are missing in '{source}', such as '{missing[0]}', but "
            f"its configuration says that it was saved with them; load a folder of safetensors files that "
            f"save_pretrained wrote, or delete config.{NAME} to begin with fresh priors"
        )
    model.load_state_dict(found, strict=False)


def site_paths(model: Any, saved: list[str], modules: Collection[str]) -> list[str]:
    """Paths of the saved sites in this model, which may be the base of the one that was saved, or have a head on it.

    Args:
        model: The model.
        saved: Paths in the checkpoint.
        modules: Paths of the attention modules of this model.

    Raises:
        ValueError: A site is not there.
    """
    prefix = f"{model.base_model_prefix}."
    paths = [[path for path in (name, prefix + name, name.removeprefix(prefix)) if path in modules] for name in saved]
    if not all(paths):
        raise ValueError(
            f"the checkpoint has latent attention at '{saved[paths.index([])]}', which {type(model).__name__} has not; "
            f"load it with the class that was saved, {', '.join(model.config.architectures or ['unknown'])}"
        )
    return [candidates[0] for candidates in paths]


def shards(source: str, config: Any, where: Mapping[str, Any]) -> dict[str, Path]:
    """Where every parameter of a checkpoint of several files is, by its index; nothing where it has no index.

    Raises:
        ValueError: The index names a file that is not beside it.
    """
    index = _local(source, "model.safetensors.index.json", config, where)
    if index is None:
        return {}
    files: dict[str, str] = json.loads(index.read_text())["weight_map"]
    outside = next((file for file in files.values() if Path(file).name != file or file == ".."), None)
    if outside is not None:
        raise ValueError(
            f"'{index}' names the file '{outside}', expected names of files beside it; load an intact copy"
        )
    return {name: index.parent / file for name, file in files.items()}


def _local(source: str, name: str, config: Any, where: Mapping[str, Any]) -> Path | None:
    """A file in a folder, or in the local copy of one of the hub; None where there is none."""
    from transformers.utils.hub import cached_file

    options = {**where, "revision": getattr(config, "_commit_hash", None) or where.get("revision", "main")}
    found = cached_file(
        source, name, **options, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )  # fmt: skip
    return None if found is None else Path(found)


def _names_in_files(source: str, config: Any, where: Mapping[str, Any]) -> dict[str, Path]:
    """Where every parameter of a checkpoint is."""
    from safetensors import safe_open

    if not source:
        return {}
    whole = _local(source, "model.safetensors", config, where)
    if (found := shards(source, config, where)) or whole is None:
        return found
    with safe_open(whole, "pt") as file:
        return dict.fromkeys(file.keys(), whole)


def _read(file: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
    return tensor
