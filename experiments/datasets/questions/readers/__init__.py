"""Readers of questions about photographs: every module registers what it reads in `QUESTIONS`."""
