"""Data sets of the experiments, with a folder for each kind of data."""
