"""Probabilities of classes: scores, calibration, certainty, sources of uncertainty."""
