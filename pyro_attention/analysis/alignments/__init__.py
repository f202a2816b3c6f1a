"""Alignments: scores, uncertainty, symmetrisation, word pieces, files."""
