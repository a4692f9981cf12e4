"""Ratings of players from the scores of their games."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hotloop.types import Array

_ELO = 400 / math.log(10)  # points for a factor of e in the odds
# Inverse variance of a normal prior on each strength, whose standard deviation is 695 points. It
# keeps the rating of a player finite that has won or lost all of its games.
_PRIOR = 1 / 16


class Evidence(NamedTuple):
    """Knowledge of strengths from games that are no longer counted, as a normal density.

    Attributes:
        precision: inverse covariance, (K, K).
        shift: precision times mean, (K,).
    """

    precision: Array
    shift: Array


def elo_ratings(
    scores: Array, games: Array, evidence: Evidence | None = None
) -> tuple[Array, Array]:
    """Return the Elo ratings of players, and the half-widths of their 95 % intervals.

    The Bradley–Terry model says P(i beats j) = σ(s_i − s_j), and a draw is half a win. The
    strengths s have the maximum posterior probability, found by Newton's method, and their
    covariance is the inverse Hessian (Bradley and Terry 1952, Hunter 2004). The first player is
    rated 0, without an interval. 400 points more are odds of 10.

    Args:
        scores: sum of the scores of i against j, with 1 for a win and ½ for a draw, (K, K).
        games: number of games of i against j, symmetric, (K, K).
        evidence: the rest of `forget_player`; None: there is none.

    Returns:
        Two arrays, float64, (K,).
    """
    strengths, hessian = _fit(scores, games, evidence)
    covariance = np.linalg.inv(hessian)
    variances = np.diag(covariance)
    relative = variances + variances[0] - 2 * covariance[0]
    widths = 1.96 * np.sqrt(np.maximum(relative, 0.0))
    return _ELO * (strengths - strengths[0]), _ELO * widths


def forget_player(
    scores: Array, games: Array, player: int, evidence: Evidence | None = None
) -> Evidence:
    """Return what the games of a player show about the others, to rate these without it.

    The player's games are approximated by a normal density at the most probable strengths
    (Laplace's method), which is integrated over the player's strength.

    Args:
        scores: see `elo_ratings`, (K, K).
        games: see `elo_ratings`, (K, K).
        player: the player to leave out, 0 … K − 1.
        evidence: see `elo_ratings`.

    Returns:
        The evidence on the other players, (K − 1, K − 1) and (K − 1,).
    """
    strengths, _ = _fit(scores, games, evidence)
    is_own = np.zeros_like(games, dtype=bool)
    is_own[player] = is_own[:, player] = True
    gradient, precision = _derivatives(strengths, scores * is_own, games * is_own)
    shift = gradient + precision @ strengths
    precision[player, player] += _PRIOR
    if evidence is not None:
        precision, shift = precision + evidence.precision, shift + evidence.shift
    others = np.delete(np.arange(len(games)), player)
    factors = precision[others, player] / precision[player, player]
    return Evidence(
        precision[np.ix_(others, others)] - np.outer(factors, precision[player, others]),
        shift[others] - factors * shift[player],
    )


def _fit(scores: Array, games: Array, evidence: Evidence | None) -> tuple[Array, Array]:
    """Return the most probable strengths, (K,), and the Hessian there, (K, K)."""
    num_players = len(games)
    prior, shift = np.eye(num_players) * _PRIOR, np.zeros(num_players)
    if evidence is not None:
        prior, shift = prior + evidence.precision, evidence.shift
    strengths, hessian = np.zeros(num_players), prior
    for _ in range(100):
        gradient, curvature = _derivatives(strengths, scores, games)
        hessian = prior + curvature
        step = np.linalg.solve(hessian, gradient + shift - prior @ strengths)
        strengths += step / max(1.0, float(np.abs(step).max()))  # at most 1, for stability
        if np.abs(step).max() < 1e-9:
            break
    return strengths, hessian


def _derivatives(strengths: Array, scores: Array, games: Array) -> tuple[Array, Array]:
    """Return the gradient of the log-likelihood, (K,), and its negative Hessian, (K, K)."""
    expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
    weights = games * expected * (1 - expected)
    gradient = (scores - games * expected).sum(axis=1)
    return gradient, np.diag(weights.sum(axis=1)) - weights
