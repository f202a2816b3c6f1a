"""Benchmarks: every figure is a ratio of two things timed side by side in one process."""
