"""Compiled bandit kernels: blocks of 256 runs, one run per vector lane."""
