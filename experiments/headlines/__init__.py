"""Headlines: a Transformer that writes them, with latent attention in its encoder."""
