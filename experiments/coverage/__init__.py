"""Do intervals of attention weights hold the true weights? Two problems whose weights are known."""
