"""Which context point: attentive neural processes with random attention, on functions of Gaussian processes."""
