"""Every way to step environments gives the transitions that single steps give."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from hotloop.envs import episode_seed, make_vec
from hotloop.types import Fragment
from tests.envs.toy import CountingEnv, choose, episode_length, numbered
from tests.reference.envs import reference_rollout, vector_rollout

N, T = 4, 60


def check_against_reference(envs, num_steps: int = T, *, at_least: int) -> None:
    transitions, episodes = vector_rollout(envs, choose, num_steps)
    envs.close()
    for i, ours in enumerate(transitions):
        expected, finished = reference_rollout(CountingEnv(i), i, choose, len(ours))
        assert ours == expected
        assert len(ours) >= at_least
        ended = [episode for episode in episodes if episode.env == i]
        assert ended == finished
        assert {t.terminated + 2 * t.truncated for t in ours} == {0, 1, 2, 3}


def sync(mode: AutoresetMode, **kwargs):
    return lambda: SyncVectorEnv(
        [lambda i=i: CountingEnv(i) for i in range(N)], autoreset_mode=mode, **kwargs
    )


class WrappedSync(gymnasium.vector.VectorWrapper):
    """Not a bare SyncVectorEnv: its next-step resets can't be replaced by a mask."""


class PoolLike(gymnasium.vector.VectorEnv):
    """Resets in the next step, says nothing about it, and gives the same arrays every time."""

    def __init__(self) -> None:
        self.envs = [CountingEnv(i) for i in range(N)]
        self.num_envs = N
        self.metadata = {}
        self.single_observation_space = CountingEnv.observation_space
        self.single_action_space = CountingEnv.action_space
        self.observation_space = batch_space(self.single_observation_space, N)
        self.action_space = batch_space(self.single_action_space, N)
        self.obs = np.zeros((N, 3), np.float32)
        self.rewards = np.zeros(N, np.float32)
        self.flags = np.zeros((2, N), np.bool_)

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


def test_own_loop():
    check_against_reference(make_vec(numbered(), N), at_least=T)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sync_spends_no_call_on_a_reset(mode, copy):
    check_against_reference(make_vec(sync(mode, copy=copy), N), at_least=T)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_wrapped_sync(mode):
    check_against_reference(make_vec(lambda: WrappedSync(sync(mode)()), N), at_least=T)


def test_wrapped_sync_next_step_marks_the_calls_spent_on_resets():
    envs = make_vec(lambda: WrappedSync(sync(AutoresetMode.NEXT_STEP)()), N)
    check_against_reference(envs, at_least=T // 2)


def test_pool_like():
    check_against_reference(make_vec(PoolLike, N), at_least=T // 2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_async(mode):
    makers = [lambda i=i: CountingEnv(i) for i in range(N)]
    envs = make_vec(lambda: AsyncVectorEnv(makers, autoreset_mode=mode), N)
    check_against_reference(envs, 20, at_least=20)


class Negated(gymnasium.vector.VectorWrapper):
    """Transforms observations, the last ones of an episode too."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return -obs, info

    def step(self, actions):
        obs, *rest, info = self.env.step(actions)
        for i in np.flatnonzero(info.get("_final_obs", [])):
            info["final_obs"][i] = -info["final_obs"][i]
        return -obs, *rest, info


def test_same_step_takes_final_obs_from_the_outermost_wrapper():
    envs = make_vec(lambda: Negated(sync(AutoresetMode.SAME_STEP)()), N)
    transitions, _ = vector_rollout(envs, lambda obs: choose(-obs), T)
    for i, ours in enumerate(transitions):
        expected, _ = reference_rollout(CountingEnv(i), i, choose, T)
        assert [[-x for x in t.next_obs] for t in ours] == [t.next_obs for t in expected]


def test_next_step_row_of_a_reset():
    envs = make_vec(PoolLike, N)
    obs = envs.reset()
    result = envs.step(choose(obs))
    length_is_1 = [episode_length(i, 0) == 1 for i in range(N)]
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


def test_own_loop_writes_into_the_fragment():
    envs = make_vec(numbered(), N)
    fragment = Fragment.allocate(
        T, N, obs_shape=(3,), obs_dtype="float32", action_shape=(), action_dtype="int64"
    )
    fragment.terminated[:] = True
    fragment.valid[:] = False
    fragment.last_obs[...] = envs.reset()
    fragment.obs[0] = fragment.last_obs
    for t, arrays in enumerate(fragment.step_arrays()):
        fragment.action[t] = choose(fragment.obs[t])
        assert envs.step(fragment.action[t], arrays) is arrays
    assert fragment.valid.all()
    for i in range(N):
        expected, _ = reference_rollout(CountingEnv(i), i, choose, T)
        assert fragment.obs[:, i].tolist() == [t.obs for t in expected]
        assert fragment.next_obs[:, i].tolist() == [t.next_obs for t in expected]
        assert fragment.terminated[:, i].tolist() == [t.terminated for t in expected]
        assert fragment.truncated[:, i].tolist() == [t.truncated for t in expected]
        np.testing.assert_array_equal(fragment.reward[:, i], [t.reward for t in expected])


def test_time_limit_is_gymnasiums():
    """The loop counts the steps itself where `TimeLimit` is the outermost wrapper."""
    lengths = []
    for limit in (1, 3, 1000):
        envs = make_vec("CartPole-v1", 2, env_kwargs={"max_episode_steps": limit}, seed=5)
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
    # Both are number 0: 1, 3, 5, 2 and 4 steps in episodes 0 … 5, cut at 3, and 1 is abandoned.
    assert [episode_length(0, episode) for episode in range(6)] == [1, 3, 5, 2, 4, 1]
    ended = [(episode.episode, episode.length) for episode in envs.pop_episodes()]
    assert ended == [(0, 1)] * 2 + [(2, 3)] * 2 + [(3, 2)] * 2 + [(4, 3)] * 2 + [(5, 1)] * 2


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
        assert episode == (0, 0, 2**24 + 10, 11, {})
        assert envs.pop_episodes() == []


def test_reset_returns_a_fresh_array_and_abandons_episodes():
    envs = make_vec(numbered(), 2)
    first = envs.reset()
    kept = first.copy()
    envs.step(np.zeros(2, np.int64))
    second = envs.reset()
    np.testing.assert_array_equal(first, kept)
    # Environment 0 has ended episode 0 after one step; environment 1 was in the middle of its own.
    assert second.tolist() == [[0, 2, 0], [1, 1, 0]]
    assert [(e.env, e.length) for e in envs.pop_episodes()] == [(0, 1)]


def test_half_cheetah_is_cast_to_float32():
    pytest.importorskip("mujoco")
    envs = make_vec("HalfCheetah-v5", 2, seed=1)
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
    envs = make_vec("envpool:CartPole-v1", 3, seed=2)
    physics = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    obs = envs.reset()
    was_ended = np.zeros(3, np.bool_)
    num_ended = 0
    for _ in range(200):
        action = rng.integers(0, 2, 3)
        result = envs.step(action)
        np.testing.assert_array_equal(result.valid, ~was_ended)
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
            num_ended += terminated
        was_ended = result.terminated | result.truncated
        obs = result.obs.copy()
    episodes = envs.pop_episodes()
    assert num_ended == len(episodes) > 10
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
