"""Word alignment with the probability of every link: in three lines of Python, or by the command ``pyro-align``."""

from pyro_attention.aligner.aligner import AlignedPair, Aligner, cross_fit

__all__ = ["AlignedPair", "Aligner", "cross_fit"]
