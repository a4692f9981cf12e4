"""Every way to step environments gives the transitions of single environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from hotloop.envs import EnvSpec, episode_seed, make_vec
from hotloop.types import Fragment
from tests.envs.toy import CountingEnv, choose, episode_length, numbered
from tests.reference.envs import reference_rollout, vector_rollout

NUM_ENVS, NUM_STEPS = 4, 60


def check_against_reference(envs, num_steps: int = NUM_STEPS, *, at_least: int) -> None:
    transitions, episodes = vector_rollout(envs, choose, num_steps)
    envs.close()
    for i, env_transitions in enumerate(transitions):
        expected, expected_episodes = reference_rollout(
            CountingEnv(i), i, choose, len(env_transitions)
        )
        assert env_transitions == expected
        assert len(env_transitions) >= at_least
        env_episodes = [episode for episode in episodes if episode.env == i]
        assert env_episodes == expected_episodes
        assert {t.terminated + 2 * t.truncated for t in env_transitions} == {0, 1, 2, 3}


def sync(mode: AutoresetMode, **kwargs):
    return lambda: SyncVectorEnv(
        [lambda i=i: CountingEnv(i) for i in range(NUM_ENVS)], autoreset_mode=mode, **kwargs
    )


class WrappedSync(gymnasium.vector.VectorWrapper):
    """A wrapped SyncVectorEnv, whose next-step resets cannot be replaced by a mask."""


class PoolLike(gymnasium.vector.VectorEnv):
    """Reset in the next step without a mark, and return the same arrays every time."""

    def __init__(self) -> None:
        self.envs = [CountingEnv(i) for i in range(NUM_ENVS)]
        self.num_envs = NUM_ENVS
        self.metadata = {}
        self.single_observation_space = CountingEnv.observation_space
        self.single_action_space = CountingEnv.action_space
        self.observation_space = batch_space(self.single_observation_space, NUM_ENVS)
        self.action_space = batch_space(self.single_action_space, NUM_ENVS)
        self.obs = np.zeros((NUM_ENVS, 3), np.float32)
        self.rewards = np.zeros(NUM_ENVS, np.float32)
        self.flags = np.zeros((2, NUM_ENVS), np.bool_)

    def reset(self, *, seed=None, options=None):
        for i, env in enumerate(self.envs):
            self.obs[i] = env.reset(seed=seed)[0]
        self.flags[:] = False
        return self.obs, {}

    def step(self, actions):
        for i, env in enumerate(self.envs):
            if self.flags[:, i].any():
                self.obs[i] = env.reset()[0]
                self.rewards[i], self.flags[:, i] = 0.0, False
            else:
                obs, self.rewards[i], self.flags[0, i], self.flags[1, i], _ = env.step(actions[i])
                self.obs[i] = obs
        return self.obs, self.rewards, *self.flags, {}


def test_single_environments():
    check_against_reference(make_vec(numbered(), NUM_ENVS), at_least=NUM_STEPS)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sync_vector_env_takes_no_calls_for_resets(mode, copy):
    check_against_reference(make_vec(sync(mode, copy=copy), NUM_ENVS), at_least=NUM_STEPS)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_wrapped_sync(mode):
    check_against_reference(
        make_vec(lambda: WrappedSync(sync(mode)()), NUM_ENVS), at_least=NUM_STEPS
    )


def test_wrapped_sync_in_next_step_mode_marks_the_calls_for_resets():
    envs = make_vec(lambda: WrappedSync(sync(AutoresetMode.NEXT_STEP)()), NUM_ENVS)
    check_against_reference(envs, at_least=NUM_STEPS // 2)


def test_pool_like():
    check_against_reference(make_vec(PoolLike, NUM_ENVS), at_least=NUM_STEPS // 2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_async(mode):
    makers = [lambda i=i: CountingEnv(i) for i in range(NUM_ENVS)]
    envs = make_vec(lambda: AsyncVectorEnv(makers, autoreset_mode=mode), NUM_ENVS)
    check_against_reference(envs, 20, at_least=20)


class Negated(gymnasium.vector.VectorWrapper):
    """Negate observations, including final ones."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return -obs, info

    def step(self, actions):
        obs, *outputs, info = self.env.step(actions)
        for i in np.flatnonzero(info.get("_final_obs", [])):
            info["final_obs"][i] = -info["final_obs"][i]
        return -obs, *outputs, info


def test_same_step_takes_final_obs_from_the_outermost_wrapper():
    envs = make_vec(lambda: Negated(sync(AutoresetMode.SAME_STEP)()), NUM_ENVS)
    transitions, _ = vector_rollout(envs, lambda obs: choose(-obs), NUM_STEPS)
    for i, env_transitions in enumerate(transitions):
        expected, _ = reference_rollout(CountingEnv(i), i, choose, NUM_STEPS)
        assert [[-x for x in t.next_obs] for t in env_transitions] == [t.next_obs for t in expected]


def test_reset_row_in_next_step_mode():
    envs = make_vec(PoolLike, NUM_ENVS)
    obs = envs.reset()
    result = envs.step(choose(obs))
    length_is_1 = [episode_length(i, 0) == 1 for i in range(NUM_ENVS)]
    assert length_is_1 == [True, False, False, False]
    assert (result.terminated | result.truncated).tolist() == length_is_1
    assert result.valid.all()
    assert result.next_obs[0].tolist() == [0, 0, 1]
    result = envs.step(choose(result.obs))
    assert result.valid.tolist() == [False, True, True, True]
    assert result.obs[0].tolist() == [0, 1, 0]
    assert result.reward[0] == 0
    assert not result.terminated[0]
    assert not result.truncated[0]


def test_steps_are_written_into_the_fragment():
    envs = make_vec(numbered(), NUM_ENVS)
    fragment = Fragment.allocate(
        NUM_STEPS,
        NUM_ENVS,
        obs_shape=(3,),
        obs_dtype="float32",
        action_shape=(),
        action_dtype="int64",
    )
    fragment.terminated[:] = True
    fragment.valid[:] = False
    fragment.last_obs[...] = envs.reset()
    fragment.obs[0] = fragment.last_obs
    for t, arrays in enumerate(fragment.step_arrays()):
        fragment.action[t] = choose(fragment.obs[t])
        assert envs.step(fragment.action[t], arrays) is arrays
    assert fragment.valid.all()
    for i in range(NUM_ENVS):
        expected, _ = reference_rollout(CountingEnv(i), i, choose, NUM_STEPS)
        assert fragment.obs[:, i].tolist() == [t.obs for t in expected]
        assert fragment.next_obs[:, i].tolist() == [t.next_obs for t in expected]
        assert fragment.terminated[:, i].tolist() == [t.terminated for t in expected]
        assert fragment.truncated[:, i].tolist() == [t.truncated for t in expected]
        np.testing.assert_array_equal(fragment.reward[:, i], [t.reward for t in expected])


def test_time_limit_matches_gymnasiums():
    """hotloop counts the steps itself where `TimeLimit` is the outermost wrapper."""
    lengths = []
    for limit in (1, 3, 1000):
        envs = make_vec(EnvSpec("CartPole-v1", {"max_episode_steps": limit}, seed=5), 2)
        singles = [gymnasium.make("CartPole-v1", max_episode_steps=limit) for _ in range(2)]
        episodes = [0, 0]
        obs = envs.reset()
        for i, single in enumerate(singles):
            np.testing.assert_array_equal(single.reset(seed=episode_seed(5, i, 0))[0], obs[i])
        for t in range(100):
            action = np.array([t // 2 % 2, t % 2])
            result = envs.step(action)
            for i, single in enumerate(singles):
                next_obs, _, terminated, truncated, _ = single.step(int(action[i]))
                np.testing.assert_array_equal(next_obs, result.next_obs[i])
                assert (terminated, truncated) == (result.terminated[i], result.truncated[i])
                if terminated or truncated:
                    episodes[i] += 1
                    next_obs, _ = single.reset(seed=episode_seed(5, i, episodes[i]))
                np.testing.assert_array_equal(next_obs, result.obs[i])
        lengths.append([episode.length for episode in envs.pop_episodes()])
        assert len(lengths[-1]) == sum(episodes) > 0
    assert set(lengths[0]) == {1}
    assert set(lengths[1]) == {3}


def test_time_limits_with_resets_in_between():
    envs = make_vec("tests.envs.toy:ToyCounting-v0", 2)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    envs.reset()
    for _ in range(9):
        envs.step(np.zeros(2, np.int64))
    # Both have number 0. Episodes are truncated at 3 steps, and episode 1 is abandoned.
    assert [episode_length(0, episode) for episode in range(6)] == [1, 3, 5, 2, 4, 1]
    lengths = [(episode.episode, episode.length) for episode in envs.pop_episodes()]
    assert lengths == [(0, 1)] * 2 + [(2, 3)] * 2 + [(3, 2)] * 2 + [(4, 3)] * 2 + [(5, 1)] * 2


def test_episode_returns_are_summed_in_float64():
    class SmallRewards(CountingEnv):
        def step(self, action):
            self.steps += 1
            reward = np.float32(2**24) if self.steps == 1 else np.float32(1)
            return self.observe(), reward, self.steps == 11, False, {}

    for env in (SmallRewards, lambda: SyncVectorEnv([SmallRewards])):
        envs = make_vec(env, 1)
        envs.reset()
        for _ in range(11):
            envs.step(np.zeros(1, np.int64))
        (episode,) = envs.pop_episodes()
        assert episode == (0, 0, 2**24 + 10, 11, {}, False)
        assert envs.pop_episodes() == []


def test_reset_returns_a_new_array_and_abandons_episodes():
    envs = make_vec(numbered(), 2)
    first = envs.reset()
    first_copy = first.copy()
    envs.step(np.zeros(2, np.int64))
    second = envs.reset()
    np.testing.assert_array_equal(first, first_copy)
    # Environment 0 has ended episode 0 after one step; environment 1 was in the middle of it.
    assert second.tolist() == [[0, 2, 0], [1, 1, 0]]
    assert [(episode.env, episode.length) for episode in envs.pop_episodes()] == [(0, 1)]


def test_half_cheetah_is_cast_to_float32():
    pytest.importorskip("mujoco")
    envs = make_vec(EnvSpec("HalfCheetah-v5", seed=1), 2)
    singles = [gymnasium.make("HalfCheetah-v5") for _ in range(2)]
    obs = envs.reset()
    assert obs.dtype == np.float32
    for i, single in enumerate(singles):
        single.reset(seed=episode_seed(1, i, 0))
    rng = np.random.default_rng(0)
    for _ in range(5):
        action = rng.uniform(-2, 2, (2, 6)).astype(np.float32)
        result = envs.step(action)
        for i, single in enumerate(singles):
            next_obs, reward, *_ = single.step(np.clip(action[i], -1, 1))
            np.testing.assert_array_equal(result.next_obs[i], next_obs.astype(np.float32))
            assert result.reward[i] == np.float32(reward)
    envs.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_cart_pole():
    pytest.importorskip("envpool")
    envs = make_vec(EnvSpec("envpool:CartPole-v1", seed=2), 3)
    physics = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    obs = envs.reset()
    was_done = np.zeros(3, np.bool_)
    num_done = 0
    for _ in range(200):
        action = rng.integers(0, 2, 3)
        result = envs.step(action)
        np.testing.assert_array_equal(result.valid, ~was_done)
        for i in range(3):
            if not result.valid[i]:
                assert np.abs(result.obs[i]).max() <= 0.05
                assert result.reward[i] == 0
                continue
            physics.reset()
            physics.state = obs[i].astype(np.float64)
            expected, _, terminated, _, _ = physics.step(int(action[i]))
            np.testing.assert_allclose(result.next_obs[i], expected, atol=1e-5)
            assert result.terminated[i] == terminated
            num_done += terminated
        was_done = result.terminated | result.truncated
        obs = result.obs.copy()
    episodes = envs.pop_episodes()
    assert num_done == len(episodes) > 10
    assert all(episode.undiscounted_return == episode.length for episode in episodes)
    envs.close()
    envs.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_pendulum_is_truncated_not_terminated():
    pytest.importorskip("envpool")
    envs = make_vec("envpool:Pendulum-v1", 2)
    envs.reset()
    for _ in range(200):
        result = envs.step(np.full((2, 1), 9, np.float32))
    assert result.truncated.all()
    assert not result.terminated.any()
    assert [episode.length for episode in envs.pop_episodes()] == [200, 200]
    result = envs.step(np.zeros((2, 1), np.float32))
    assert not result.valid.any()
    envs.close()
