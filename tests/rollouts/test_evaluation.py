"""Evaluations of episodes that end, that end late, and that never end."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hotloop.envs import EnvSpec, make_vec
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.rollouts import evaluation
from hotloop.rollouts.evaluation import evaluate
from tests.toy_games import Hiding


class Lengths(gymnasium.Env):
    """Episode k of environment i has the length `lengths[i][k]`, and the reward k + 1 per step."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    instances = 0

    def __init__(self, lengths):
        self.lengths = lengths[Lengths.instances % len(lengths)]
        Lengths.instances += 1
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        is_end = self.count == self.lengths[self.episode % len(self.lengths)]
        return np.zeros(2, np.float32), self.episode + 1.0, is_end, False, {}


class Absent(Hiding):
    """Agent 0 never takes part, and agent 3 in every other game."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        self.agents.remove("agent_0")
        del observations["agent_0"]
        return observations, infos


@pytest.mark.parametrize(("num_episodes", "rows"), [(1, {1}), (8, {1, 2, 3})])
def test_other_agents_play_the_share_of_one_that_is_absent(num_episodes, rows):
    envs = make_vec(Absent, 4)
    network = actor_critic(envs)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    episodes = evaluate(envs, policy, num_episodes=num_episodes, max_steps=100, timeout_s=20)
    assert len(episodes) == num_episodes
    assert {episode.env for episode in episodes} == rows
    assert not any(episode.is_cut for episode in episodes)


NEVER = 10**9


def play(lengths, num_episodes, **options):
    Lengths.instances = 0
    envs = make_vec(EnvSpec(Lengths, {"lengths": lengths}), len(lengths))
    network = actor_critic(envs)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    try:
        return evaluate(envs, policy, num_episodes=num_episodes, **options)
    finally:
        envs.close()


def summary(episodes):
    return [(x.env, x.episode, x.undiscounted_return, x.length, x.is_cut) for x in episodes]


def test_episodes_that_end_are_not_cut():
    """Each environment plays its share, and an episode may have exactly the maximum length."""
    episodes = play([[3, 5], [2, 4]], 3, max_steps=5)
    assert summary(episodes) == [
        (0, 0, 3.0, 3, False),
        (0, 1, 10.0, 5, False),
        (1, 0, 2.0, 2, False),
    ]


def test_an_episode_without_an_end_is_cut_and_the_share_goes_on():
    """The second episode of environment 0 comes after the one that was cut."""
    episodes = play([[NEVER, 3, 3], [2, 2, 2]], 4, max_steps=6)
    assert [x[:2] for x in summary(episodes)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cut, later, first, second = summary(episodes)
    assert cut == (0, 0, 6.0, 6, True)
    assert (later[3:], first, second) == ((3, False), (1, 0, 2.0, 2, False), (1, 1, 4.0, 2, False))


def test_an_episode_that_ends_after_its_cut_counts_once():
    episodes = play([[8, 3], [6, 20]], 4, max_steps=5)
    assert summary(episodes) == [
        (0, 0, 5.0, 5, True),
        (0, 1, 6.0, 3, False),
        (1, 0, 5.0, 5, True),
        (1, 1, 10.0, 5, True),
    ]


@pytest.mark.parametrize("num_episodes", [1, 5])
def test_nothing_ends(num_episodes):
    episodes = play([[NEVER], [NEVER]], num_episodes, max_steps=40)
    assert [(x.length, x.is_cut) for x in episodes] == [(40, True)] * num_episodes
    assert len({(x.env, x.episode) for x in episodes}) == num_episodes


class Clock:
    """A clock that advances by one second at each call."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_a_time_limit_cuts_what_is_longer_than_usual(monkeypatch):
    monkeypatch.setattr(evaluation, "time", Clock())
    episodes = play([[NEVER], [NEVER]], 5, timeout_s=20)
    assert [(x.length, x.is_cut) for x in episodes] == [(21, True)] * 2  # the rest is left out
    episodes = play([[NEVER], [30]], 2, timeout_s=20, usual_steps=50)
    assert [(x.length, x.is_cut) for x in episodes] == [(51, True), (30, False)]
    episodes = play([[15], [25]], 4, timeout_s=20)  # time since the last end
    assert [(x.length, x.is_cut) for x in episodes] == [(15, False)] * 2 + [(25, False)] * 2


def test_a_machine_that_is_suspended_cuts_no_episode(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(evaluation, "time", clock)
    suspend = iter([10_000.0] * 5)

    def on_step():
        clock.now += next(suspend, 0.0)

    episodes = play([[15], [15]], 2, timeout_s=20, on_step=on_step)
    assert [(x.length, x.is_cut) for x in episodes] == [(15, False)] * 2


def test_a_lengthy_evaluation_is_reported_every_five_seconds(monkeypatch):
    monkeypatch.setattr(evaluation, "time", Clock())
    notes = []
    play([[4], [NEVER]], 2, max_steps=15, on_note=notes.append)
    assert notes == [
        "evaluating: 1 of 2 episodes, and 6 steps in the longest of the others",
        "evaluating: 1 of 2 episodes, and 12 steps in the longest of the others",
    ]


def test_episodes_of_usual_length_are_reported_at_the_same_times_after_the_time_limit(monkeypatch):
    monkeypatch.setattr(evaluation, "time", Clock())
    notes = []
    play([[NEVER], [NEVER]], 2, timeout_s=20, usual_steps=50, on_note=notes.append)
    assert [int(note.split(" and ")[1].split()[0]) for note in notes] == list(range(6, 50, 6))


def test_a_cut_game_has_the_returns_of_agents_that_have_died():
    envs = make_vec(EnvSpec(Hiding, {"length": NEVER}), 4)
    network = actor_critic(envs)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(1)))
    episodes = evaluate(envs, policy, num_episodes=4, max_steps=8)
    assert [episode.is_cut for episode in episodes] == [True] * 4
    lives = [range(1, 3), [1, 2, 3, 6, 7, 8], range(1, 5), range(1, 6)]
    for episode, steps in zip(episodes, lives, strict=True):
        largest_actions = 2.0 * len(steps)
        assert 0 <= episode.undiscounted_return - 10.0 * sum(steps) <= largest_actions
