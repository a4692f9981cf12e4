"""Replay buffers, beside peers and by themselves in a training."""
