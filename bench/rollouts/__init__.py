"""Rollouts by workers, compared with lock-step vector environments."""
