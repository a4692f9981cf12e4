"""Return and length of an episode, as the environment itself records them.

Rewards that reach hotloop may be normalized or clipped by a wrapper of the environment. If a
`RecordEpisodeStatistics` inside of that wrapper records the raw return, that return counts:
`info["episode"]["r"]` and `["l"]` at the last step. A wrapper outside of it may end an episode that
still runs for `RecordEpisodeStatistics`. Then the running totals are read from its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


class EpisodeTotals:
    """Reader of the totals that one environment records of its episodes.

    Args:
        env: a single environment. None: only `info` is read.
    """

    def __init__(self, env: Any = None) -> None:
        self._recorder = _find_recorder(env)
        self._is_reported = False
        self._length = 0

    def at_end(
        self, info: Mapping[str, Any], summed_return: float, num_steps: int
    ) -> tuple[float, int]:
        """Return an episode's undiscounted return and length. Call it before the next reset.

        Args:
            info: `info` of the last step.
            summed_return: the sum of rewards, used if the environment records no return.
            num_steps: the number of steps, used if the environment records no length.
        """
        record = info.get("episode")
        self._is_reported = isinstance(record, Mapping) and "r" in record
        if not self._is_reported and self._recorder is not None:
            recorder = self._recorder
            record = {"r": recorder.episode_returns, "l": recorder.episode_lengths}
            self._length = recorder.episode_lengths
        if not isinstance(record, Mapping):
            return summed_return, num_steps
        total, length = _number(record.get("r")), _number(record.get("l"))
        return (
            summed_return if total is None else total,
            num_steps if length is None else int(length),
        )

    def is_continued(self) -> bool:
        """Return whether the reset after `at_end` continued the same episode, such as a game.

        A wrapper that ends episodes at the loss of a life makes a step instead of a reset.
        """
        if self._is_reported or self._recorder is None:
            return False
        return self._recorder.episode_lengths > self._length


def _find_recorder(env: Any) -> Any:
    """Return the outermost `RecordEpisodeStatistics` around an environment, or None."""
    from gymnasium import Wrapper
    from gymnasium.wrappers import RecordEpisodeStatistics

    while isinstance(env, Wrapper):
        if isinstance(env, RecordEpisodeStatistics):
            return env
        env = env.env
    return None


def _number(value: Any) -> float | None:
    """Return a finite number, or an array of one, as a float; None for any other value."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = float(array.reshape(()))
    return number if math.isfinite(number) else None
