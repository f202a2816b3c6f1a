"""Loading of a pretrained model with checks: no code of others is fetched, and no weight stays random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["load_checked"]

_ATTENTION = (None, "eager", "sdpa")  # what torch computes; other names are code that transformers fetches from the hub


def load_checked(
    auto_class: Any, model: str | Path, **options: object
) -> Any:  # of the class that the Auto class picks
    """Load a pretrained model of transformers whose base has all its weights in the checkpoint.

    transformers gives weights that are missing random values, and only warns. The output layer of a task may be new,
    and a pooler belongs to it: models that were pretrained without one have none.

    Args:
        auto_class: One of the Auto classes of transformers.
        model: Folder, or name on the hub.
        options: Options of ``from_pretrained``; remote code is never trusted.

    Returns:
        The model, of the class that the Auto class picks.

    Raises:
        ValueError: The configuration asks for attention that is computed by code from elsewhere, or weights of the base
            are missing in the checkpoint.
    """
    from transformers import AutoConfig

    local = {"local_files_only": True} if options.get("local_files_only") else {}
    attention = AutoConfig.from_pretrained(model, trust_remote_code=False, **local)._attn_implementation
    if attention not in _ATTENTION:
        raise ValueError(f"config.json asks for the attention {attention!r}, expected eager or sdpa")
    network, info = auto_class.from_pretrained(model, trust_remote_code=False, output_loading_info=True, **options)
    prefix = f"{network.base_model_prefix}."
    has_head = network.base_model is not network  # a base alone has no prefix before its weights
    missing = [
        name for name in sorted(info["missing_keys"])
        if (name.startswith(prefix) or not has_head) and "pooler" not in name
    ]  # fmt: skip
    if missing:
        raise ValueError(
            f"{len(missing)} weights of {type(network).__name__} are missing, such as {missing[0]}; the "
            f"checkpoint was written for another architecture"
        )
    return network
