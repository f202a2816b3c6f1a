"""Runnable experiments: data sets, training, reports and benchmarks; not part of the installed package."""
