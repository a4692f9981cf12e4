"""Interface of the contenders in a comparison of replay buffers, and their data.

All contain the same transitions, with HalfCheetah's shapes, and have the same four operations: draw
and gather a batch, convert it to torch tensors, write new weights, add a transition.
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
    """A stream of transitions with a period of 100,000, in episodes of 1,000 steps."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        states = rng.standard_normal((PERIOD, OBS), np.float32)
        following = np.roll(states, -1, axis=0)
        ends = slice(EPISODE - 1, None, EPISODE)  # resets follow these steps
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
        """Return transitions start … stop − 1."""
        index = np.arange(start, stop) % PERIOD
        return {name: values[index] for name, values in self.fields.items()}

    def chunks(self, size: int) -> Iterator[tuple[slice, Fields]]:
        """Yield transitions 0 … size − 1 in chunks."""
        for start in range(0, size, CHUNK):
            stop = min(start + CHUNK, size)
            yield slice(start, stop), self.rows(start, stop)

    def transition(self, number: int) -> dict[str, Any]:
        """Return transition `number` in the form that an environment returns."""
        number %= PERIOD
        values = {name: values[number] for name, values in self.fields.items()}
        return values | {
            "reward": float(values["reward"]),
            "terminated": bool(values["terminated"]),
            "truncated": bool(values["truncated"]),
        }


class Weights:
    """A generator of weights.

    `returns` resemble those of HalfCheetah and may be negative. `long_tail` is lognormal, with a
    maximum about a hundred times the mean. `td` resembles absolute TD errors.
    """

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(seed)

    def draw(self, count: int) -> Floats:
        """Return new weights."""
        if self.kind == "returns":
            return self.rng.normal(2_000.0, 1_500.0, count)
        if self.kind == "long_tail":
            return self.rng.lognormal(0.0, 1.5, count)
        return self.rng.exponential(1.0, count)


class Contender:
    """Interface of a contender. `weights` is None if entries have no weights."""

    weights: Weights | None = None
    next_number: int

    def sample(self) -> Any:
        """Draw and gather a batch of 256."""
        raise NotImplementedError

    def tensors(self, batch: Any) -> tuple[Any, ...]:
        """Return obs, action, reward, next_obs, terminated and importance (or None) as tensors."""
        raise NotImplementedError

    def update(self, batch: Any, weight: npt.NDArray[Any]) -> None:
        """Write new weights for a batch."""

    def add(self, step: dict[str, Any], weight: float) -> None:
        """Add one transition."""
        raise NotImplementedError

    def prepare_add(self, step: dict[str, Any], weight: float) -> Callable[[], None]:
        """Return a call of `add` with minimal overhead."""
        return functools.partial(self.add, step, weight)


def fields() -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return HalfCheetah's fields in the form that hotloop's buffer expects."""
    return {
        "obs": ((OBS,), np.float32),
        "action": ((ACTION,), np.float32),
        "reward": ((), np.float32),
        "next_obs": ((OBS,), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }
