"""Runs: what reading one takes."""
