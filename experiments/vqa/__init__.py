"""Visual question answering with latent attention."""
