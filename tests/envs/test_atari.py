"""Atari games: vectorized by ALE, or a single game with Gymnasium's wrappers."""

import re

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.envs import EnvSpec, make_env, make_vec
from hotloop.envs.protocol import obs_hash
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownNameError,
    install_command,
)
from hotloop.replay import ReplayBuffer
from hotloop.types import RunningEpisode

pytest.importorskip("ale_py")

BREAKOUT = "ALE/Breakout-v5"


class RandomPlay:
    """Random play that records the actions of the running episodes."""

    def __init__(self, num_steps, **kwargs):
        self.envs = make_vec(EnvSpec(BREAKOUT, kwargs, seed=5), 3)
        self.rng = np.random.default_rng(0)
        self.obs = self.envs.reset()
        self.actions = [[] for _ in range(3)]
        self.num_terminated, self.rewards = 0, 0.0
        for _ in range(num_steps):
            action = self.rng.integers(0, 4, 3)
            step = self.envs.step(action)
            self.num_terminated += int(step.terminated.sum())
            self.rewards += float(step.reward.sum())
            self.obs = step.obs.copy()
            for env_actions, env_action in zip(self.actions, action, strict=True):
                env_actions.append(env_action)
        self.games = self.envs.pop_episodes()

    def running(self):
        """Return the running episodes as a checkpoint stores them."""
        return [
            RunningEpisode(
                episode, np.array(env_actions[len(env_actions) - length :]), obs_hash(obs)
            )
            for (episode, length), env_actions, obs in zip(
                self.envs.running_episodes(), self.actions, self.obs, strict=True
            )
        ]


@pytest.fixture(scope="module")
def lives():
    """Random play in which each life is an episode for the learner."""
    return RandomPlay(420, life_loss_info=True)


def test_resume_continues_running_episodes(lives):
    play = lives
    new_envs = make_vec(EnvSpec(BREAKOUT, {"life_loss_info": True}, seed=5), 3)
    progress_calls = []
    obs, restarted = new_envs.resume(play.running(), lambda: progress_calls.append(1))
    assert restarted == []
    assert len(progress_calls) == 1 + max(length for _, length in play.envs.running_episodes())
    np.testing.assert_array_equal(obs, play.obs)
    assert new_envs.running_episodes() == play.envs.running_episodes()
    for _ in range(150):
        action = play.rng.integers(0, 4, 3)
        step, new_step = play.envs.step(action), new_envs.step(action)
        np.testing.assert_array_equal(step.obs, new_step.obs)
        np.testing.assert_array_equal(step.reward, new_step.reward)
        np.testing.assert_array_equal(step.terminated, new_step.terminated)
    episodes = play.envs.pop_episodes()
    assert episodes == new_envs.pop_episodes()
    assert episodes


def test_resume_restarts_an_episode_that_differs():
    play = RandomPlay(60)
    running = play.running()
    running[1] = running[1]._replace(actions=running[1].actions[::-1].copy())
    new_envs = make_vec(EnvSpec(BREAKOUT, seed=5), 3)
    obs, restarted = new_envs.resume(running)
    assert restarted == [1]
    np.testing.assert_array_equal(obs[[0, 2]], play.obs[[0, 2]])
    assert new_envs.running_episodes()[1] == (running[1].episode + 1, 0)


def test_a_lost_life_ends_the_episode_but_not_the_game(lives):
    whole_games, games = RandomPlay(420), lives.games
    assert [game[:4] for game in games] == [game[:4] for game in whole_games.games]
    assert whole_games.num_terminated == len(games) > 2
    # Breakout has five lives.
    assert 5 * len(games) <= lives.num_terminated <= 5 * (len(games) + 3)
    assert lives.rewards == whole_games.rewards > 0


def test_single_game_matches_vectorized_games():
    kwargs = {"noop_max": 0, "repeat_action_probability": 0.0, "use_fire_reset": False}
    envs = make_vec(EnvSpec("ALE/Pong-v5", kwargs, seed=3), 2)
    single = make_env(EnvSpec("ALE/Pong-v5", {**kwargs, "render_mode": "rgb_array"}))
    assert single.observation_space.shape == envs.obs_spec.shape == (4, 84, 84)
    first, _ = single.reset(seed=1)
    np.testing.assert_array_equal(envs.reset()[0], first)
    for t in range(120):
        obs, reward, *_ = single.step(t % 6)
        step = envs.step(np.full(2, t % 6))
        np.testing.assert_array_equal(step.obs[0], obs)
        assert step.reward[0] == reward
    assert single.render().shape == (210, 160, 3)
    single.close()


def test_threads_change_nothing():
    envs = make_vec(EnvSpec("ALE/Pong-v5", seed=3), 3, num_threads=2)
    obs = [envs.reset()] + [envs.step(np.array([2, 3, t % 6])).obs.copy() for t in range(40)]
    expected = make_vec(EnvSpec("ALE/Pong-v5", seed=3), 3, num_threads=1)
    np.testing.assert_array_equal(obs[0], expected.reset())
    for t in range(40):
        np.testing.assert_array_equal(obs[t + 1], expected.step(np.array([2, 3, t % 6])).obs)


def test_module_prefix_selects_gymnasiums_environment():
    assert make_vec("ale_py:ALE/Pong-v5", 1).obs_spec.shape == (210, 160, 3)
    assert make_vec(EnvSpec("ALE/Pong-v5", {"obs_type": "ram"}), 1).obs_spec.shape == (128,)
    assert make_vec(EnvSpec("ALE/Pong-v5", {"img_width": 64}), 1).obs_spec.shape == (4, 84, 64)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "error", "message"),
    [
        ("ALE/Pang-v5", {}, UnknownNameError, r"no environment 'ALE/Pang-v5'.* 'ALE/Pong-v5'"),
        ("ALE/Pong-v5", {"frame_skip": 4}, ConfigError, r"unexpected keyword argument"),
        (
            "ALE/Pong-v5",
            {"batch_size": 2},
            ConfigError,
            r"`batch_size` is not an option of `env_kwargs`",
        ),
        ("ALE/Pong-v5", {"frameskip": 0}, EnvironmentFailure, r"frameskip must be positive"),
    ],
)
def test_bad_ids_and_kwargs_are_refused(env_id, kwargs, error, message):
    with pytest.raises(error, match=message):
        make_vec(EnvSpec(env_id, kwargs), 2)


def test_missing_rom_is_reported(monkeypatch):
    from ale_py import roms

    monkeypatch.setattr(roms, "get_rom_path", lambda name: None)
    with pytest.raises(EnvironmentFailure, match=r"the ROM of 'pong' is missing: .*ale-py"):
        make_vec("ALE/Pong-v5", 2)


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("atari"))):
        make_vec("ALE/Pong-v5", 2)


def test_preset_applies_to_all_games():
    config = ppo.preset(BREAKOUT, seed=3)
    assert (config.env_id, config.seed, config.clip_reward) == (BREAKOUT, 3, 1.0)
    assert ppo.preset("CartPole-v1") == ppo.Config(env_id="CartPole-v1")


def test_replay_buffer_stores_each_frame_once():
    envs = make_vec(EnvSpec(BREAKOUT, seed=1), 2)
    buffer = ReplayBuffer.for_env(envs, 1_000)
    assert envs.obs_spec.num_frames == 4
    assert buffer.memory()["total"] < 1_000 * 7_500  # a frame takes 84 · 84 = 7,056 bytes
    obs, rng, transitions = envs.reset(), np.random.default_rng(0), []
    for _ in range(100):
        action = rng.integers(0, 4, 2)
        step = envs.step(action)
        buffer.extend(
            obs=obs,
            action=action,
            reward=step.reward,
            next_obs=step.next_obs,
            terminated=step.terminated,
            truncated=step.truncated,
        )
        transitions.append((obs, step.next_obs.copy()))
        obs = step.obs.copy()
    stored = buffer.get(np.arange(200))
    np.testing.assert_array_equal(stored["obs"], np.concatenate([obs for obs, _ in transitions]))
    np.testing.assert_array_equal(
        stored["next_obs"], np.concatenate([next_obs for _, next_obs in transitions])
    )
