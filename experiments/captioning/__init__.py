"""Captions of images with latent attention to regions."""
