import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from hotloop.envs import make_vec
from hotloop.envs.numbers import MOST_NUMBERS, EpisodeNumbers
from hotloop.errors import ConfigError
from tests.told_envs import Tells


def played(env, *, num_steps=7, log_info=("is_success", "x"), num_envs=2):
    envs = make_vec(env, num_envs, log_info=log_info)
    envs.reset()
    for _ in range(num_steps):
        envs.step(np.zeros(num_envs, np.int64))
    return envs.pop_episodes()


def vector(mode):
    return lambda: SyncVectorEnv([Tells, Tells], autoreset_mode=mode)


FIRST = {"is_success": 0.0, "x": 1.5, "angle": 0.25, "hits": 1.0}
SECOND = {"is_success": 1.0, "x": 1.5, "angle": 0.25, "hits": 2.0}


@pytest.mark.parametrize("env", [Tells, vector(AutoresetMode.DISABLED)])
def test_numbers_of_the_last_step_and_of_the_episode(env):
    assert [(one.env, one.info) for one in played(env)] == [
        *((0, FIRST), (1, FIRST)),
        *((0, SECOND), (1, SECOND)),
    ]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_in_every_mode_of_autoreset(mode):
    # A wrapper keeps the mode from being changed to one that takes a mask.
    class Wrapped(gymnasium.vector.VectorWrapper):
        pass

    episodes = played(lambda: Wrapped(vector(mode)()), num_steps=8)
    assert [one.info for one in episodes] == [FIRST, FIRST, SECOND, SECOND]


def test_what_ends_by_a_time_limit_has_the_numbers_of_its_last_step():
    (episode,) = played(lambda: TimeLimit(Tells(by_limit=True), 5), num_steps=5, num_envs=1)
    assert episode.length == 5
    assert episode.info == {"is_success": 0.0, "x": 2.5}


def test_where_nothing_is_told_there_is_nothing():
    (episode, _) = played("CartPole-v1", num_steps=12, log_info=())[:2]
    assert episode.info == {}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((True, 1.0), (3, 3.0), (0.5, 0.5), (np.int8(4), 4.0), (np.array(7), 7.0)),
        *((float("nan"), None), (np.float32("inf"), None)),
    ],
)
def test_scalars(value, number):
    found = EpisodeNumbers(["n"], "env").of({"n": value})
    assert found == ({} if number is None else {"n": number})


@pytest.mark.parametrize("value", ["3", None, [1.0], np.zeros(1), 1j, 10**400])
def test_what_is_asked_for_must_be_a_number(value):
    with pytest.raises(ConfigError, match=r"`log_info` must name numbers, but `info\['n'\]` is "):
        EpisodeNumbers(["n"], "env").of({"n": value})
    with pytest.raises(ConfigError, match=r"env: `log_info` must name numbers"):
        EpisodeNumbers(["n"], "env").of_row({"n": [value, value]}, 1)


def test_a_name_that_is_not_there_is_nothing():
    assert EpisodeNumbers(["n"], "env").of({"other": 1.0}) == {}
    assert EpisodeNumbers(["n"], "env").of(None) == {}
    told = {"n": np.ones(2), "_n": np.array([True, False])}
    numbers = EpisodeNumbers(["n"], "env")
    assert [numbers.of_row(told, i) for i in range(2)] == [{"n": 1.0}, {}]


def test_names_that_could_not_be_shown_are_left_out():
    told = {"episode": {"good": 1, "a\nb": 2, "x" * 65: 3, 4: 5}}
    assert EpisodeNumbers([], "env").of(told) == {"good": 1.0}


def test_more_numbers_than_are_kept_are_told_of_once():
    numbers = EpisodeNumbers(["asked"], "env")
    told = {"episode": {f"n{k}": k for k in range(MOST_NUMBERS)}, "asked": 1.0}
    with pytest.warns(RuntimeWarning, match=f"{MOST_NUMBERS} numbers at most, but 'n15'"):
        found = numbers.of(told)
    assert len(found) == MOST_NUMBERS
    assert "asked" in found
    assert "n15" not in found
    assert numbers.of(told) == found  # and no warning, which would be an error
