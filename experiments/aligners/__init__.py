"""Comparison of word aligners that need no translation network, on hand-made links."""
