"""Episodes depend only on (seed, environment, episode, stream)."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.envs import EnvSpec, episode_seed, make_vec
from tests.envs.toy import CountingEnv, numbered


def trajectory(num_steps: int = 40, num_envs: int = 3, **fields) -> np.ndarray:
    envs = make_vec(EnvSpec("CartPole-v1", **fields), num_envs)
    rows = [envs.reset()]
    rows += [
        envs.step(np.full(num_envs, t % 3 == 0, np.int64)).obs.copy() for t in range(num_steps)
    ]
    assert envs.pop_episodes()
    envs.close()
    return np.array(rows)


def test_seeds_do_not_change_between_versions():
    """Old runs are reproducible only with the same seeds."""
    assert [episode_seed(0, 0, 0), episode_seed(1, 2, 3), episode_seed(1, 2, 3, "evaluation")] == [
        262399978,
        596835310,
        1075879694,
    ]


def test_seeds_differ_in_every_argument():
    seeds = [
        episode_seed(seed, env, episode, stream)
        for seed in (0, 1, 11)
        for env in (0, 1, 11)
        for episode in range(30)
        for stream in ("training", "evaluation")
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_same_seed_same_trajectories():
    np.testing.assert_array_equal(trajectory(seed=3), trajectory(seed=3))
    assert not np.array_equal(trajectory(seed=3)[0], trajectory(seed=4)[0])
    assert not np.array_equal(trajectory(seed=3)[0], trajectory(seed=3, stream="evaluation")[0])


def test_environments_and_episodes_start_differently():
    envs = make_vec(numbered(), 3)
    for _ in range(4):
        envs.reset()
    seeds = [seed for env in envs._envs for seed in env.seeds]
    assert len(seeds) == len(set(seeds)) == 12


def test_trajectories_do_not_depend_on_num_envs():
    together = trajectory(num_envs=4, seed=7)
    split = [trajectory(num_envs=2, seed=7, first_env=first) for first in (0, 2)]
    np.testing.assert_array_equal(together, np.concatenate(split, axis=1))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_sync_vector_env_gets_the_seeds_of_single_environments(mode):
    singles = [CountingEnv(i) for i in range(3)]
    makers = [lambda env=env: env for env in singles]
    envs = make_vec(
        EnvSpec(lambda: SyncVectorEnv(makers, autoreset_mode=mode), seed=5, first_env=10)
    )
    loop = make_vec(EnvSpec(numbered(), seed=5, first_env=10), 3)
    for stepped in (envs, loop):
        stepped.reset()
        for _ in range(20):
            stepped.step(np.zeros(3, np.int64))
    assert envs.num_envs == 3
    assert len(singles[0].seeds) > 4
    assert [env.seeds for env in singles] == [env.seeds for env in loop._envs]
    episodes = envs.pop_episodes()
    assert episodes == loop.pop_episodes()
    assert {episode.env for episode in episodes} == {10, 11, 12}


def test_same_step_mode_gets_only_first_seeds():
    singles = [CountingEnv(i) for i in range(2)]
    makers = [lambda env=env: env for env in singles]
    mode = AutoresetMode.SAME_STEP
    envs = make_vec(EnvSpec(lambda: SyncVectorEnv(makers, autoreset_mode=mode), seed=5), 2)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    assert singles[0].seeds == [episode_seed(5, 0, 0), None]
    assert singles[1].seeds == [episode_seed(5, 1, 0)]
