"""Environments that cannot be solved from the current observation alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that reduces the observation to the cart's position and the pole's angle."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[::2]


def positions_of_cartpole(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return CartPole-v1 without velocities."""
    return Positions(gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs))


class TMaze(gymnasium.Env[Any, Any]):
    """A corridor with a sign at the start that shows the right turn at the end.

    After Bakker 2001, "Reinforcement Learning with Long Short-Term Memory". The observation has
    three bits: 011 or 110 at the start, 101 in the corridor, 010 at the junction. The actions are
    north, south, east and west. The turn that the sign shows earns 4, the other turn −0.1, and
    standing still −0.1.

    Args:
        length: steps from the start to the junction.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._length = length
        self._place = self._is_north = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = 0, 0
        self._is_north = int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        north, south, east, west = range(4)
        self._steps += 1
        truncated = self._steps >= 10 * self._length
        if self._place == self._length and action in (north, south):
            is_right = (action == north) == bool(self._is_north)
            return self._observation(), 4.0 if is_right else -0.1, True, False, {}
        before = self._place
        if action == east:
            self._place = min(self._place + 1, self._length)
        elif action == west:
            self._place = max(self._place - 1, 0)
        reward = -0.1 if self._place == before else 0.0
        return self._observation(), reward, False, truncated, {}

    def _observation(self) -> Any:
        if self._place == 0:
            bits = (0, 1, 1) if self._is_north else (1, 1, 0)
        else:
            bits = (0, 1, 0) if self._place == self._length else (1, 0, 1)
        return np.array(bits, np.float32)


class AnglesOfPendulum(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Pendulum-v1 without its velocity: cosine and sine of the angle."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(gymnasium.make("Pendulum-v1", disable_env_checker=True, **kwargs))
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[:2]


class Recall(gymnasium.Env[Any, Any]):
    """A sign in the first step of an episode, to be named in its last step.

    The observation is the sign, 1 or −1, and after the first step 0; and whether the step is the
    last. The right action in the last step earns 1, the wrong one −1. Other actions earn nothing.

    Args:
        length: steps of an episode.
    """

    def __init__(self, length: int = 8) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._sign = 0, int(self.np_random.integers(2)) * 2 - 1
        return np.array([self._sign, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        has_ended = self._step == self._length
        reward = float(self._sign if action else -self._sign) if has_ended else 0.0
        is_last = self._step == self._length - 1
        return np.array([0.0, is_last], np.float32), reward, has_ended, False, {}
