"""Attentive neural processes with random attention to context points, on functions of Gaussian processes."""
