"""Statistics over seeds, tables, pictures and pages of results."""
