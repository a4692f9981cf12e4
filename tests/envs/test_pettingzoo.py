"""PettingZoo's games: each agent is a row, whether it dies, comes back or never appears."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from hotloop.envs import EnvSpec, episode_seed, make_env, make_vec
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.envs.protocol import obs_hash
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MaskError,
    SpaceError,
    UnknownNameError,
)
from hotloop.types import RunningEpisode
from tests.reference.games import Step, play_games
from tests.toy_games import Hiding, Matching

NUM_STEPS = 50
GAME = "pettingzoo:tests.toy_games"


def play(envs: Any, num_steps: int) -> list[list[Step]]:
    """Return the transitions of each row, for actions that depend on the step and the row."""
    rows: list[list[Step]] = [[] for _ in range(envs.num_envs)]
    obs = envs.reset()
    for t in range(num_steps):
        action = (t + np.arange(envs.num_envs)) % 3
        step = envs.step(action)
        for i in np.flatnonzero(step.valid):
            rows[i].append(
                Step(
                    obs[i].tolist(),
                    float(step.reward[i]),
                    bool(step.terminated[i]),
                    bool(step.truncated[i]),
                    step.next_obs[i].tolist(),
                )
            )
        for values in (step.reward, step.terminated, step.truncated):
            assert not values[~step.valid].any()
        obs = step.obs.copy()
    return rows


@pytest.mark.parametrize("num_games", [1, 3])
def test_rows_are_the_transitions_of_the_agents_that_are_alive(num_games):
    envs = make_vec(Hiding, 4 * num_games)
    assert isinstance(envs, PettingZooEnvs)
    rows = play(envs, NUM_STEPS)
    expected, expected_episodes = play_games([Hiding() for _ in range(num_games)], NUM_STEPS)
    assert rows == expected
    episodes = envs.pop_episodes()
    assert [episode[:4] for episode in episodes] == expected_episodes
    assert len(rows[0]) < len(rows[1])  # agent 1 comes back
    assert {len(row) for row in rows[3::4]} == {5 * 4}  # takes part in games 0, 2, 4 and 6


def test_an_agent_that_appears_has_a_first_observation_but_no_transition():
    envs = make_vec(Hiding)
    envs.reset()
    valid, obs = [], []
    for _ in range(7):
        step = envs.step(np.zeros(4, np.int64))
        valid.append(bool(step.valid[1]))
        obs.append(step.obs[1].tolist())
    assert valid == [True, True, True, False, False, True, True]  # dies in step 3, back in step 5
    assert obs[4] == [1, 5, 2]


def test_statistics_are_those_of_agents_and_of_teams():
    envs = make_vec(EnvSpec(Hiding, log_info=["steps"]), 4)
    envs.reset()
    for _ in range(9):
        envs.step(np.ones(4, np.int64))
    episodes = envs.pop_episodes()
    returns = [episode.undiscounted_return for episode in episodes]
    assert returns[0] == 11 + 21
    assert [episode.length for episode in episodes] == [2, 3 + 4, 4, 5]
    for episode in episodes:
        assert episode.info["team_return"] == sum(returns)
        assert episode.info[f"return_agent_{episode.env}"] == returns[episode.env]
    assert [episode.info["steps"] for episode in episodes] == [2, 9, 4, 5]


def test_many_agents_have_the_return_of_their_team_alone():
    envs = make_vec(EnvSpec(Hiding, {"num_agents": 20}))
    envs.reset()
    for _ in range(9):
        envs.step(np.ones(20, np.int64))
    assert {tuple(episode.info) for episode in envs.pop_episodes()} == {("team_return",)}


def test_each_game_has_a_seed_of_its_own():
    games: list[Hiding] = []

    def make() -> Hiding:
        games.append(Hiding())
        return games[-1]

    play(make_vec(EnvSpec(make, seed=3, first_env=8), 8), 10)
    assert [game.seeds for game in games] == [
        [episode_seed(3, 8, 0), episode_seed(3, 8, 1)],
        [episode_seed(3, 12, 0), episode_seed(3, 12, 1)],
    ]


def test_masks_come_from_the_observation():
    envs = make_vec(EnvSpec(Hiding, {"has_masks": True}, action_masks=True), 4)
    assert envs.obs_spec.shape == (3,)
    envs.reset()
    assert envs.mask.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]]
    step = envs.step(np.zeros(4, np.int64))
    assert step.next_mask.astype(int).tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]]
    step = envs.step(np.zeros(4, np.int64))
    assert step.mask[0].all()  # agent 0 has died


def test_masks_without_the_option_cause_a_warning():
    with pytest.warns(UserWarning, match="action masks, which this run ignores"):
        make_vec(EnvSpec(Hiding, {"has_masks": True}), 4).reset()


def running_episodes(envs, step, actions):
    """Return the running episodes of rows, of which `actions` has the actions so far."""
    return [
        RunningEpisode(
            episode, np.array(actions)[len(actions) - length :, i], obs_hash(step.obs[i])
        )
        for i, (episode, length) in enumerate(envs.running_episodes())
    ]


def test_resumed_games_repeat_their_actions():
    envs, actions = make_vec(Matching, 4), []
    envs.reset()
    for t in range(11):  # in the fourth step of the second games
        actions.append((t + np.arange(4)) % 2)
        step = envs.step(actions[-1])
    resumed = make_vec(Matching, 4)
    obs, restarted = resumed.resume(running_episodes(envs, step, actions))
    assert restarted == []
    np.testing.assert_array_equal(obs, step.obs)
    assert resumed.running_episodes() == envs.running_episodes() == [(1, 3)] * 4
    for t in range(6):
        a, b = envs.step((t * np.arange(4)) % 2), resumed.step((t * np.arange(4)) % 2)
        for name, value in a._asdict().items():
            np.testing.assert_array_equal(value, getattr(b, name), name)
    assert envs.pop_episodes()[4:] == resumed.pop_episodes()


def test_a_game_that_differs_begins_the_next_one():
    envs = make_vec(Hiding, 8)
    envs.reset()
    actions = [np.zeros(8, np.int64)] * 3
    for action in actions:
        step = envs.step(action)
    running = running_episodes(envs, step, actions)
    running[5] = running[5]._replace(obs_hash="another")
    resumed = make_vec(Hiding, 8)
    obs, restarted = resumed.resume(running)
    assert restarted == [4, 5, 6, 7]
    np.testing.assert_array_equal(obs[:4], step.obs[:4])
    assert resumed.running_episodes() == [(0, 3)] * 4 + [(1, 0)] * 4
    assert obs[4:, 1].tolist() == [0.0] * 4


def test_a_module_and_environments_with_turns():
    assert make_vec(EnvSpec(GAME, {"length": 3}), 4).num_envs == 4
    aec = make_vec(lambda: parallel_to_aec(Hiding()), 4)
    assert play(aec, 8) == play_games([Hiding()], 8)[0]

    def take_turns() -> Any:
        env = parallel_to_aec(Hiding())
        env.metadata["is_parallelizable"] = False
        return env

    def have_no_metadata() -> Any:
        class Bare(AECEnv):
            possible_agents = ("agent_0",)

        return Bare()

    for make in (take_turns, have_no_metadata):
        with pytest.raises(ConfigError, match="act in turns"):
            make_vec(make)


def test_a_wrong_number_or_name():
    with pytest.raises(ConfigError, match=r"multiple of 4, got 6: set it to 4 or 8"):
        make_vec(Hiding, 6)
    with pytest.raises(UnknownNameError, match=r"neither `parallel_env` nor `env`"):
        make_vec("pettingzoo:tests.attempts")
    with pytest.raises(UnknownNameError, match=r"there is no module 'tests\.nowhere'"):
        make_vec("pettingzoo:tests.nowhere")
    with pytest.raises(ConfigError, match="a single environment is needed"):
        make_env(Hiding)


def test_agents_with_other_spaces():
    class Uneven(Hiding):
        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(3 + (agent == "agent_2"))

    with pytest.raises(SpaceError, match=r"all agents must have the spaces of 'agent_0'"):
        make_vec(Uneven)


def check_failure(game: type[Hiding], match: str, kind: type[Exception] = EnvironmentFailure):
    envs = make_vec(game)
    with pytest.raises(kind, match=match):
        play(envs, 12)


def test_failures_name_agent_and_step():
    class Raises(Hiding):
        def step(self, actions: Any) -> tuple:
            if self.steps == 3:
                raise RuntimeError("a wall")
            return super().step(actions)

    check_failure(Raises, r"episode 0, step 3: `step` raised.*a wall")

    class Forgets(Hiding):
        def step(self, actions: Any) -> tuple:
            result = super().step(actions)
            result[1].pop("agent_2")
            return result

    check_failure(Forgets, r"environment 2.*agent 'agent_2', which was alive")

    class Renames(Hiding):
        def reset(self, seed: Any = None, options: Any = None) -> tuple:
            observations, infos = super().reset(seed, options)
            return {**observations, "zoe": observations["agent_0"]}, infos

    check_failure(Renames, r"agents must be among `possible_agents`.*got 'zoe'")

    class Intrudes(Hiding):
        def reset(self, seed: Any = None, options: Any = None) -> tuple:
            result = super().reset(seed, options)
            self.agents.append("zoe")
            return result

    check_failure(Intrudes, r"step 0: agents must be among `possible_agents`.*got 'zoe'")

    class Leaves(Hiding):
        """All agents leave in the first step, without a flag."""

        def step(self, actions: Any) -> tuple:
            result = super().step(actions)
            self.agents = []
            return result

    check_failure(Leaves, r"step 0: agent 'agent_0': .* set a flag when it leaves")

    class Lists(Hiding):
        def step(self, actions: Any) -> tuple:
            observations, *others = super().step(actions)
            return list(observations.values()), *others

    check_failure(Lists, "the observations must be a dictionary")

    class Forbids(Hiding):
        def __init__(self) -> None:
            super().__init__(has_masks=True)

        def observe(self, agent: str) -> Any:
            obs = super().observe(agent)
            return {**obs, "action_mask": obs["action_mask"] * (self.steps < 1)}

    envs = make_vec(EnvSpec(Forbids, action_masks=True))
    envs.reset()
    with pytest.raises(MaskError, match=r"agent 'agent_0': `action_mask` must allow an action"):
        envs.step(np.zeros(4, np.int64))


def test_closing_closes_every_game():
    games: list[Any] = []

    class Closes(Matching):
        num_closed = 0

        def close(self) -> None:
            self.num_closed += 1

    def make() -> Closes:
        games.append(Closes())
        return games[-1]

    envs = make_vec(make, 4)
    envs.close()
    envs.close()
    assert [game.num_closed for game in games] == [1, 1]
