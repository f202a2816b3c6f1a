"""Data sets of the experiments, one file a kind of data."""
