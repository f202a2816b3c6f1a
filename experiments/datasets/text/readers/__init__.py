"""Readers of sentence pairs: every module registers what it reads in `PARALLEL`."""
