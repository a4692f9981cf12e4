"""Replay buffers: comparisons with other libraries, and their share of a training."""
