"""Games against opponents: a row is one game from the learner's point of view."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from hotloop.envs import EnvSpec, make_vec, obs_hash
from hotloop.envs.game_factory import make_turn_games
from hotloop.errors import ConfigError, EnvironmentFailure, SpaceError
from hotloop.types import RunningEpisode
from tests.envs.test_factory import with_100_mib
from tests.toy_games import Matching, Nim, Teams


class Scripted:
    """Takes one counter, or what `moves` say, and records what it is asked."""

    def __init__(self, moves=()):
        self.moves, self.begun, self.ended, self.turns = list(moves), [], [], []
        self.recorded = {}

    def attach(self, spaces):
        self.spaces = spaces

    def begin(self, game, episode):
        self.begun.append((game, episode))

    def act(self, turns):
        self.turns += turns
        return [np.int64(self.moves.pop(0) if self.moves else 0) for _ in turns]

    def end(self, game, score):
        self.ended.append((game, score))

    def recorded_moves(self, game):
        return self.recorded.get(game, ())

    def name(self, game):
        return f"opponent {game}"


def make(num_games=1, opponents=None, **kwargs):
    spec = EnvSpec(Nim, kwargs, seed=2, action_masks=True)
    return make_turn_games(spec, num_games, opponents or Scripted())


def counters(obs):
    return obs.argmax(axis=-1).tolist()


def test_a_step_is_the_learners_action_and_the_opponents_moves():
    opponents = Scripted()
    envs = make(2, opponents)
    starts = counters(envs.reset(first_episode=0))
    # In game 0 the learner is first, in game 1 the opponent has taken a counter.
    assert [envs.seat(0), envs.seat(1)] == ["first", "second"]
    assert opponents.begun == [(0, 0), (1, 0)]
    assert len(opponents.turns) == 1
    assert opponents.turns[0].agent == "first"
    step = envs.step(np.array([1, 0]))  # take two and one, and the opponent takes one
    assert counters(step.next_obs) == [starts[0] - 3, starts[1] - 2]
    assert step.valid.all()
    assert not (step.terminated | step.truncated).any()
    assert step.reward.tolist() == [0, 0]


def test_games_end_with_the_learners_reward_and_score():
    opponents = Scripted()
    envs = make(1, opponents, num_counters=2)
    rewards, seats = [], []
    obs = envs.reset(first_episode=0)
    for _ in range(40):
        seats.append(envs.seat(0))
        step = envs.step(np.array([0]))
        rewards.append(float(step.reward[0]))
        obs = step.obs
    assert counters(obs)[0] in (1, 2)
    episodes = envs.pop_episodes()
    assert len(episodes) == len(opponents.ended) > 10
    assert {e.info["score"] for e in episodes} == {0.0, 1.0}
    for episode, (_, score) in zip(episodes, opponents.ended, strict=True):
        assert episode.info["score"] == score == (episode.undiscounted_return + 1) / 2
        assert episode.info["seat"] == episode.episode % 2
    assert sum(rewards) == sum(e.undiscounted_return for e in episodes)


def test_masks_are_those_of_the_learners_turn():
    envs = make(num_counters=2)
    envs.reset(first_episode=0)
    assert envs.mask.shape == (1, 2)
    for _ in range(20):
        num_left = counters(envs.step(np.array([0])).obs)[0]
        assert envs.mask[0].tolist() == [True, num_left >= 2]


def test_a_cut_game_has_the_mask_of_its_last_state():
    envs = make(num_counters=3, max_moves=1)
    envs.reset(first_episode=0)
    found = set()
    for _ in range(20):
        step = envs.step(np.array([0]))
        assert step.truncated.all()
        num_left = counters(step.next_obs)[0]
        assert step.next_mask[0].tolist() == [True, num_left >= 2]
        found.add(num_left)
    assert found == {1, 2}


def test_an_agent_must_not_miss_a_game():
    class Missing(Nim):
        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.agents = ["second"]
            self.agent_selection = "second"
            self.terminations["second"] = True

    envs = make_turn_games(EnvSpec(Missing, action_masks=True), 1, Scripted())
    with pytest.raises(
        EnvironmentFailure, match=r"from the start of each game .*'first' is missing"
    ):
        envs.reset(first_episode=0)


class Elimination(ParallelEnv):
    """The first agent that acts 1 is eliminated with a reward of −1. The others play three steps.

    They are rewarded by 1 in each step.
    """

    metadata = {"name": "elimination"}  # noqa: RUF012  PettingZoo's attribute

    render_mode = None

    def __init__(self):
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent):
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.num_steps, self.agents = 0, list(self.possible_agents)
        return {x: np.zeros(1, np.float32) for x in self.agents}, {x: {} for x in self.agents}

    def step(self, actions):
        self.num_steps += 1
        agents, lost = self.agents, [x for x, action in actions.items() if action == 1][:1]
        is_last = self.num_steps == 3
        self.agents = [] if is_last else [x for x in agents if x not in lost]
        return (
            {x: np.full(1, self.num_steps, np.float32) for x in agents},
            {x: -1.0 if x in lost else 1.0 for x in agents},
            {x: x in lost for x in agents},
            dict.fromkeys(agents, is_last),
            {x: {} for x in agents},
        )


def test_a_seat_that_leaves_early_ends_its_episode_with_its_score_so_far():
    opponents = Scripted()
    envs = make_turn_games(EnvSpec(Elimination), 1, opponents)
    envs.reset(first_episode=0)
    step = envs.step(np.array([1]))  # the learner is "a", and is eliminated
    assert (step.reward[0], step.terminated[0], step.truncated[0]) == (-1.0, True, False)
    assert opponents.ended == [(0, 0.0)]
    for _ in range(3):  # the next game, which goes to its end
        step = envs.step(np.array([0]))
    lost, drawn = envs.pop_episodes()
    assert (lost.undiscounted_return, lost.length, lost.info["score"]) == (-1.0, 1, 0.0)
    assert (drawn.undiscounted_return, drawn.length, drawn.info["score"]) == (3.0, 3, 0.5)
    assert drawn.info["seat"] == 1


def test_others_that_leave_early_move_no_more():
    opponents = Scripted([1, 0])  # "b" is eliminated
    envs = make_turn_games(EnvSpec(Elimination), 1, opponents)
    envs.reset(first_episode=0)
    for _ in range(3):
        step = envs.step(np.array([0]))
    assert [turn.agent for turn in opponents.turns[:4]] == ["b", "c", "c", "c"]
    assert step.truncated[0]
    assert opponents.ended == [(0, 0.5)]


def test_each_change_of_a_game_is_shown_until_its_episode_ends():
    envs = make(num_counters=4)
    counts = []
    envs.film(lambda: counts.append(envs.first_game.counters))
    obs = envs.reset(first_episode=0)
    (start,) = counters(obs)
    assert envs.players("me") == {"first": "me", "second": "opponent 0"}
    while not envs.step(np.array([0])).terminated[0]:
        pass
    assert counts == list(range(start, -1, -1))
    envs.pop_episodes()
    envs.step(np.array([0]))
    assert len(counts) > start + 1
    assert envs.players("me") == {"first": "opponent 0", "second": "me"}


def test_an_observation_of_another_space_is_an_error():
    class Grows(Nim):
        def observe(self, agent):
            observation = super().observe(agent)
            if self.num_moves:
                observation["observation"] = np.zeros(5, np.float32)
            return observation

    envs = make_turn_games(EnvSpec(Grows, action_masks=True), 1, Scripted())
    envs.reset(first_episode=0)
    with pytest.raises(
        EnvironmentFailure, match=r"environment 0, episode 0, step 1: .*shape \(8,\).*shape \(5,\)"
    ):
        envs.step(np.array([0]))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (None, "the reward must be one number, got None"),
        ("1", "the reward must be one number, got '1'"),
        ([1.0], "the reward must be one number, got a list of length 1"),
        (np.nan, "the reward of agent 'second' must be finite, got nan"),
    ],
)
def test_rewards_of_the_others_are_checked_too(reward, message):
    class Odd(Nim):
        def step(self, action):
            super().step(action)
            self.rewards["second"] = reward

    envs = make_turn_games(EnvSpec(Odd, action_masks=True), 1, Scripted())
    envs.reset(first_episode=0)
    with pytest.raises(EnvironmentFailure, match=f"episode 0, step 0: {re.escape(message)}"):
        envs.step(np.array([0]))


def test_a_game_is_replayed_with_the_recorded_moves():
    opponents = Scripted([0, 1] * 50)
    envs = make(2, opponents, num_counters=30)
    envs.reset(first_episode=3)
    actions = [np.array([1, 0]), np.array([0, 0]), np.array([1, 1])]
    for action in actions:
        obs = envs.step(action).obs.copy()
    again = Scripted()
    again.recorded = dict(enumerate(envs.moves))
    twin = make(2, again, num_counters=30)
    running = [
        RunningEpisode(3, np.array([action[i] for action in actions]), obs_hash(obs[i]))
        for i in range(2)
    ]
    resumed, restarted = twin.resume(running)
    assert restarted == []
    np.testing.assert_array_equal(resumed, obs)
    np.testing.assert_array_equal(twin.mask, envs.mask)
    assert twin.running_episodes() == envs.running_episodes()
    assert twin.moves == envs.moves
    assert again.turns == []
    # Without the moves, the games begin again.
    again.recorded = {}
    _, restarted = make(2, again, num_counters=30).resume(running)
    assert restarted == [0, 1]


def test_agents_that_act_at_once_take_turns():
    opponents = Scripted()
    envs = make_turn_games(EnvSpec(Matching, {"length": 3}), 2, opponents)
    envs.reset(first_episode=0)
    for _ in range(6):
        step = envs.step(np.zeros(2, np.int64))
    episodes = envs.pop_episodes()
    assert [(e.episode, e.length) for e in episodes] == [(0, 3), (0, 3), (1, 3), (1, 3)]
    assert {e.info["score"] for e in episodes} == {0.5}  # both agents have the same reward
    assert step.truncated.all()


def test_all_seats_need_the_same_spaces():
    with pytest.raises(SpaceError, match="to share one policy; 'blue_0' has"):
        make_turn_games(EnvSpec(Teams), 1, Scripted())


def test_a_single_environment_is_no_game():
    with pytest.raises(ConfigError, match="need an environment of several agents"):
        make_turn_games(EnvSpec("CartPole-v1"), 1, Scripted())


def test_errors_name_the_game():
    envs = make()
    envs.reset(first_episode=0)
    with pytest.raises(EnvironmentFailure, match="environment 0, episode 0, step 0: `step` raised"):
        envs.step(np.array([9]))


def test_spaces_of_a_game_are_given_to_the_opponents():
    opponents = Scripted()
    make(1, opponents)
    assert opponents.spaces.obs_spec.shape == (8,)
    assert isinstance(Nim().action_space("first"), spaces.Discrete)


@pytest.mark.parametrize("has_opponents", [False, True])
def test_games_beyond_memory_are_refused_early(monkeypatch, has_opponents):
    make, created = with_100_mib(monkeypatch, Matching)
    with pytest.raises(ConfigError, match=r"environments take at least .*: lower `num_envs`"):
        make_turn_games(EnvSpec(make), 10**9, Scripted()) if has_opponents else make_vec(
            make, 10**9
        )
    assert len(created) == 64
