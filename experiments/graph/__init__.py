"""Node classification with latent attention to neighbours."""
