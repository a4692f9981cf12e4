"""Advantages as the sum that defines them, one entry at a time, in Python floats."""

from __future__ import annotations

import math

import numpy as np


def gae(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    """Return A_t = Σ_l (γλ)^l δ_{t+l}, up to and including the last step of the episode."""
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


def vtrace(
    reward,
    value,
    next_value,
    terminated,
    truncated,
    log_ratio,
    *,
    gamma,
    gae_lambda,
    max_rho=1.0,
    max_c=1.0,
):
    """Return v_t and A_t by the products and sums that define them."""
    num_steps, num_envs = reward.shape
    returns, advantages = np.zeros((num_steps, num_envs)), np.zeros((num_steps, num_envs))
    for n in range(num_envs):
        ratio = [math.exp(min(float(x), 700.0)) for x in log_ratio[:, n]]

        def delta(k, n=n):
            bootstrap = 0.0 if terminated[k, n] else float(next_value[k, n])
            return float(reward[k, n]) + gamma * bootstrap - float(value[k, n])

        for t in range(num_steps):
            total, weight, later = 0.0, 1.0, 0.0
            for k in range(t, num_steps):
                total += weight * min(max_rho, ratio[k]) * delta(k)
                if k > t:  # the same sum without the first step's c
                    later += weight / min(max_c, ratio[t]) * min(max_rho, ratio[k]) * delta(k)
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= gamma * gae_lambda * min(max_c, ratio[k])
            returns[t, n] = float(value[t, n]) + total
            advantages[t, n] = delta(t) + later
    return returns, advantages
