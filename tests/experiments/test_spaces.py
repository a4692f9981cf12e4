"""Spaces as text: parsing, draws, grids and invalid input."""

import math

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.experiments.spaces import (
    Choices,
    Range,
    draw,
    grid_size,
    parse,
    parse_assignments,
    point,
    runs_per_update,
)


def space_of(**texts):
    return parse(texts, ppo.Config)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gae_lambda", "0.9,0.95", Choices((0.9, 0.95))),
        ("num_steps", "64,128", Choices((64, 128))),
        ("activation", "tanh,relu", Choices(("tanh", "relu"))),
        ("normalize_obs", "true,false", Choices((True, False))),
        ("target_kl", "none,0.02", Choices((None, 0.02))),
        ("hidden_sizes", "64 64,32", Choices(((64, 64), (32,)))),
        ("learning_rate", "linear:3e-4,0;1e-3", Choices(("linear:3e-4,0", 0.001))),
        ("learning_rate", "log:1e-5,1e-2", Range(1e-5, 1e-2, is_log=True)),
        ("gae_lambda", "lin:0.8,1", Range(0.8, 1.0)),
        ("update_epochs", "int:1,10", Range(1, 10, is_int=True)),
        ("gae_lambda", "0.8:1:0.1", Choices((0.8, 0.9, 1.0))),
        ("num_steps", "2**4:2**6:x2", Choices((16, 32, 64))),
        ("learning_rate", "1e-4:1e-2:x10", Choices((1e-4, 1e-3, 1e-2))),
        ("learning_rate", "log:1e-4,1e-2,3", Range(1e-4, 1e-2, is_log=True, count=3)),
        ("learning_rate", "log:2**-7,1/4", Range(2.0**-7, 0.25, is_log=True)),
        ("gae_lambda", "0.5,0.8:1:0.1", Choices((0.5, 0.8, 0.9, 1.0))),
        ("num_steps", "1e2,2**7", Choices((100, 128))),
        ("learning_rate", "linear:3e-4,0;", Choices(("linear:3e-4,0",))),
    ],
)
def test_texts_are_parsed(name, text, expected):
    assert space_of(**{name: text}) == {name: expected}


def test_a_list_in_a_file_gives_its_values():
    space = space_of(hidden_sizes=[[64, 64], 32], gae_lambda=[0.9, 0.95])
    assert space["hidden_sizes"] == Choices(((64, 64), (32,)))
    assert space["gae_lambda"] == Choices((0.9, 0.95))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learning_rate", "log:1e-2,1e-5", "the lower end must come first"),
        ("learning_rate", "log:0,1", "above 0, for its logarithm"),
        ("learning_rate", "log:a,b", r"is not a valid range: .* got 'a'; list values as"),
        ("learning_rate", "log:1e-5", r"is not a valid range"),
        ("learning_rate", "log:1e-5,nan", r"is not a valid range"),
        ("learning_rate", "lgo:1e-5,1e-2", r"got 'lgo:1e-5'; a range begins with log, lin, int"),
        ("learning_rate", "nope,1e-3", "expected a number"),
        ("num_steps", "lin:16,64", r"`num_steps` is an integer: write `num_steps=int:16,64`"),
        ("learning_rate", "int:1.5,3", "its ends must be integers"),
        ("activation", "int:1,3", "must be 'tanh' or 'relu'"),
        ("gae_lambda", "lin:0,2", r"must lie in \[0, 1\], got 2"),
        ("gae_lambda", "0.9,0.9", "has a value twice"),
        ("gae_lambda", "0.9,,1", "a value is missing"),
        ("learning_rate", "log:1e-5,1e-2,1", "must have 2 to"),
        ("seed", "1,2", "can't be swept over: pass a single value, or several seeds with"),
    ],
)
def test_invalid_spaces_are_rejected(name, text, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        space_of(**{name: text})


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="'learning_rat'; did you mean 'learning_rate'"):
        space_of(learning_rat="1e-3")
    with pytest.raises(ConfigError, match="is given twice"):
        parse_assignments(["gae_lambda=0.9", "gae-lambda=0.95"])


def test_draws_depend_on_seed_and_number_alone_and_stay_inside():
    space = space_of(learning_rate="log:1e-5,1e-2", update_epochs="int:1,3", gae_lambda="lin:0.8,1")
    draws = [draw(space, 3, number) for number in range(300)]
    assert draws[7] == draw(space, 3, 7)
    assert draws[7] != draw(space, 4, 7)
    rates = np.log10([point["learning_rate"] for point in draws])
    assert np.all((rates >= -5) & (rates <= -2))
    assert abs(rates.mean() + 3.5) < 0.2  # uniform in the logarithm
    assert {point["update_epochs"] for point in draws} == {1, 2, 3}
    assert all(0.8 <= point["gae_lambda"] <= 1 for point in draws)


def test_a_grid_has_all_points_once():
    space = space_of(learning_rate="log:1e-4,1e-2,3", gae_lambda="0.9,0.95", num_steps="int:1,3,3")
    points = [point(space, number) for number in range(grid_size(space))]
    assert len({tuple(entry.items()) for entry in points}) == len(points) == 18
    assert points[0] == {"learning_rate": 1e-4, "gae_lambda": 0.9, "num_steps": 1}
    assert math.isclose(points[6]["learning_rate"], 1e-3)
    with pytest.raises(ConfigError, match="needs the number of points of `learning_rate`"):
        grid_size(space_of(learning_rate="log:1e-4,1e-2"))
    assert grid_size(space_of(num_steps="int:1,10")) == 10


@pytest.mark.parametrize(
    ("texts", "alike"),
    [
        ({"learning_rate": "log:1e-5,1e-2", "gamma": "0.9,0.99"}, 24),
        ({"learning_rate": "1e-3,1e-4", "num_minibatches": "1,2,4"}, 8),
        ({"num_minibatches": "1,2,4", "update_epochs": "1,2,3,4,5,6,7,8,9,10"}, 1),
        ({"num_steps": "int:16,256"}, 1),
        ({"update_epochs": "int:1,9", "num_minibatches": "1,2", "num_steps": "int:16,256"}, 1),
    ],
)
def test_runs_that_share_a_compiled_update(texts, alike):
    assert runs_per_update(parse(texts, ppo.Config), ppo.Config(), 24) == alike
