"""Photographs and scenes with captions, and features of their regions."""
