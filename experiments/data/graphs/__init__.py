"""Graphs for node classification."""
