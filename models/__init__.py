"""Pyro models of the papers' tasks, one file a task."""
