"""`call`, `get_attr` and `set_attr` of all vector environments have Gymnasium's semantics."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from hotloop.envs import EnvSpec, make_double_buffered, make_vec
from hotloop.errors import ConfigError, EnvironmentFailure
from tests.envs.test_transitions import PoolLike
from tests.envs.toy import CountingEnv, numbered
from tests.toy_games import Hiding


class Counting(CountingEnv):
    """Has a method with arguments."""

    def add(self, amount: int, *, factor: int = 1) -> int:
        self.number += amount * factor
        return self.number


def wrapped() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(Counting()), 5)


def sync() -> gymnasium.vector.VectorEnv:
    return SyncVectorEnv([wrapped] * 4)


def processes() -> gymnasium.vector.VectorEnv:
    return AsyncVectorEnv([wrapped] * 4)


def wrapped_vector() -> gymnasium.vector.VectorEnv:
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(sync())


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_vec(wrapped, 4),
        lambda: make_double_buffered(wrapped, 4),
        lambda: make_vec(sync),
        lambda: make_vec(wrapped_vector),
        pytest.param(lambda: make_vec(processes), marks=pytest.mark.slow),
    ],
    ids=["serial", "halves", "sync", "wrapped vector", "processes"],
)
def test_single_environments(make):
    envs = make()
    envs.reset()
    assert envs.get_attr("number") == (0, 0, 0, 0)
    envs.set_attr("number", 7)
    envs.call("add", 1, factor=2)
    assert envs.call("number") == (9, 9, 9, 9)
    envs.set_attr("number", [1, 2, 3, 4])
    assert envs.call("add", 0) == (1, 2, 3, 4)
    assert envs.step(np.zeros(4, np.int64)).next_obs[:, 0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="4"):
        envs.set_attr("number", [1, 2])
    envs.close()


def test_a_time_limit_holds_for_the_next_episode():
    envs = make_vec(lambda: gymnasium.make("Pendulum-v1", max_episode_steps=3))
    envs.reset()
    envs.set_attr("_max_episode_steps", 2)
    cuts = [bool(envs.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(7)]
    assert cuts == [False, False, True, False, True, False, True]


def test_games_are_called_once():
    class Counts(Hiding):
        calls = 0

        def count(self) -> int:
            self.calls += 1
            return self.calls

    envs = make_vec(Counts, 8)
    assert envs.call("count") == (1,) * 8
    envs.set_attr("length", [3] * 4 + [5] * 4)
    assert envs.get_attr("length") == (3, 3, 3, 3, 5, 5, 5, 5)
    envs.reset()
    ends = [envs.step(np.zeros(8, np.int64)).truncated[[2, 6]].tolist() for _ in range(4)]
    assert ends == [[False, False], [False, False], [True, False], [False, False]]


def test_attributes_that_do_not_exist_or_cannot_be_reached():
    envs = make_vec(numbered(), 2)
    with pytest.raises(ConfigError, match="has no attribute `speed`"):
        envs.get_attr("speed")
    envs.close()
    with pytest.raises(EnvironmentFailure, match="closed"):
        envs.get_attr("number")
    with pytest.raises(ConfigError, match=r"can't be reached, because .* has no `call`"):
        make_vec(PoolLike).call("number")
    with pytest.raises(ConfigError, match="Pass it in `env_kwargs`"):
        make_vec(EnvSpec("hotloop:CartPole"), 2).get_attr("gravity")
