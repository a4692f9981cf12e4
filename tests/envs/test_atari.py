"""Atari games: several at once as ALE steps them, one as Gymnasium's wrappers have it."""

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.envs import make_env, make_vec
from hotloop.envs.protocol import obs_hash
from hotloop.errors import ConfigError, EnvironmentFailure, MissingExtraError, UnknownNameError
from hotloop.replay import ReplayBuffer
from hotloop.types import RunningEpisode

pytest.importorskip("ale_py")

BREAKOUT = "ALE/Breakout-v5"


class Played:
    """Random play, with all actions of the episodes that run."""

    def __init__(self, num_steps, **kwargs):
        self.envs = make_vec(BREAKOUT, 3, seed=5, env_kwargs=kwargs)
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
            for own, one in zip(self.actions, action, strict=True):
                own.append(one)
        self.games = self.envs.pop_episodes()

    def running(self):
        """What a checkpoint holds of the episodes that run."""
        return [
            RunningEpisode(episode, np.array(own[len(own) - length :]), obs_hash(obs))
            for (episode, length), own, obs in zip(
                self.envs.running(), self.actions, self.obs, strict=True
            )
        ]


@pytest.fixture(scope="module")
def lives():
    """Games in which each life is an episode for the learner."""
    return Played(420, life_loss_info=True)


def test_episodes_go_on_where_others_stood(lives):
    played = lives
    fresh = make_vec(BREAKOUT, 3, seed=5, env_kwargs={"life_loss_info": True})
    counted = []
    obs, restarted = fresh.resume(played.running(), lambda: counted.append(1))
    assert restarted == []
    assert len(counted) == 1 + max(length for _, length in played.envs.running())
    np.testing.assert_array_equal(obs, played.obs)
    assert fresh.running() == played.envs.running()
    for _ in range(150):
        action = played.rng.integers(0, 4, 3)
        one, other = played.envs.step(action), fresh.step(action)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.terminated, other.terminated)
    episodes = played.envs.pop_episodes()
    assert episodes == fresh.pop_episodes()
    assert episodes


def test_an_episode_that_does_not_repeat_itself_begins_anew():
    played = Played(60)
    running = played.running()
    running[1] = running[1]._replace(actions=running[1].actions[::-1].copy())
    fresh = make_vec(BREAKOUT, 3, seed=5)
    obs, restarted = fresh.resume(running)
    assert restarted == [1]
    np.testing.assert_array_equal(obs[[0, 2]], played.obs[[0, 2]])
    assert fresh.running()[1] == (running[1].episode + 1, 0)


def test_a_lost_life_ends_what_is_learned_from_and_not_the_game(lives):
    whole, games = Played(420), lives.games
    assert [game[:4] for game in games] == [game[:4] for game in whole.games]
    assert whole.num_terminated == len(games) > 2
    # Breakout has five lives.
    assert 5 * len(games) <= lives.num_terminated <= 5 * (len(games) + 3)
    assert lives.rewards == whole.rewards > 0


def test_one_game_looks_like_many():
    kwargs = {"noop_max": 0, "repeat_action_probability": 0.0, "use_fire_reset": False}
    many = make_vec("ALE/Pong-v5", 2, seed=3, env_kwargs=kwargs)
    one = make_env("ALE/Pong-v5", {**kwargs, "render_mode": "rgb_array"})
    assert one.observation_space.shape == many.obs_spec.shape == (4, 84, 84)
    first, _ = one.reset(seed=1)
    np.testing.assert_array_equal(many.reset()[0], first)
    for t in range(120):
        obs, reward, *_ = one.step(t % 6)
        step = many.step(np.full(2, t % 6))
        np.testing.assert_array_equal(step.obs[0], obs)
        assert step.reward[0] == reward
    assert one.render().shape == (210, 160, 3)
    one.close()


def test_threads_change_nothing():
    envs = make_vec("ALE/Pong-v5", 3, seed=3, num_threads=2)
    obs = [envs.reset()] + [envs.step(np.array([2, 3, t % 6])).obs.copy() for t in range(40)]
    expected = make_vec("ALE/Pong-v5", 3, seed=3, num_threads=1)
    np.testing.assert_array_equal(obs[0], expected.reset())
    for t in range(40):
        np.testing.assert_array_equal(obs[t + 1], expected.step(np.array([2, 3, t % 6])).obs)


def test_a_module_before_the_id_means_gymnasiums_own():
    assert make_vec("ale_py:ALE/Pong-v5", 1).obs_spec.shape == (210, 160, 3)
    assert make_vec("ALE/Pong-v5", 1, env_kwargs={"obs_type": "ram"}).obs_spec.shape == (128,)
    assert make_vec("ALE/Pong-v5", 1, env_kwargs={"img_width": 64}).obs_spec.shape == (4, 84, 64)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "error", "message"),
    [
        ("ALE/Pang-v5", {}, UnknownNameError, r"no environment 'ALE/Pang-v5'.* 'ALE/Pong-v5'"),
        ("ALE/Pong-v5", {"frame_skip": 4}, ConfigError, r"unexpected keyword argument"),
        ("ALE/Pong-v5", {"batch_size": 2}, ConfigError, r"`batch_size` is not one of `env_kwargs`"),
        ("ALE/Pong-v5", {"frameskip": 0}, EnvironmentFailure, r"frameskip must be positive"),
    ],
)
def test_what_there_is_not(env_id, kwargs, error, message):
    with pytest.raises(error, match=message):
        make_vec(env_id, 2, env_kwargs=kwargs)


def test_a_rom_that_is_not_there(monkeypatch):
    from ale_py import roms

    monkeypatch.setattr(roms, "get_rom_path", lambda name: None)
    with pytest.raises(EnvironmentFailure, match=r"the ROM of 'pong' is not there: .*ale-py"):
        make_vec("ALE/Pong-v5", 2)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hotloop\[atari\]'"):
        make_vec("ALE/Pong-v5", 2)


def test_the_preset_is_for_all_games():
    config = ppo.preset(BREAKOUT, seed=3)
    assert (config.env_id, config.seed, config.clip_reward) == (BREAKOUT, 3, 1.0)
    assert ppo.preset("CartPole-v1") == ppo.Config(env_id="CartPole-v1")


def test_a_frame_is_kept_once():
    envs = make_vec(BREAKOUT, 2, seed=1)
    buffer = ReplayBuffer.for_env(envs, 1_000)
    assert envs.obs_spec.num_frames == 4
    assert buffer.memory()["total"] < 1_000 * 7_500  # of 84 · 84 = 7,056 bytes a frame
    obs, rng, seen = envs.reset(), np.random.default_rng(0), []
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
        seen.append((obs, step.next_obs.copy()))
        obs = step.obs.copy()
    kept = buffer.get(np.arange(200))
    np.testing.assert_array_equal(kept["obs"], np.concatenate([one for one, _ in seen]))
    np.testing.assert_array_equal(kept["next_obs"], np.concatenate([one for _, one in seen]))
