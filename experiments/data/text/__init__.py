"""Sentences, sentence pairs, vocabularies and batches of them."""
