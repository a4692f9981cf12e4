"""Ratings of players from the scores of their games."""

from __future__ import annotations

import math

import numpy as np

from hotloop.types import Array

_ELO = 400 / math.log(10)  # points for a factor of e in the odds
# Inverse variance of a normal prior on each strength, whose standard deviation is 695 points. It
# keeps the rating of a player finite that has won or lost all of its games.
_PRIOR = 1 / 16


def elo_ratings(scores: Array, games: Array) -> tuple[Array, Array]:
    """Return the Elo ratings of players, and the half-widths of their 95 % intervals.

    The Bradley–Terry model says P(i beats j) = σ(s_i − s_j), and a draw is half a win. The
    strengths s have the maximum posterior probability, found by Newton's method, and their
    covariance is the inverse Hessian (Bradley and Terry 1952, Hunter 2004). The first player is
    rated 0, without an interval. 400 points more are odds of 10.

    Args:
        scores: sum of the scores of i against j, with 1 for a win and ½ for a draw, (K, K).
        games: number of games of i against j, symmetric, (K, K).

    Returns:
        Two arrays, float64, (K,).
    """
    num_players = len(games)
    strengths = np.zeros(num_players)
    covariance = np.zeros((num_players, num_players))
    for _ in range(100):
        expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        gradient = (scores - games * expected).sum(axis=1) - _PRIOR * strengths
        weights = games * expected * (1 - expected)
        hessian = np.diag(weights.sum(axis=1) + _PRIOR) - weights
        covariance = np.linalg.inv(hessian)
        step = covariance @ gradient
        strengths += step / max(1.0, float(np.abs(step).max()))  # at most 1, for stability
        if np.abs(step).max() < 1e-9:
            break
    variances = np.diag(covariance)
    relative = variances + variances[0] - 2 * covariance[0]
    widths = 1.96 * np.sqrt(np.maximum(relative, 0.0))
    return _ELO * (strengths - strengths[0]), _ELO * widths
