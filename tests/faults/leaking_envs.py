"""Environments that repeat their arguments and secrets of the process in errors."""

from __future__ import annotations

import os
from typing import Any

import gymnasium


class _Leaking(gymnasium.Wrapper):
    """Logs in at each step, and fails at a chosen one as a client of a server would."""

    def __init__(self, env: Any, api_key: str, fails_at: int) -> None:
        super().__init__(env)
        self._api_key, self._fails_at, self._num_steps = api_key, fails_at, 0

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        if self._num_steps == self._fails_at:
            url = f"https://user:{os.environ['MLFLOW_TRACKING_PASSWORD']}@example.org"
            raise ConnectionError(f"{url} refused the token {os.environ['HF_TOKEN']}")
        return super().step(action)


def make(api_key: str = "", fails_at: int = 0, *, max_steps: int = 20) -> gymnasium.Env:
    """Make CartPole, or fail with the arguments if `fails_at` is negative."""
    if fails_at < 0:
        raise ValueError(f"the server refused the token {os.environ['HF_TOKEN']}")
    return _Leaking(gymnasium.make("CartPole-v1", max_episode_steps=max_steps), api_key, fails_at)
