"""The slow, obvious twin of every fast path."""
