"""Inference schemes by name, rows of the papers, inference networks, and guides as plain Pyro functions."""
