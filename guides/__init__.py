"""Inference schemes by name, and task-specific inference networks."""

from guides.schemes import PriorName, Scheme, SchemeName, build_scheme

__all__ = ["PriorName", "Scheme", "SchemeName", "build_scheme"]
