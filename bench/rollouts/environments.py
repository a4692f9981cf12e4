"""Environments with configurable durations of steps and resets, and a ledger of actual durations.

They sleep, so that two dozen workers run on two cores like on two dozen.
"""

from __future__ import annotations

import mmap
import os
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

# Words of an environment's ledger: steps, their seconds, resets, their seconds, and the start time
# of a current sleep (0: none).
STEPS, STEP_S, RESETS, RESET_S, SINCE = range(5)
_SIZE = 8 * 5
# Ids of the environments.
UNEVEN, IDLE, CARTPOLE = f"{__name__}:Uneven", f"{__name__}:Idle", "CartPole-v1"
NOISE_IMAGES = f"{__name__}:Seen"


class Uneven(gymnasium.Env[Any, Any]):
    """An environment that sleeps in each step, usually briefly and sometimes longer.

    Args:
        fast_s: seconds of a usual step.
        slow_s: seconds of a slow step.
        slow_share: probability of a slow step.
        std_s: standard deviation of a usual step, normal and clipped at 0.
        end_share: probability that a step ends the episode.
        reset_s: seconds of a reset, except the first one.
        reset_std_s: standard deviation of a reset, normal and clipped at 0.
        ledger: directory for the ledger, or None.
    """

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(
        self,
        fast_s: float = 0.003,
        slow_s: float = 0.1,
        slow_share: float = 0.1,
        std_s: float = 0.0,
        end_share: float = 0.0,
        reset_s: float = 0.0,
        reset_std_s: float = 0.0,
        ledger: str | None = None,
    ) -> None:
        self._law = fast_s, std_s
        self._slow_s, self._slow_share = slow_s, slow_share
        self._end_share = end_share
        self._reset_law = reset_s, reset_std_s
        self._has_begun = False
        self._words = memoryview(bytearray(_SIZE)).cast("d")
        if ledger is not None:
            path = Path(ledger) / f"{os.getpid()}-{uuid.uuid4().hex}"
            path.write_bytes(bytes(_SIZE))
            with path.open("r+b") as file:
                self._words = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("d")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Sleep and start an episode."""
        super().reset(seed=seed)
        if self._has_begun:
            self._sleep(self._draw(*self._reset_law), RESETS)
        self._has_begun = True
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        rng = self.np_random
        is_slow = rng.random() < self._slow_share
        self._sleep(self._slow_s if is_slow else self._draw(*self._law), STEPS)
        return self._obs(), 1.0, bool(rng.random() < self._end_share), False, {}

    def _draw(self, mean: float, std: float) -> float:
        return max(0.0, float(self.np_random.normal(mean, std))) if std else mean

    def _sleep(self, seconds: float, word: int) -> None:
        words = self._words
        words[SINCE] = start_s = time.monotonic()
        if seconds > 0:
            time.sleep(seconds)
        words[word + 1] += time.monotonic() - start_s
        words[word] += 1
        words[SINCE] = 0.0

    def _obs(self) -> Any:
        return self.np_random.random(4, np.float32)


class Idle(gymnasium.Env[Any, Any]):
    """An environment that does nothing."""

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)
    _obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return constants."""
        return self._obs, {}

    def step(self, action: Any) -> Any:
        """Return constants."""
        return self._obs, 0.0, False, False, {}


class NoiseImages(gymnasium.Env[Any, Any]):
    """An environment that sleeps 5 ms in each step and returns an image of noise."""

    observation_space = Box(0, 255, (84, 84, 4), np.uint8)
    action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draw the images."""
        super().reset(seed=seed)
        self._images = self.np_random.integers(0, 256, (16, 84, 84, 4), np.uint8)
        return self._images[0], {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        time.sleep(0.005)
        return self._images[self.np_random.integers(16)], 0.0, False, False, {}


class SleepTotals(NamedTuple):
    """Totals over the environments of a ledger."""

    steps: float
    step_s: float
    resets: float
    reset_s: float
    unfinished_s: float
    """Seconds of sleeps that have not ended."""

    def since(self, earlier: SleepTotals) -> SleepTotals:
        """Return the difference."""
        return SleepTotals(*(new - old for new, old in zip(self, earlier, strict=True)))

    @property
    def busy_s(self) -> float:
        """Seconds of environments in steps and resets."""
        return self.step_s + self.reset_s + self.unfinished_s


def read_ledger(directory: str) -> SleepTotals:
    """Return the current totals of a ledger."""
    now, total = time.monotonic(), np.zeros(5)
    for path in Path(directory).iterdir():
        content = path.read_bytes()
        if len(content) == _SIZE:  # else it is incomplete
            words = np.frombuffer(content, np.float64).copy()
            words[SINCE] = now - words[SINCE] if words[SINCE] else 0.0
            total += words
    return SleepTotals(*total.tolist())
