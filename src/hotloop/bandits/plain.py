"""Agents and environments of a user's own in plain Python, vectorised over runs.

They run at NumPy's speed: some tens of microseconds a step, whatever the number of runs.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hotloop.bandits.described import whole
from hotloop.bandits.environments import MAX_ARMS
from hotloop.bandits.mistakes import arm_error, reward_error
from hotloop.errors import BanditError


class BanditSpeedWarning(UserWarning):
    """Something runs much slower than it could."""


@dataclass(frozen=True)
class _Plain:
    """A user's object, and its names."""

    wrapped: Any

    @property
    def name(self) -> str:
        """Its own name, or its class's."""
        return str(getattr(self.wrapped, "name", type(self.wrapped).__name__))

    @property
    def label(self) -> str:
        """A short text for a legend."""
        return str(getattr(self.wrapped, "label", self.name))

    def describe(self) -> dict[str, Any]:
        """Its name."""
        return {"name": self.name, "own": "plain"}


@dataclass(frozen=True)
class PlainAgent(_Plain):
    """An agent in plain Python, vectorised over runs.

    Attributes:
        wrapped: the user's object, with `start(num_runs, num_arms, rng)`, `choose(step)` → int
            (num_runs,) and `update(step, arm, reward)`.
    """

    methods: ClassVar[tuple[str, ...]] = ("start", "choose", "update")

    def choose(self, step: int, num_runs: int, num_arms: int, first_run: int = 0) -> Any:
        """Its arms for one step, int32, checked.

        Raises:
            BanditError: they are none, or out of range.
        """
        arms = np.asarray(self.wrapped.choose(step))
        if arms.shape != (num_runs,) or arms.dtype.kind not in "iu":
            raise BanditError(
                f"`choose` of agent '{self.name}' must give whole numbers of shape ({num_runs},), "
                f"an arm for each run, got {arms.dtype} {arms.shape} at step {step}"
            )
        wrong = (arms < 0) | (arms >= num_arms)
        if wrong.any():
            raise arm_error(
                self.name, num_arms, int(arms[wrong][0]), first_run + int(wrong.argmax()), step
            )
        return arms.astype(np.int32)


@dataclass(frozen=True)
class PlainEnvironment(_Plain):
    """An environment in plain Python, vectorised over runs.

    Attributes:
        wrapped: the user's object, with `num_arms`, `start(num_runs, rng)`, `reward(step, arm)` →
            float (num_runs,), and `mean(step)` → (num_runs, num_arms) if it knows true values.
    """

    methods: ClassVar[tuple[str, ...]] = ("start", "reward")
    is_unit: ClassVar[bool] = False
    has_contexts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole("num_arms", getattr(self.wrapped, "num_arms", None), 2, MAX_ARMS, owner=self.name)

    @property
    def num_arms(self) -> int:
        """k."""
        return int(self.wrapped.num_arms)

    def reward(self, step: int, arms: Any, first_run: int = 0) -> Any:
        """Rewards of one step, float32, checked.

        Raises:
            BanditError: they are of another shape, or not finite.
        """
        given = np.asarray(self.wrapped.reward(step, arms))
        if given.shape != arms.shape or given.dtype.kind not in "iufb":
            raise BanditError(
                f"`reward` of environment '{self.name}' must give numbers of shape {arms.shape}, "
                f"got {given.dtype} {given.shape} at step {step}"
            )
        rewards = given.astype(np.float32)
        wrong = ~np.isfinite(rewards)
        if wrong.any():
            run = int(wrong.argmax())
            raise reward_error(
                self.name, float(rewards[run]), first_run + run, step, int(arms[run])
            )
        return rewards

    def values(self, step: int, num_runs: int) -> Any:
        """True values of one step, float32 (num_runs, k), or None if it knows none.

        Raises:
            BanditError: they are of another shape.
        """
        mean = getattr(self.wrapped, "mean", None)
        if mean is None:
            return None
        values = np.asarray(mean(step), np.float32)
        if values.shape != (num_runs, self.num_arms):
            raise BanditError(
                f"`mean` of environment '{self.name}' must give shape {(num_runs, self.num_arms)}, "
                f"got {values.shape} at step {step}"
            )
        return values


def _levels_to_caller() -> int:
    """As `warnings.warn` counts, where this package was called from."""
    package, level = str(Path(__file__).parent), 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def adopted(
    given: Any, known: tuple[type, ...], kind: type[PlainAgent] | type[PlainEnvironment]
) -> Any:
    """What runs: one of ours as it is, a user's plain object wrapped, with a word on its speed.

    Raises:
        BanditError: it is neither.
    """
    if isinstance(given, (*known, kind)):
        return given
    what = "agent" if kind is PlainAgent else "environment"
    missing = [name for name in kind.methods if not callable(getattr(given, name, None))]
    if missing or isinstance(given, type):
        hint = (
            f"its class {given.__name__}: make one" if isinstance(given, type) else repr(given)[:80]
        )
        raise BanditError(
            f"an {what} must be one of hotloop.bandits', a Jitted{what.capitalize()}, or an object "
            f"with the methods {', '.join(kind.methods)}; got {hint}"
        )
    wrapped = kind(given)
    warnings.warn(
        f"{what} '{wrapped.name}' is plain Python and runs at NumPy's speed, some 10 to 100 times "
        "slower "
        f"than a Jitted{what.capitalize()}",
        BanditSpeedWarning,
        stacklevel=_levels_to_caller(),
    )
    return wrapped
