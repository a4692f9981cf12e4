"""Slow, obvious twins of what rollouts count with."""

from __future__ import annotations

import numpy as np


def fair_shares(available, total):
    """Hand out one row after another, each to who has the fewest and has rows left."""
    shares = [0] * len(available)
    for _ in range(total):
        able = [i for i, have in enumerate(available) if shares[i] < have]
        i = min(able, key=lambda i: shares[i])
        shares[i] += 1
    return shares


def environment_weights(num_steps, num_envs):
    """The weight of each transition: one over how many steps its environment has, so that every
    environment weighs the same; then scaled to mean 1.

    Args:
        num_steps: of each fragment.
        num_envs: likewise.
    """
    weights = []
    for steps, envs in zip(num_steps, num_envs, strict=True):
        for _ in range(steps):
            for _ in range(envs):
                weights.append(1.0 / steps)
    return np.array(weights) / np.mean(weights)
