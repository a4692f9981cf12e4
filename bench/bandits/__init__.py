"""Bandits: a blog post's program, other libraries, and hotloop's kernels."""
