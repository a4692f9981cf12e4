"""The slow, obvious twins of the arithmetic of rollouts."""

from __future__ import annotations

import numpy as np


def fair_shares(available, total):
    """Assign rows one by one, each to the one with the fewest that has rows left."""
    shares = [0] * len(available)
    for _ in range(total):
        candidates = [i for i, count in enumerate(available) if shares[i] < count]
        i = min(candidates, key=lambda i: shares[i])
        shares[i] += 1
    return shares


def environment_weights(num_steps, num_envs):
    """Return the weight of each transition, 1 over the number of steps of its environment, scaled
    to mean 1. All environments weigh the same.

    Args:
        num_steps: steps of each fragment.
        num_envs: environments of each fragment.
    """
    weights = []
    for steps, envs in zip(num_steps, num_envs, strict=True):
        for _ in range(steps):
            for _ in range(envs):
                weights.append(1.0 / steps)
    return np.array(weights) / np.mean(weights)
