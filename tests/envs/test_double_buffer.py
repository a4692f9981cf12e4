"""Double-buffered environments step as one set of environments does."""

import numpy as np
import pytest

from hotloop.envs import DoubleBufferedEnvs, EnvSpec, make_double_buffered, make_vec
from hotloop.errors import ConfigError, SpaceError
from hotloop.types import RunningEpisode


def take_steps(envs, rng, count):
    """Take `count` random steps and return copies of their arrays."""
    spec = envs.action_spec
    steps = []
    for _ in range(count):
        action = rng.integers(2, size=(envs.num_envs, *spec.shape)).astype(spec.dtype)
        steps.append([array.copy() for array in envs.step(action)])
    return steps


def assert_same_steps(steps, expected):
    for step, expected_step in zip(steps, expected, strict=True):
        for array, expected_array in zip(step, expected_step, strict=True):
            np.testing.assert_array_equal(array, expected_array)


@pytest.mark.parametrize(("num_envs", "ranges"), [(1, [(0, 1)]), (2, None), (5, [(0, 3), (3, 5)])])
def test_halves_match_the_whole(num_envs, ranges):
    spec = EnvSpec("CartPole-v1", seed=3, first_env=7, stagger=20)
    whole, halves = make_vec(spec, num_envs), make_double_buffered(spec, num_envs)
    assert halves.ranges == (ranges or [(0, 1), (1, 2)])
    assert (halves.num_envs, halves.obs_spec) == (num_envs, whole.obs_spec)
    np.testing.assert_array_equal(halves.reset(), whole.reset())
    steps, expected = (take_steps(envs, np.random.default_rng(0), 60) for envs in (halves, whole))
    assert_same_steps(steps, expected)
    assert halves.running_episodes() == whole.running_episodes()
    episodes = whole.pop_episodes()
    assert len(episodes) >= num_envs
    assert sorted(halves.pop_episodes()) == sorted(episodes)
    halves.close()
    whole.close()


def test_halves_resume_like_the_whole():
    episodes = [RunningEpisode(k, np.zeros(k, np.int64), "") for k in range(3)]
    whole, halves = (
        make_vec(EnvSpec("CartPole-v1", seed=1), 3),
        make_double_buffered(EnvSpec("CartPole-v1", seed=1), 3),
    )
    # No observation has these hashes, so all environments start their next episode.
    (obs, restarted), (expected_obs, expected_restarted) = (
        halves.resume(episodes),
        whole.resume(episodes),
    )
    np.testing.assert_array_equal(obs, expected_obs)
    assert restarted == expected_restarted == [0, 1, 2]
    assert halves.running_episodes() == whole.running_episodes() == [(1, 0), (2, 0), (3, 0)]


def test_vector_environment_is_one_half():
    halves = make_double_buffered(EnvSpec("tests.worker_envs:vector_of_signs", {"num_envs": 3}), 3)
    assert (len(halves.halves), halves.ranges) == (1, [(0, 3)])
    with pytest.raises(ConfigError, match="`num_envs` is 4, but the factory makes 3"):
        make_double_buffered(EnvSpec("tests.worker_envs:vector_of_signs", {"num_envs": 3}), 4)


def test_games_are_two_halves():
    pytest.importorskip("ale_py")
    halves = make_double_buffered("ALE/Pong-v5", 3, num_threads=1)
    assert halves.ranges == [(0, 2), (2, 3)]
    assert halves.reset().shape == (3, 4, 84, 84)
    halves.close()


def test_halves_of_different_spaces():
    parts = [make_vec("CartPole-v1", 2), make_vec("Pendulum-v1", 1)]
    with pytest.raises(
        SpaceError, match=r"but those from 2 on have .*pad or wrap them to make them equal"
    ):
        DoubleBufferedEnvs(parts)
