"""Masked language models, and sentence classifiers made from them."""
