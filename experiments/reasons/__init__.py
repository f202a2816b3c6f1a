"""Which neighbor, which instance is the reason: attention tested where the reason is known."""
