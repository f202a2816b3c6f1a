"""Blocked attention: weights that are never held, made block by block, and again in the backward pass."""

from pyro_attention.blocked import kl as kl  # registers the closed forms
