"""Advantages as the sum that defines them, one entry at a time, in Python's own floats."""

from __future__ import annotations

import numpy as np


def gae(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    """A_t = Σ_l (γλ)^l δ_{t+l}, up to and with the step that ended the episode."""
    num_steps, num_envs = reward.shape
    advantages = np.zeros((num_steps, num_envs))
    for n in range(num_envs):
        for t in range(num_steps):
            weight = 1.0
            for k in range(t, num_steps):
                bootstrap = 0.0 if terminated[k, n] else float(next_value[k, n])
                delta = float(reward[k, n]) + gamma * bootstrap - float(value[k, n])
                advantages[t, n] += weight * delta
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= gamma * gae_lambda
    return advantages
