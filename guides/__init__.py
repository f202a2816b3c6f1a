"""Inference schemes by name, and task-specific inference networks."""
