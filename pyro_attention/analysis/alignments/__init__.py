"""Alignments: scores, uncertainty, symmetrization, word pieces, files."""
