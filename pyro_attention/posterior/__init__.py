"""Posterior samples and predictions, streamed in chunks of passes."""
