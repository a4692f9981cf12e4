"""Games of several agents, played agent by agent: the obvious twin of PettingZoo's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One transition of one agent."""

    obs: list[float]
    reward: float
    terminated: bool
    truncated: bool
    next_obs: list[float]


def play_games(games: Sequence[Any], num_steps: int) -> tuple[list[list[Step]], list[tuple]]:
    """Play games side by side, where each agent takes the action (t + row) % 3.

    Returns:
        The transitions of each agent, and the episodes in the order of their ends: the agent's row,
        the index of the game, its return and its length.
    """
    rows: list[list[Step]] = []
    ends: list[tuple[int, tuple]] = []
    for g, game in enumerate(games):
        first = g * len(game.possible_agents)
        transitions: dict[str, list[Step]] = {agent: [] for agent in game.possible_agents}
        number, begins = -1, dict.fromkeys(game.possible_agents, 0)
        current: dict[str, Any] = {}
        game.agents = []
        for t in range(num_steps):
            if not game.agents:
                number += 1
                current = game.reset()[0]
                begins = {agent: len(transitions[agent]) for agent in game.possible_agents}
            actions = {
                agent: (t + first + game.possible_agents.index(agent)) % 3 for agent in game.agents
            }
            observations, rewards, terminated, truncated, _ = game.step(actions)
            for agent in actions:
                transitions[agent].append(
                    Step(
                        current[agent].tolist(),
                        rewards[agent],
                        terminated[agent],
                        truncated[agent],
                        observations[agent].tolist(),
                    )
                )
            current = observations
            if not game.agents:
                for k, agent in enumerate(game.possible_agents):
                    steps = transitions[agent][begins[agent] :]
                    if steps:
                        total = sum(step.reward for step in steps)
                        ends.append((t, (first + k, number, total, len(steps))))
        rows += transitions.values()
    return rows, [end for _, end in sorted(ends)]
