"""Word aligners that need no network, on hand-made links."""
