"""Environments with predictable transitions, and some that fail on purpose.

Importing the module registers `ToyCounting-v0`, so that `module:Id` has something to import.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Observe (number, episode, step), which determine the lengths and ends of episodes.

    An episode has `episode_length(number, episode)` steps. It ends alternately by termination,
    truncation or both.
    """

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.episode = -1
        self.steps = 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.num_closed = 0

    def observe(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple:
        self.actions.append(action)
        self.steps += 1
        reward = 0.25 * int(action) + self.steps + 10 * self.episode  # exact in float32
        is_last = self.steps >= episode_length(self.number, self.episode)
        kind = (self.number + self.episode) % 3
        return self.observe(), reward, is_last and kind != 1, is_last and kind != 0, {}

    def close(self) -> None:
        self.num_closed += 1


def episode_length(number: int, episode: int) -> int:
    """Return a length of 1 … 5 steps."""
    return 1 + (3 * number + 2 * episode) % 5


def choose(obs: np.ndarray) -> np.ndarray:
    """Return an action for each row, computed from the observation."""
    return (obs @ np.array([1, 2, 1], np.float32)).astype(np.int64) % 3


def numbered(first: int = 0) -> Callable[..., CountingEnv]:
    """Return a factory whose environments are numbered from `first`."""
    numbers = itertools.count(first)

    def make(**kwargs: Any) -> CountingEnv:
        return CountingEnv(next(numbers), **kwargs)

    return make


def counting(**kwargs: Any) -> CountingEnv:
    """Return a counting environment (a factory for `module:factory`)."""
    return CountingEnv(**kwargs)


class Factories:
    """A class with a factory, for `module:Class.factory`."""

    counting = staticmethod(counting)


NOT_A_FACTORY = 3


class FailingEnv(gymnasium.Env):
    """Stay in place for `at` steps of every episode, then fail as `failure` names.

    Args:
        failure: "raise", "nan", "inf", "shape", "broadcast", "dtype", "ragged", "list", "four",
            "none", "reward_none", "reward_array", "reward_text" or "reward_nan"; or "reset_raise",
            "reset_nan", "reset_inf", "reset_shape" or "reset_bare", from the second reset on.
        at: the step that fails, from 0.
        episode_length: number of steps until truncation.
    """

    observation_space = spaces.Box(-10, 10, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, failure: str = "raise", at: int = 3, episode_length: int = 1000) -> None:
        self.failure, self.at, self.episode_length = failure, at, episode_length
        self.steps = self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.episode += 1
        obs = np.zeros(4, np.float32)
        if self.episode < 2 or not self.failure.startswith("reset_"):
            return obs, {}
        kind = self.failure.removeprefix("reset_")
        if kind == "bare":
            return obs
        return self._spoil(kind, obs), {}

    def step(self, action: Any) -> Any:
        obs, reward = np.zeros(4, np.float32), 1.0
        result: tuple = (obs, reward, False, self.steps + 1 >= self.episode_length, {})
        if self.steps == self.at:
            if self.failure == "four":
                return obs, reward, False, {}
            if self.failure == "none":
                return None
            rewards = {
                "reward_none": None,
                "reward_array": np.ones(3),
                "reward_text": "1",
                "reward_nan": float("nan"),
            }
            result = (
                self._spoil(self.failure, obs),
                rewards.get(self.failure, reward),
                *result[2:],
            )
        self.steps += 1
        return result

    @staticmethod
    def _spoil(kind: str, obs: np.ndarray) -> Any:
        if kind == "raise":
            raise ValueError("the simulator is broken")
        if kind in ("nan", "inf"):
            obs[2] = float(kind)
        return {
            "shape": np.zeros(3, np.float32),
            "broadcast": np.float32(1.0),
            "dtype": np.array(["a", "b", "c", "d"], object),
            "list": [0.0, 0.0, 0.0, 0.0],
            "ragged": [0.0, [0.0]],
        }.get(kind, obs)


def raising(at: int = 3) -> FailingEnv:
    """Return an environment that raises at step `at`."""
    return FailingEnv("raise", at)


class SpaceEnv(gymnasium.Env):
    """Observe samples of a space, and record observations and actions."""

    def __init__(self, obs_space: spaces.Space, action_space: spaces.Space | None = None) -> None:
        self.observation_space = obs_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.observations: list[Any] = []
        self.actions: list[Any] = []

    def _sample(self) -> Any:
        self.observations.append(self.observation_space.sample())
        return self.observations[-1]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._sample(), {}

    def step(self, action: Any) -> tuple:
        self.actions.append(action)
        return self._sample(), 1.0, False, False, {}


if "ToyCounting-v0" not in gymnasium.registry:
    gymnasium.register("ToyCounting-v0", entry_point=CountingEnv, max_episode_steps=3)
