"""Elo ratings: values by hand, a grid search as twin, and the cover of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotloop.ops.ratings import elo_ratings


def test_two_players_with_many_games_have_the_odds_of_their_score():
    n = 1e7  # the prior has no weight
    scores, games = np.array([[0, 0.25 * n], [0.75 * n, 0]]), np.array([[0, n], [n, 0]])
    ratings, _ = elo_ratings(scores, games)
    assert ratings == pytest.approx([0, 400 * math.log10(3)], abs=0.1)


def test_the_ratings_maximize_the_posterior_density():
    rng = np.random.default_rng(0)
    games = rng.integers(1, 30, (3, 3)).astype(float)
    games = np.triu(games, 1) + np.triu(games, 1).T
    scores = np.triu(games * rng.random((3, 3)), 1)
    scores += np.tril((games - scores.T), -1)

    def density(strengths):
        total = -(strengths**2).sum() / 32
        for i in range(3):
            for j in range(3):
                total -= scores[i, j] * math.log1p(math.exp(strengths[j] - strengths[i]))
        return total

    ratings, _ = elo_ratings(scores, games)
    best = ratings * math.log(10) / 400
    best -= best.mean()
    for step in np.concatenate((np.eye(3), -np.eye(3))) * 1e-3:
        assert density(best + step) < density(best)


def test_ratings_stay_finite_without_games_and_without_losses():
    ratings, widths = elo_ratings(np.zeros((2, 2)), np.zeros((2, 2)))
    assert ratings.tolist() == [0, 0]
    assert widths[0] == 0
    assert widths[1] > 1000
    ratings, widths = elo_ratings(np.array([[0, 50.0], [0, 0]]), np.array([[0, 50.0], [50.0, 0]]))
    assert -1500 < ratings[1] < -300
    assert 0 < widths[1] < 1000


def test_intervals_cover_the_true_rating_about_19_times_in_20():
    rng = np.random.default_rng(1)
    true = np.array([0.0, 100.0, 250.0])
    probability = 1 / (1 + 10 ** ((true[None, :] - true[:, None]) / 400))
    games = 40.0 * (1 - np.eye(3))
    num_covered = 0
    for _ in range(200):
        wins = np.triu(rng.binomial(40, probability), 1).astype(float)
        scores = wins + np.tril(40 - wins.T, -1)
        ratings, widths = elo_ratings(scores, games)
        num_covered += abs(ratings[2] - 250) < widths[2]
    assert num_covered >= 180
