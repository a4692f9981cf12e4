"""Rollouts by workers, beside peers in lock-step."""
