"""The players of the benchmark of self-play."""

from __future__ import annotations

import numpy as np
import pytest

from bench.self_play.one_ply import one_ply
from bench.self_play.perfect import best_moves, count_games, observe, perfect_player, value
from bench.self_play.trembling import count_lost_games


def test_a_perfect_player_draws_with_itself_and_never_loses():
    rng = np.random.default_rng(0)
    assert value((0,) * 9, 1) == 0
    assert best_moves((1, 1, 0, 2, 2, 0, 0, 0, 0), 1) == (2,)
    for is_perfect in (True, False):
        counts = count_games(lambda *x: perfect_player(*x, rng), is_perfect=is_perfect)
        assert counts["losses"] == 0
        assert (counts["wins"] > 0) is not is_perfect
    first = count_games(lambda obs, mask: int(np.flatnonzero(mask)[0]), is_perfect=True)
    assert first["losses"] > 0


@pytest.mark.parametrize(("epsilon", "losses"), [(0.0, 0), (0.25, 0), (0.7, 0), (0.8, 4), (1.0, 7)])
def test_best_answers_to_some_random_moves_lose_no_game(epsilon, losses):
    assert count_lost_games(epsilon) == losses


def test_a_position_is_observed_from_the_side_of_the_player():
    observation, mask = observe((1, 2, 0, 0, 0, 0, 0, 0, 0), 2)
    planes = observation["observation"]
    assert planes.shape == (3, 3, 2)
    assert (planes[0, 1, 0], planes[0, 0, 1], planes.sum()) == (1, 1, 2)
    assert mask.tolist() == [False, False, *[True] * 7]


def board_of(*rows):
    """Return an observation from rows of text, "x" for the player and "o" for the other."""
    cells = np.array([list(row) for row in [*["......."] * (6 - len(rows)), *rows]])
    return {"observation": np.stack((cells == "x", cells == "o"), axis=-1)}


@pytest.mark.parametrize(
    ("rows", "move"),
    [
        (["xxx.ooo"], 3),  # wins in a row
        (["...oo.x", ".xx.ooo"], 3),  # stops a row
        (["o......", "o......", "o.....x", "x....xx"], 0),  # stops a column
        (["..ox...", ".oxo...", "oxox.x."], 3),  # stops a diagonal
        (["ox.....", "xox....", "oxox..."], 0),  # wins in a falling diagonal
    ],
)
def test_one_ply_sees_wins_and_threats(rows, move):
    observation = board_of(*rows)
    mask = ~observation["observation"][0].any(axis=-1)
    rng = np.random.default_rng(0)
    assert {one_ply(observation, mask, rng) for _ in range(10)} == {move}


def test_one_ply_moves_at_random_without_a_threat():
    mask = np.array([True, False, True, True, True, True, True])
    rng = np.random.default_rng(0)
    moves = {one_ply(board_of("x.....o"), mask, rng) for _ in range(100)}
    assert moves == {0, 2, 3, 4, 5, 6}
