"""Contenders in a comparison of replay buffers: their transitions and weights, what each can do.

All hold the same transitions, sized like HalfCheetah's, and do the same four things: draw and
gather a batch, hand it over as torch tensors, write new weights for it, take one more transition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.replay.post import Floats

OBS, ACTION, BATCH = 17, 6, 256
PERIOD, EPISODE, CHUNK = 100_000, 1_000, 100_000
Fields = dict[str, npt.NDArray[Any]]


class Steps:
    """A stream of transitions, the same after each 100,000; an episode is 1,000 steps."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        states = rng.standard_normal((PERIOD, OBS), np.float32)
        following = np.roll(states, -1, axis=0)
        ends = slice(EPISODE - 1, None, EPISODE)  # what follows these is a reset
        following[ends] = rng.standard_normal(following[ends].shape, np.float32)
        self.fields: Fields = {
            "obs": states,
            "action": rng.uniform(-1, 1, (PERIOD, ACTION)).astype(np.float32),
            "reward": rng.standard_normal(PERIOD, np.float32),
            "next_obs": following,
            "terminated": np.zeros(PERIOD, np.bool_),
            "truncated": np.zeros(PERIOD, np.bool_),
        }
        self.fields["truncated"][ends] = True

    def rows(self, start: int, stop: int) -> Fields:
        """Transitions start … stop − 1."""
        wanted = np.arange(start, stop) % PERIOD
        return {name: values[wanted] for name, values in self.fields.items()}

    def chunks(self, size: int) -> Iterator[tuple[slice, Fields]]:
        """Transitions 0 … size − 1 in pieces."""
        for start in range(0, size, CHUNK):
            stop = min(start + CHUNK, size)
            yield slice(start, stop), self.rows(start, stop)

    def one(self, number: int) -> dict[str, Any]:
        """Transition `number`, as an environment would hand it out."""
        number %= PERIOD
        values = {name: values[number] for name, values in self.fields.items()}
        return values | {
            "reward": float(values["reward"]),
            "terminated": bool(values["terminated"]),
            "truncated": bool(values["truncated"]),
        }


class Weights:
    """Where weights come from.

    `returns` are like those of HalfCheetah, with negative ones among them; `long_tail` is
    lognormal, its maximum some hundred times its mean; `td` is what absolute TD errors look like.
    """

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(seed)

    def draw(self, count: int) -> Floats:
        """New weights."""
        if self.kind == "returns":
            return self.rng.normal(2_000.0, 1_500.0, count)
        if self.kind == "long_tail":
            return self.rng.lognormal(0.0, 1.5, count)
        return self.rng.exponential(1.0, count)


class Contender:
    """What each of them can do. `weights` is None where entries have none."""

    weights: Weights | None = None
    next_number: int

    def sample(self) -> Any:
        """Draw and gather a batch of 256."""
        raise NotImplementedError

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """obs, action, reward, next_obs, terminated and importance (or None) as tensors."""
        raise NotImplementedError

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write new weights for a batch."""

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Take one more transition."""
        raise NotImplementedError

    def adding(self, step: dict[str, Any], weight: float) -> Callable[[], None]:
        """What does so, with as little of ours around it as can be."""
        return functools.partial(self.add, step, weight)


def fields() -> dict[str, tuple[tuple[int, ...], Any]]:
    """HalfCheetah's fields, as hotloop's buffer wants them declared."""
    return {
        "obs": ((OBS,), np.float32),
        "action": ((ACTION,), np.float32),
        "reward": ((), np.float32),
        "next_obs": ((OBS,), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }
