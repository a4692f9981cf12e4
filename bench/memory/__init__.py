"""Memory: what networks that remember learn, how fast, and beside whom."""
