"""Extractive question answering: a span of a paragraph answers a question, or nothing in it does."""
