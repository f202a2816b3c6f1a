"""Questions about photographs, and their answers."""
