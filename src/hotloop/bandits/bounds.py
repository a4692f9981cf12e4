"""Lower bounds of regret."""

from __future__ import annotations

import math

from hotloop.bandits.environments import Environment


def lai_robbins(environment: Environment) -> float | None:
    """Return C = Σ Δ_a / KL(a, best) of the asymptotic lower bound C ln t on regret.

    The sum is over inferior arms. Lai and Robbins 1985, "Asymptotically efficient adaptive
    allocation rules", theorem 1.

    Returns:
        C, or None if the environment has no given `means` or the bound is 0.
    """
    means = getattr(environment, "means", None)
    if means is None:
        return None
    best = max(means)
    if environment.name == "bernoulli":
        divergences = [_bernoulli_divergence(mean, best) for mean in means]
    elif environment.name == "gaussian" and environment.noise > 0:
        divergences = [(best - mean) ** 2 / (2 * environment.noise**2) for mean in means]
    else:
        return None
    pairs = zip(means, divergences, strict=True)
    return sum((best - mean) / divergence for mean, divergence in pairs if mean < best) or None


def _bernoulli_divergence(p: float, q: float) -> float:
    total = 0.0
    for p_x, q_x in ((p, q), (1 - p, 1 - q)):
        if p_x > 0:
            total += p_x * math.log(p_x / q_x) if q_x > 0 else math.inf
    return total
