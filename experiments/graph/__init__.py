"""Node classification with latent attention to neighbors."""
