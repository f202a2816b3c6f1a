"""Pure tensor functions: no Pyro inside, so they can be tested, compiled and timed alone."""
