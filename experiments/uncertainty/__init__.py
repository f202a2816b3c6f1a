"""Uncertainty that finds wrong answers: measures of one pass against draws of the attention weights."""
