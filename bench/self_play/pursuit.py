"""A game of two teams: two hunters catch two runners on a torus of 7 × 7 cells."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

SIZE, LENGTH = 7, 30
_SLIP = 0.25  # probability that a runner does not move
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
_HALF = SIZE // 2


class Pursuit(ParallelEnv):
    """All agents see where the others are, and move to a neighboring cell or stay.

    A runner in a hunter's cell is caught: each hunter is rewarded by 1, each runner by −1, and the
    caught one continues in a random cell. Runners slip in a quarter of their moves.
    """

    metadata = {"name": "pursuit"}  # noqa: RUF012  PettingZoo's attribute

    def __init__(self) -> None:
        self.possible_agents = ["hunter_0", "hunter_1", "runner_0", "runner_1"]

    def observation_space(self, agent: str) -> gymnasium.Space:
        """See PettingZoo."""
        return gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        """See PettingZoo."""
        return gymnasium.spaces.Discrete(len(_MOVES))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """See PettingZoo."""
        self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.cells = [self._draw() for _ in self.agents]
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        """See PettingZoo."""
        slips = self.rng.random(2).tolist()
        for k, action in enumerate(actions.values()):
            if k < 2 or slips[k - 2] >= _SLIP:
                (x, y), (dx, dy) = self.cells[k], _MOVES[action]
                self.cells[k] = ((x + dx) % SIZE, (y + dy) % SIZE)
        caught = [k for k in (2, 3) if self.cells[k] in self.cells[:2]]
        for k in caught:
            self.cells[k] = self._draw()
        self.steps += 1
        agents, is_last = self.agents, self.steps == LENGTH
        result = (
            self._observe(),
            {agent: float(len(caught)) * (1 if k < 2 else -1) for k, agent in enumerate(agents)},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_last),
            {agent: {} for agent in agents},
        )
        if is_last:
            self.agents = []
        return result

    def _draw(self) -> tuple[int, int]:
        x, y = self.rng.integers(0, SIZE, 2).tolist()
        return x, y

    def _observe(self) -> dict[str, np.ndarray]:
        observations = {}
        for k, agent in enumerate(self.agents):
            x, y = self.cells[k]
            # The teammate first, then the other team.
            others = [self.cells[i] for i in (k ^ 1, *((2, 3) if k < 2 else (0, 1)))]
            values = [
                ((a - b + _HALF) % SIZE - _HALF) / _HALF
                for cell in others
                for a, b in zip(cell, (x, y), strict=True)
            ]
            observations[agent] = np.array(values, np.float32)
        return observations
