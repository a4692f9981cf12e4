"""Bandits: a post's program, peers, and the kernels."""
