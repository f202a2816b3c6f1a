"""Rows of the table: the trainings of every scheme and ablation, in both directions."""

from __future__ import annotations

from typing import Any, Literal, get_args

from experiments.files import UserError
from experiments.harness.options import options_of
from experiments.harness.sweep import Key
from experiments.nmt.align_table.config import AblationName, AlignTable
from experiments.nmt.config import TranslationOptions
from experiments.sequence.compare import scheme_options
from guides.names import WeightsSchemeName

__all__ = ["DIRECTIONS", "Direction", "ablation_row", "row_options"]

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
_OWN = (
    "input_feed", "diagonal", "null_word", "words_from", "encoder", "prior_from", "jumps", "normalizer",
    "posterior_from_prior", "embedding", "dropout", "max_epochs", "patience",
)  # fmt: skip


def row_options(config: AlignTable) -> dict[Key, dict[str, Any]]:
    """Options of a training for every (row, direction).

    Raises:
        UserError: No scheme, or ablations of one that is not among the schemes.
    """
    if not config.schemes:
        raise UserError("--schemes is empty; expected one at least")
    if config.ablations and config.ablated not in config.schemes:
        raise UserError(f"--ablated {config.ablated} is not among --schemes; add it, or leave out --ablations")
    rows: dict[str, dict[str, Any]] = {scheme: _scheme_options(config, scheme) for scheme in config.schemes}
    for name in config.ablations:
        options = rows[config.ablated]
        rows[ablation_row(config, name)] = {**options, name: _other_value(name, options[name])}
    sides = {"forward": (config.source, config.target), "backward": (config.target, config.source)}
    return {
        (row, direction): {**options, "source": sides[direction][0], "target": sides[direction][1]}
        for row, options in rows.items()
        for direction in DIRECTIONS
    }


def ablation_row(config: AlignTable, name: AblationName) -> str:
    """Name of the row of an ablation: the scheme, and the option with its other value."""
    value = _other_value(name, getattr(config, name))
    return f"{config.ablated}, {name} {value}"


def _scheme_options(config: AlignTable, scheme: str) -> dict[str, Any]:
    shared = options_of(config, TranslationOptions) | {name: getattr(config, name) for name in _OWN}
    options = shared | scheme_options(scheme, kl_weight=config.kl_weight, warm_start=config.warm_start)
    if config.posterior_from_prior:
        options["posterior_from_prior"] = True
    # such weights would be the same for all words
    return options | {"prior_from": "words", "jumps": False} if scheme in get_args(WeightsSchemeName) else options


def _other_value(name: AblationName, value: Any) -> Any:
    others: dict[str, dict[Any, Any]] = {
        "input_feed": {"none": "expected", "expected": "none"},
        "words_from": {"both": "context", "context": "both"},
        "encoder": {"lstm": "words", "words": "lstm"},
        "prior_from": {"words": "place", "place": "words"},
        "normalizer": {"softmax": "temporal", "temporal": "softmax", "hybrid": "softmax"},
    }
    if name == "vocabulary":
        return max(1, value // 3)
    return others[name][value] if name in others else not value
