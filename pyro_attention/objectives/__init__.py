"""Objectives: closed-form KL, exact sums over alignments, score functions, importance weights."""
