"""Storage of transitions: the layout of their fields, and the memory for them."""
