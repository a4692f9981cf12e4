"""Running episodes, brought back in fresh environments."""

import gymnasium
import numpy as np
import pytest

from hotloop.envs import make_vec, obs_hash
from hotloop.types import RunningEpisode

NUM_ENVS = 3


class Unrepeatable(gymnasium.Wrapper):
    """Every instance after the first three goes its own way: `how`, in its third step."""

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
    """Random actions from the start; what to act on next, and the running episodes."""
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
        for i, (episode, length) in enumerate(envs.running())
    ]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
@pytest.mark.parametrize("num_steps", [0, 1, 50, 260])
def test_fresh_environments_go_on_as_the_old_ones_do(env_id, num_steps):
    old, new = (make_vec(env_id, NUM_ENVS, seed=7) for _ in range(2))
    rng = np.random.default_rng(0)
    obs, episodes = play(old, num_steps, rng)
    got, restarted_envs = new.resume(episodes)
    assert restarted_envs == []
    np.testing.assert_array_equal(got, obs)
    # On into the next episodes: time limits, returns and seeds are the same.
    old.pop_episodes()
    for _ in range(250):
        assert new.running() == old.running()
        action = sample(old, rng)
        want, got = old.step(action), new.step(action)
        for name, array in want._asdict().items():
            np.testing.assert_array_equal(getattr(got, name), array, name)
    finished = old.pop_episodes()
    assert new.pop_episodes() == finished
    assert finished or env_id == "HalfCheetah-v5"


@pytest.mark.parametrize("how", ["raises", "drifts", "ends"])
def test_what_does_not_repeat_itself_begins_its_next_episode(how):
    Unrepeatable.num_made = 0
    old, new = (make_vec(lambda: Unrepeatable(how), NUM_ENVS, seed=7) for _ in range(2))
    _, episodes = play(old, 10, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == [0, 1, 2]
    assert new.running() == [(1, 0)] * 3
    fresh = make_vec("Pendulum-v1", NUM_ENVS, seed=7).reset(first_episode=1)
    np.testing.assert_array_equal(obs, fresh)


def test_vector_environments_that_take_seeds_go_on():
    def factory():
        return gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode="sync")

    old, new = (make_vec(factory, NUM_ENVS, seed=7) for _ in range(2))
    assert old.can_replay
    last, episodes = play(old, 50, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == []
    assert new.running() == old.running()
    np.testing.assert_array_equal(obs, last)
    for _ in range(60):
        one, other = (envs.step(np.ones(NUM_ENVS, np.int64)) for envs in (old, new))
        np.testing.assert_array_equal(one.obs, other.obs)


def test_other_vector_environments_begin_their_next_episodes():
    def factory():
        return gymnasium.make_vec(
            "CartPole-v1",
            NUM_ENVS,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
        )

    old, new = (make_vec(factory, NUM_ENVS, seed=7) for _ in range(2))
    assert not old.can_replay
    _, episodes = play(old, 50, np.random.default_rng(0))
    obs, restarted_envs = new.resume(episodes)
    assert restarted_envs == [0, 1, 2]
    assert new.running() == [(episode.episode + 1, 0) for episode in episodes]
    assert obs.shape == (NUM_ENVS, 4)
    new.step(np.zeros(NUM_ENVS, np.int64))


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_a_reset_may_choose_the_episode(mode):
    def factory():
        if mode == "sync":
            return gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode="sync")
        return gymnasium.make("CartPole-v1")

    envs = make_vec(factory, NUM_ENVS, seed=7)
    first, second = envs.reset().copy(), envs.reset().copy()
    np.testing.assert_array_equal(envs.reset(first_episode=0), first)
    np.testing.assert_array_equal(envs.reset(), second)
    assert not np.array_equal(first, second)
