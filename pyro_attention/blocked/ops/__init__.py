"""Blocked attention as pure tensor functions, in PyTorch and in Triton."""
