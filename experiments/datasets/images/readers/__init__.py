"""Readers of captioned photographs: every module registers what it reads in `CAPTIONS`."""
