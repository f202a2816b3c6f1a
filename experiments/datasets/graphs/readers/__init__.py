"""Readers of graphs: every module registers what it reads in `GRAPHS`."""
