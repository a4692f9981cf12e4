"""Compiled code of a replay buffer, which works on addresses; `calls` is what Python calls."""
