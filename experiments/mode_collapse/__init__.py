"""Two clusters of points under repeated attention."""
