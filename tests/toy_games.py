"""Games of several agents with PettingZoo's parallel interface, and ways to fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Hiding(ParallelEnv):
    """Agents observe (agent, step, lives so far), die, come back and leave.

    Agent k dies in step 2 + k. Agent 1 comes back two steps later. The game ends after `length`
    steps by truncation, or when all are dead. Agent 3 only takes part in every other game, which
    therefore are longer. The mask allows the actions 0 … (step + k) % 3.
    """

    metadata = {"name": "hiding"}  # noqa: RUF012  PettingZoo's attribute

    def __init__(self, num_agents: int = 4, length: int = 9, has_masks: bool = False) -> None:
        self.possible_agents = [f"agent_{k}" for k in range(num_agents)]
        self.length, self.has_masks = length, has_masks
        self.game, self.seeds = -1, []
        self.num_closed = 0

    def observation_space(self, agent: str) -> spaces.Space:
        space = spaces.Box(-100.0, 100.0, (3,), np.float32)
        if not self.has_masks:
            return space
        return spaces.Dict({"observation": space, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> Any:
        k = self.possible_agents.index(agent)
        obs = np.array([k, self.steps, self.lives[agent]], np.float32)
        if not self.has_masks:
            return obs
        mask = (np.arange(3) <= (self.steps + k) % 3).astype(np.int8)
        return {"observation": obs, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple:
        self.seeds.append(seed)
        self.game += 1
        self.steps = 0
        self.lives = dict.fromkeys(self.possible_agents, 1)
        self.agents = list(self.possible_agents)
        if self.game % 2:
            self.agents = self.agents[:3]
        return {agent: self.observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, int]) -> tuple:
        assert set(actions) == set(self.agents)
        self.steps += 1
        ends = {
            agent: self.lives[agent] == 1 and self.steps == 2 + self.possible_agents.index(agent)
            for agent in self.agents
        }
        cuts = dict.fromkeys(self.agents, self.steps >= self.length)
        rewards = {agent: action + 10.0 * self.steps for agent, action in actions.items()}
        infos = {agent: {"steps": self.steps} for agent in self.agents}
        back = [self.possible_agents[1]] if self.steps == 5 else []
        for agent in back:
            self.lives[agent] += 1
        observations = {agent: self.observe(agent) for agent in (*self.agents, *back)}
        self.agents = [x for x in self.agents if not (ends[x] or cuts[x])] + back
        return observations, rewards, ends, cuts, infos


class Matching(ParallelEnv):
    """Two agents see a number each, 0 or 1, and are rewarded if both choose the other's number."""

    metadata = {"name": "matching"}  # noqa: RUF012  PettingZoo's attribute

    def __init__(self, length: int = 8, is_box: bool = False) -> None:
        self.possible_agents = ["left", "right"]
        self.length, self.is_box = length, is_box

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0.0, 1.0, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (1,), np.float32) if self.is_box else spaces.Discrete(2)

    def draw(self) -> dict[str, np.ndarray]:
        self.numbers = self.random.integers(0, 2, 2)
        numbers = np.eye(2, dtype=np.float32)[self.numbers]
        return {"left": numbers.ravel(), "right": numbers[::-1].ravel()}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple:
        self.random = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        return self.draw(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple:
        self.steps += 1
        choices = [
            int(action[0] > 0) if self.is_box else int(action) for action in actions.values()
        ]
        reward = float(choices == self.numbers[::-1].tolist())
        agents, is_last = self.agents, self.steps >= self.length
        self.agents = [] if is_last else agents
        return (
            self.draw(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_last),
            {agent: {} for agent in agents},
        )


class Teams(ParallelEnv):
    """Two red agents and a blue one have different spaces, and red_1 leaves after two steps.

    Each agent is rewarded for an action of 1. `num_steps` counts the steps of all games.
    """

    metadata = {"name": "teams"}  # noqa: RUF012  PettingZoo's attribute
    num_steps = 0

    def __init__(self, length: int = 6) -> None:
        self.possible_agents = ["red_0", "red_1", "blue_0"]
        self.length = length

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-100.0, 100.0, (3 if agent.startswith("red") else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3 if agent.startswith("red") else 2)

    def observe(self, agent: str) -> np.ndarray:
        number = self.possible_agents.index(agent)
        obs = np.array([number, self.steps, self.start], np.float32)
        return obs if agent.startswith("red") else obs[1:]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple:
        self.start, self.steps = np.random.default_rng(seed).integers(0, 9), 0
        self.agents = list(self.possible_agents)
        return {agent: self.observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, int]) -> tuple:
        assert set(actions) == set(self.agents)
        self.steps += 1
        Teams.num_steps += 1
        agents, is_last = self.agents, self.steps == self.length
        ends = {agent: agent == "red_1" and self.steps == 2 for agent in agents}
        self.agents = [] if is_last else [agent for agent in agents if not ends[agent]]
        return (
            {agent: self.observe(agent) for agent in agents},
            {agent: float(action == 1) for agent, action in actions.items()},
            ends,
            dict.fromkeys(agents, is_last),
            {agent: {} for agent in agents},
        )


class MaskedTeams(Teams):
    """Teams whose agents may take one action in each state. Any other one is an error."""

    def allowed(self, agent: str) -> int:
        choices: Any = self.action_space(agent)
        return (self.possible_agents.index(agent) + self.steps + int(self.start)) % int(choices.n)

    def masks(self, agents: Any) -> dict[str, Any]:
        return {
            x: {"action_mask": np.eye(3, dtype=np.int8)[self.allowed(x)][: self.action_space(x).n]}
            for x in agents
        }

    def reset(self, seed: int | None = None, options: Any = None) -> tuple:
        obs, _ = super().reset(seed, options)
        return obs, self.masks(self.agents)

    def step(self, actions: dict[str, int]) -> tuple:
        assert actions == {agent: self.allowed(agent) for agent in self.agents}
        return *super().step(actions)[:4], self.masks(actions)


class FatalTeams(Teams):
    """Kills its process, worker 1, in the 20th step of all its games, once.

    Args:
        directory: the directory of a file that remembers it.
    """

    def __init__(self, directory: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(directory) / "killed"

    def step(self, actions: dict[str, int]) -> tuple:
        is_due = os.environ.get("HOTLOOP_WORKER") == "1" and Teams.num_steps == 19
        if is_due and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def parallel_env(**kwargs: Any) -> Matching:
    """The function of a module that `pettingzoo:module` names."""
    return Matching(**kwargs)


class Nim(AECEnv):
    """Two players take one or two counters in turns. The one who takes the last one wins.

    A player observes the number of counters. The first player wins unless it is a multiple of 3.
    The game is cut after `max_moves` moves.
    """

    metadata = {"name": "nim", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, num_counters: int = 7, max_moves: int = 100) -> None:
        super().__init__()
        self.possible_agents = ["first", "second"]
        self.num_counters, self.max_moves = num_counters, max_moves

    def observation_space(self, agent: str) -> spaces.Space:
        size = self.num_counters + 1
        return spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (size,), np.float32),
                "action_mask": spaces.Box(0, 1, (2,), np.int8),
            }
        )

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        observation = np.eye(self.num_counters + 1, dtype=np.float32)[self.counters]
        mask = np.array([self.counters >= 1, self.counters >= 2], np.int8)
        return {"observation": observation, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        # The number of counters depends on the seed.
        self.counters = self.num_counters - int(np.random.default_rng(seed).integers(2))
        self.num_moves = 0
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert action + 1 <= self.counters
        self.num_moves += 1
        other = "second" if agent == "first" else "first"
        self.counters -= action + 1
        if not self.counters:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
            self._accumulate_rewards()
        elif self.num_moves == self.max_moves:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
