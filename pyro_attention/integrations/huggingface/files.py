"""Prior parameters in the files of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_attention.integrations.huggingface.attention import CHILD

__all__ = ["from_pretrained", "load_priors"]


def from_pretrained(cls: Any, path: str, **options: Any) -> Any:
    """Load a Bayesian model that ``save_pretrained`` wrote, with its priors."""
    from pyro_attention.integrations.huggingface.convert import bayesian

    return bayesian(cls.from_pretrained(path, use_safetensors=True, **options))


def load_priors(model: Any) -> None:
    """Read the prior parameters from the folder that a model was loaded from."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in sorted(Path(model.config._name_or_path).glob("*.safetensors")):
        found |= {name: tensor for name, tensor in load_file(file).items() if f".{CHILD}." in name}
    wanted = {name for name in model.state_dict() if f".{CHILD}." in name}
    if set(found) != wanted:
        raise ValueError(f"prior parameters {sorted(wanted - set(found))} are missing")
    model.load_state_dict(found, strict=False)
