"""Translation with a latent alignment."""
