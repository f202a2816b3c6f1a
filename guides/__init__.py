"""Inference schemes by name, and task-specific inference networks.

What needs torch is imported when it is first asked for: command lines read the names and options alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guides.answer_network import AnswerNetwork
    from guides.inference_network import AlignmentNetwork, RegionNetwork
    from guides.options import AlignmentSchemeOptions, SchemeOptions
    from guides.schemes import Scheme, build_scheme

__all__ = [
    "AlignmentNetwork",
    "AlignmentSchemeOptions",
    "AnswerNetwork",
    "RegionNetwork",
    "Scheme",
    "SchemeOptions",
    "build_scheme",
]

_HOMES = {
    "AlignmentNetwork": "inference_network",
    "AlignmentSchemeOptions": "options",
    "AnswerNetwork": "answer_network",
    "RegionNetwork": "inference_network",
    "Scheme": "schemes",
    "SchemeOptions": "options",
    "build_scheme": "schemes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'guides' has no attribute '{name}', expected one of {', '.join(__all__)}")
    return getattr(import_module(f"guides.{_HOMES[name]}"), name)
