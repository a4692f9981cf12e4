"""Elo ratings: values by hand, a grid search as twin, and the cover of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotloop.ops.ratings import elo_ratings, forget_player


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


def draw_games(strengths, num_games, rng):
    """Return the scores and games of a chain, in which each plays against the five before it."""
    count = len(strengths)
    scores, games = np.zeros((2, count, count))
    for i in range(count):
        for j in range(max(0, i - 5), i):
            wins = rng.binomial(num_games, 1 / (1 + math.exp(strengths[j] - strengths[i])))
            games[i, j] = games[j, i] = num_games
            scores[i, j], scores[j, i] = wins, num_games - wins
    return scores, games


def without(array, player):
    return np.delete(np.delete(array, player, 0), player, 1)


def test_ratings_without_some_players_are_those_with_them():
    scores, games = draw_games(np.linspace(0, 6, 20), 30, np.random.default_rng(2))
    expected, widths = elo_ratings(scores, games)
    rest, evidence = list(range(20)), None
    for player in (3, 4, 5, 6, 7, 8, 9, 10):  # the first ones then have no games with the last
        index = rest.index(player)
        evidence = forget_player(scores, games, index, evidence)
        scores, games = without(scores, index), without(games, index)
        rest.remove(player)
    assert not games[:3, 3:].any()
    ratings, new_widths = elo_ratings(scores, games, evidence)
    np.testing.assert_allclose(ratings, expected[rest], atol=1e-3)
    np.testing.assert_allclose(new_widths, widths[rest], atol=1e-3)


def test_later_games_change_ratings_as_if_all_players_were_kept():
    scores, games = draw_games(np.linspace(0, 2, 6), 40, np.random.default_rng(3))
    evidence = forget_player(scores, games, 2)
    short_scores, short_games = without(scores, 2), without(games, 2)
    for table, i, j in ((games, 0, 5), (games, 5, 0), (scores, 0, 5)):
        table[i, j] += 40  # the last player loses to the first one
    for table, i, j in ((short_games, 0, 4), (short_games, 4, 0), (short_scores, 0, 4)):
        table[i, j] += 40
    expected, _ = elo_ratings(scores, games)
    ratings, _ = elo_ratings(short_scores, short_games, evidence)
    before, _ = elo_ratings(*draw_games(np.linspace(0, 2, 6), 40, np.random.default_rng(3)))
    assert before[5] - expected[5] > 100
    np.testing.assert_allclose(ratings, expected[[0, 1, 3, 4, 5]], atol=15)
