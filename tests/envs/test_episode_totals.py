"""Returns and lengths that environments record inside of wrappers that change rewards."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeReward, RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers import vector as vector_wrappers

from hotloop.envs import make_vec
from hotloop.envs.double_buffer import DoubleBufferedEnvs
from hotloop.envs.episode_totals import EpisodeTotals
from hotloop.rollouts.evaluation import evaluate


class Tens(gymnasium.Env):
    """Each step earns 10. Each life takes three steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, lives=1):
        self.lives = self._all_lives = lives

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self.lives = 0, self._all_lives
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._t += 1
        self.lives -= self._t % 3 == 0
        return np.zeros(1, np.float32), 10.0, self.lives == 0, False, {}


class EndAtLostLife(gymnasium.Wrapper):
    """Ends an episode at each lost life, and then goes on with the game."""

    def __init__(self, env):
        super().__init__(env)
        self._is_over, self._lives = True, 0

    def reset(self, **arguments):
        if self._is_over:
            result = self.env.reset(**arguments)
        else:
            obs, _, _, _, info = self.env.step(0)
            result = obs, info
        self._lives = self.unwrapped.lives
        return result

    def step(self, action):
        obs, reward, self._is_over, truncated, info = self.env.step(action)
        has_lost = self.unwrapped.lives < self._lives
        return obs, reward, self._is_over or has_lost, truncated, info


def normalized(lives=1):
    return NormalizeReward(RecordEpisodeStatistics(Tens(lives)))


def game():
    return NormalizeReward(EndAtLostLife(RecordEpisodeStatistics(Tens(2))))


def limited():
    return TimeLimit(normalized(100), 5)


def many(kind, mode, single=normalized):
    return lambda: kind([single, single], autoreset_mode=mode)


def recorded_vector(mode):
    recorded = vector_wrappers.RecordEpisodeStatistics(many(SyncVectorEnv, mode, Tens)())
    return vector_wrappers.NormalizeReward(recorded)


def totals(env, num_steps):
    envs = make_vec(env, 2)
    try:
        envs.reset()
        for _ in range(num_steps):
            envs.step(np.zeros(2, np.int64))
        return [(x.env, x.undiscounted_return, x.length) for x in envs.pop_episodes()]
    finally:
        envs.close()


NEXT, SAME, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


@pytest.mark.parametrize(
    "env",
    [
        normalized,
        *(many(SyncVectorEnv, mode) for mode in (NEXT, SAME, OFF)),
        many(AsyncVectorEnv, NEXT),
        *((lambda mode=mode: recorded_vector(mode)) for mode in (NEXT, SAME)),
    ],
)
def test_raw_return_of_normalized_rewards(env):
    assert totals(env, 4) == [(0, 30.0, 3), (1, 30.0, 3)]


@pytest.mark.parametrize("env", [limited, many(SyncVectorEnv, OFF, limited)])
def test_time_limit_outside_of_the_recorder(env):
    assert totals(env, 6) == [(0, 50.0, 5), (1, 50.0, 5)]


@pytest.mark.parametrize("env", [game, many(SyncVectorEnv, OFF, game)])
def test_a_lost_life_is_not_the_end_of_a_game(env):
    # The reset after the first life is a step: the second life takes two steps more.
    assert totals(env, 6) == [(0, 60.0, 6), (1, 60.0, 6)]


def test_evaluation_plays_whole_games():
    class FirstAction:
        memory_size = 0

        def greedy(self, obs, memory, mask):
            return np.zeros(len(obs), np.int64)

        def new_memory(self, num_envs):
            return None

    episodes = evaluate(make_vec(game, 2), FirstAction(), num_episodes=3)
    assert [(x.env, x.undiscounted_return) for x in episodes] == [(0, 60.0), (0, 60.0), (1, 60.0)]


def test_halves_of_environments():
    envs = DoubleBufferedEnvs([make_vec(normalized, 1), make_vec(normalized, 1)])
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(2, np.int64))
    assert [x.undiscounted_return for x in envs.pop_episodes()] == [30.0, 30.0]


def test_sum_of_rewards_without_a_record():
    assert totals(lambda: Tens(1), 3) == [(0, 30.0, 3), (1, 30.0, 3)]
    assert totals(lambda: TimeLimit(Tens(9), 4), 4) == [(0, 40.0, 4), (1, 40.0, 4)]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"r": np.array([7.0]), "l": np.array([4])}, (7.0, 4)),
        ({"r": np.float32(0.5)}, (0.5, 3)),
        ({"l": 4, "angle": 1.0}, (30.0, 4)),
        ({"r": "7", "l": None}, (30.0, 3)),
        ({"r": float("nan")}, (30.0, 3)),
        (None, (30.0, 3)),
    ],
)
def test_invalid_records_are_ignored(record, expected):
    assert EpisodeTotals().at_end({"episode": record}, 30.0, 3) == expected


@pytest.mark.parametrize(
    "make",
    [lambda: make_vec(normalized, 2), lambda: make_vec(lambda: SyncVectorEnv([normalized] * 2))],
)
def test_the_sum_of_changed_rewards_is_a_metric(make):
    envs = make()
    envs.reset()
    sums = np.zeros(2)
    for _ in range(3):
        sums += envs.step(np.zeros(2, np.int64)).reward
    for episode, total in zip(envs.pop_episodes(), sums, strict=True):
        assert episode.undiscounted_return == 30
        assert dict(episode.info) == {"reward_sum": pytest.approx(total)}


def test_unchanged_rewards_have_no_other_sum():
    envs = make_vec(lambda: RecordEpisodeStatistics(Tens()))
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(1, np.int64))
    (episode,) = envs.pop_episodes()
    assert (episode.undiscounted_return, dict(episode.info)) == (30, {})
