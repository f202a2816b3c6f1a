"""Posterior families and priors of attention weights, one file a family."""

from pyro_attention.families import kl as kl  # registers the closed forms
