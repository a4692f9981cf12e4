"""Runs: time to read them."""
