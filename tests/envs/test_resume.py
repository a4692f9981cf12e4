"""Running episodes, resumed in new environments."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.envs import EnvSpec, make_vec, obs_hash
from hotloop.types import RunningEpisode

NUM_ENVS = 3


class Unrepeatable(gymnasium.Wrapper):
    """Pendulum whose instances after the first three deviate in their third step: see `how`."""

    num_made = 0

    def __init__(self, how):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.how = how if Unrepeatable.num_made >= NUM_ENVS else "well"
        Unrepeatable.num_made += 1

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps == 3 and self.how == "raises":
            raise RuntimeError("not again")
        if self.how == "drifts":
            obs = obs + np.float32(1e-6)
        return obs, reward, terminated or (self.steps == 3 and self.how == "ends"), truncated, info


def sample(envs, rng):
    spec = envs.action_spec
    if spec.kind == "box":
        return 3 * rng.standard_normal((NUM_ENVS, *spec.shape)).astype(np.float32)
    return rng.integers(0, 2, NUM_ENVS)


def play(envs, num_steps, rng):
    """Play randomly and return the last observations and the running episodes."""
    obs = envs.reset()
    actions = [sample(envs, rng)[:0]] if not num_steps else []
    for _ in range(num_steps):
        actions.append(sample(envs, rng))
        obs = envs.step(actions[-1]).obs.copy()
    actions = np.array(actions)
    return obs, [
        RunningEpisode(
            episode,
            actions[len(actions) - length :, i]
            if length
            else np.empty((0, *envs.action_spec.shape)),
            obs_hash(obs[i]),
        )
        for i, (episode, length) in enumerate(envs.running_episodes())
    ]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
@pytest.mark.parametrize("num_steps", [0, 1, 50, 260])
def test_new_environments_continue_like_the_old_ones(env_id, num_steps):
    old, new = (make_vec(EnvSpec(env_id, seed=7), NUM_ENVS) for _ in range(2))
    rng = np.random.default_rng(0)
    obs, episodes = play(old, num_steps, rng)
    result, restarted_envs = new.resume(episodes)
    assert restarted_envs == []
    np.testing.assert_array_equal(result, obs)
    # Time limits, returns and seeds of the next episodes are the same too.
    old.pop_episodes()
    for _ in range(250):
        assert new.running_episodes() == old.running_episodes()
        action = sample(old, rng)
        expected, result = old.step(action), new.step(action)
        for name, array in expected._asdict().items():
            np.testing.assert_array_equal(getattr(result, name), array, name)
    finished = old.pop_episodes()
    assert new.pop_episodes() == finished
    assert finished or env_id == "HalfCheetah-v5"


@pytest.mark.parametrize("how", ["raises", "drifts", "ends"])
def test_unrepeatable_episodes_are_restarted(how):
    Unrepeatable.num_made = 0
    old, new = (make_vec(EnvSpec(lambda: Unrepeatable(how), seed=7), NUM_ENVS) for _ in range(2))
    _, episodes = play(old, 10, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == [0, 1, 2]
    assert new.running_episodes() == [(1, 0)] * 3
    expected = make_vec(EnvSpec("Pendulum-v1", seed=7), NUM_ENVS).reset(first_episode=1)
    np.testing.assert_array_equal(obs, expected)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_environments_that_take_seeds_resume(mode):
    def factory():
        make = partial(gymnasium.make, "CartPole-v1")
        return SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=mode)

    old, new = (make_vec(EnvSpec(factory, seed=7), NUM_ENVS) for _ in range(2))
    assert old.can_replay
    last, episodes = play(old, 50, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == []
    assert new.running_episodes() == old.running_episodes()
    np.testing.assert_array_equal(obs, last)
    for _ in range(60):
        step, new_step = (envs.step(np.ones(NUM_ENVS, np.int64)) for envs in (old, new))
        np.testing.assert_array_equal(step.obs, new_step.obs)


def test_other_vector_environments_start_their_next_episodes():
    def factory():
        return gymnasium.make_vec(
            "CartPole-v1",
            NUM_ENVS,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        )

    old, new = (make_vec(EnvSpec(factory, seed=7), NUM_ENVS) for _ in range(2))
    assert not old.can_replay
    _, episodes = play(old, 50, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == [0, 1, 2]
    assert new.running_episodes() == [(episode.episode + 1, 0) for episode in episodes]
    assert obs.shape == (NUM_ENVS, 4)
    new.step(np.zeros(NUM_ENVS, np.int64))


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_reset_to_a_given_episode(mode):
    def factory():
        if mode == "sync":
            return gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode="sync")
        return gymnasium.make("CartPole-v1")

    envs = make_vec(EnvSpec(factory, seed=7), NUM_ENVS)
    first, second = envs.reset().copy(), envs.reset().copy()
    np.testing.assert_array_equal(envs.reset(first_episode=0), first)
    np.testing.assert_array_equal(envs.reset(), second)
    assert not np.array_equal(first, second)
