"""Inference schemes by name, and task-specific inference networks.

What needs torch is imported when it is first asked for: command lines read the names and options alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guides.inference_network import AlignmentNetwork, AnswerNetwork, RegionNetwork
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'guides' has no attribute '{name}', expected one of {', '.join(__all__)}")
    home = "options" if "Options" in name else "inference_network" if "Network" in name else "schemes"
    return getattr(import_module(f"guides.{home}"), name)
