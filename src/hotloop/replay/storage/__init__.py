"""Storage of transitions: how their fields are laid out, and the memory that they lie in."""
