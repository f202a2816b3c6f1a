"""Times and memory of the library beside its peers."""
