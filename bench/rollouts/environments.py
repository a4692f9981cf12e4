"""Environments whose steps and resets take a time of their own, and what they really took.

They sleep, so that two dozen workers run on two cores as they would on two dozen.
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

# Words of an environment's ledger: steps, seconds of them, resets, seconds of them, and since when
# a sleep is going on (0: none is).
STEPS, STEP_S, RESETS, RESET_S, SINCE = range(5)
_SIZE = 8 * 5
# What the environments are asked for by.
UNEVEN, IDLE, CARTPOLE = f"{__name__}:Uneven", f"{__name__}:Idle", "CartPole-v1"
SEEN = f"{__name__}:Seen"


class Uneven(gymnasium.Env[Any, Any]):
    """Sleeps in each step: mostly a short time, now and then a long one.

    Args:
        fast_s: seconds of a usual step.
        slow_s: of a slow one.
        slow_share: how many are slow, each independently.
        std_s: standard deviation of a usual step; normal, cut off at 0.
        end_share: how many steps end the episode, each independently.
        reset_s: seconds of a reset, but for the first one.
        reset_std_s: its standard deviation, likewise.
        ledger: a directory to keep accounts in; None: none are kept.
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
        """Sleep, and begin an episode."""
        super().reset(seed=seed)
        if self._has_begun:
            self._sleep(self._drawn(*self._reset_law), RESETS)
        self._has_begun = True
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        rng = self.np_random
        is_slow = rng.random() < self._slow_share
        self._sleep(self._slow_s if is_slow else self._drawn(*self._law), STEPS)
        return self._obs(), 1.0, bool(rng.random() < self._end_share), False, {}

    def _drawn(self, mean: float, std: float) -> float:
        return max(0.0, float(self.np_random.normal(mean, std))) if std else mean

    def _sleep(self, seconds: float, what: int) -> None:
        words = self._words
        words[SINCE] = began = time.monotonic()
        if seconds > 0:
            time.sleep(seconds)
        words[what + 1] += time.monotonic() - began
        words[what] += 1
        words[SINCE] = 0.0

    def _obs(self) -> Any:
        return self.np_random.random(4, np.float32)


class Idle(gymnasium.Env[Any, Any]):
    """Does nothing, as fast as it can."""

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Discrete(2)
    _obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Nothing."""
        return self._obs, {}

    def step(self, action: Any) -> Any:
        """Nothing."""
        return self._obs, 0.0, False, False, {}


class Seen(gymnasium.Env[Any, Any]):
    """Sleeps 5 ms in each step, and gives an image of noise."""

    observation_space = Box(0, 255, (84, 84, 4), np.uint8)
    action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Draw the images that there are."""
        super().reset(seed=seed)
        self._images = self.np_random.integers(0, 256, (16, 84, 84, 4), np.uint8)
        return self._images[0], {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        time.sleep(0.005)
        return self._images[self.np_random.integers(16)], 0.0, False, False, {}


class Slept(NamedTuple):
    """What the environments of a ledger did, together."""

    steps: float
    step_s: float
    resets: float
    reset_s: float
    going_on_s: float
    """Of the sleeps that have not ended."""

    def since(self, earlier: Slept) -> Slept:
        """The difference."""
        return Slept(*(new - old for new, old in zip(self, earlier, strict=True)))

    @property
    def busy_s(self) -> float:
        """Environments' seconds in steps and resets."""
        return self.step_s + self.reset_s + self.going_on_s


def read_ledger(directory: str) -> Slept:
    """What the environments did until now."""
    now, total = time.monotonic(), np.zeros(5)
    for path in Path(directory).iterdir():
        content = path.read_bytes()
        if len(content) == _SIZE:  # else it is being made
            words = np.frombuffer(content, np.float64).copy()
            words[SINCE] = now - words[SINCE] if words[SINCE] else 0.0
            total += words
    return Slept(*total.tolist())
