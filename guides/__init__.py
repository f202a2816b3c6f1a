"""Inference schemes by name, and task-specific inference networks."""

from guides.inference_network import AlignmentNetwork, RegionNetwork
from guides.schemes import (
    AblationSchemeName,
    AlignmentSchemeName,
    PriorName,
    Scheme,
    SchemeName,
    WeightsSchemeName,
    build_scheme,
)

__all__ = [
    "AblationSchemeName",
    "AlignmentNetwork",
    "AlignmentSchemeName",
    "PriorName",
    "RegionNetwork",
    "Scheme",
    "SchemeName",
    "WeightsSchemeName",
    "build_scheme",
]
