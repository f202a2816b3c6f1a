"""Attention layers with the arguments of those that they mirror, and attention scores."""
