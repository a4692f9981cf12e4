"""Adapters for users' agents and environments in plain Python, vectorized over runs.

A step takes some tens of microseconds, independent of the number of runs.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hotloop.bandits.checked_settings import check_int
from hotloop.bandits.environments import MAX_ARMS
from hotloop.bandits.user_errors import arm_error, reward_error
from hotloop.errors import BanditError


class BanditSpeedWarning(UserWarning):
    """A warning about an agent or environment that could run much faster."""


@dataclass(frozen=True)
class _PythonObject:
    """A user's object with its name and label."""

    role: ClassVar[str]
    wrapped: Any

    @property
    def name(self) -> str:
        return str(getattr(self.wrapped, "name", type(self.wrapped).__name__))

    @property
    def label(self) -> str:
        return str(getattr(self.wrapped, "label", self.name))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "own": "plain"}

    def _checked(
        self, method: str, step: int, returned: Any, kind: str, dtypes: str, shape: tuple[int, ...]
    ) -> Any:
        """Return what a method has returned as an array of this kind and shape."""
        array = np.asarray(returned)
        if array.shape != shape or array.dtype.kind not in dtypes:
            raise BanditError(
                f"`{method}` of {self.role} '{self.name}' must return {kind} of shape {shape}, got "
                f"{array.dtype} {array.shape} at step {step}"
            )
        return array


@dataclass(frozen=True)
class PythonAgent(_PythonObject):
    """An agent in plain Python, vectorized over runs.

    Attributes:
        wrapped: the user's object, with `start(num_runs, num_arms, rng)`, `choose(step)` → int
            (num_runs,) and `update(step, arm, reward)`.
    """

    role: ClassVar[str] = "agent"
    methods: ClassVar[tuple[str, ...]] = ("start", "choose", "update")

    def choose(self, step: int, num_runs: int, num_arms: int, first_run: int = 0) -> Any:
        """Return the checked arms of one step: int32, (num_runs,).

        Raises:
            BanditError: They have another type or shape, or are out of range.
        """
        arms = self._checked(
            "choose", step, self.wrapped.choose(step), "whole numbers", "iu", (num_runs,)
        )
        is_invalid = (arms < 0) | (arms >= num_arms)
        if is_invalid.any():
            raise arm_error(
                self.name,
                num_arms,
                int(arms[is_invalid][0]),
                first_run + int(is_invalid.argmax()),
                step,
            )
        return arms.astype(np.int32)


@dataclass(frozen=True)
class PythonEnvironment(_PythonObject):
    """An environment in plain Python, vectorized over runs.

    Attributes:
        wrapped: the user's object, with `num_arms`, `start(num_runs, rng)`, `reward(step, arm)` →
            float (num_runs,), and optionally `mean(step)` → (num_runs, num_arms), its true values.
    """

    role: ClassVar[str] = "environment"
    methods: ClassVar[tuple[str, ...]] = ("start", "reward")
    has_unit_rewards: ClassVar[bool] = False
    has_contexts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int("num_arms", getattr(self.wrapped, "num_arms", None), 2, MAX_ARMS, owner=self.name)

    @property
    def num_arms(self) -> int:
        """Number k of arms."""
        return int(self.wrapped.num_arms)

    def reward(self, step: int, arms: Any, first_run: int = 0) -> Any:
        """Return the checked rewards of one step: float32, (num_runs,).

        Raises:
            BanditError: They have another type or shape, or are not finite.
        """
        returned = self.wrapped.reward(step, arms)
        rewards = self._checked("reward", step, returned, "numbers", "iufb", arms.shape)
        rewards = rewards.astype(np.float32)
        is_invalid = ~np.isfinite(rewards)
        if is_invalid.any():
            run = int(is_invalid.argmax())
            raise reward_error(
                self.name, float(rewards[run]), first_run + run, step, int(arms[run])
            )
        return rewards

    def true_values(self, step: int, num_runs: int) -> Any:
        """Return the true values of one step: float32, (num_runs, k). None without a `mean`.

        Raises:
            BanditError: They have another shape.
        """
        mean = getattr(self.wrapped, "mean", None)
        if mean is None:
            return None
        shape = num_runs, self.num_arms
        return self._checked("mean", step, mean(step), "numbers", "iufb", shape).astype(np.float32)


def _caller_stacklevel() -> int:
    """Return the `stacklevel` for `warnings.warn` of the line that called this package."""
    package, level = str(Path(__file__).parent), 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def adapt(
    player: Any, known_types: tuple[type, ...], adapter: type[PythonAgent] | type[PythonEnvironment]
) -> Any:
    """Return a known player unchanged, or a user's object in an adapter, with a speed warning.

    Raises:
        BanditError: `player` is neither.
    """
    if isinstance(player, (*known_types, adapter)):
        return player
    role = adapter.role
    missing = [name for name in adapter.methods if not callable(getattr(player, name, None))]
    if missing or isinstance(player, type):
        hint = (
            f"the class {player.__name__}: pass an instance"
            if isinstance(player, type)
            else repr(player)[:80]
        )
        raise BanditError(
            f"the {role} must be one from hotloop.bandits, a Jitted{role.capitalize()}, or an "
            f"object with the methods {', '.join(adapter.methods)}, got {hint}"
        )
    wrapped = adapter(player)
    warnings.warn(
        f"{role} '{wrapped.name}' is plain Python, which runs some 10 to 100 times slower than a "
        f"Jitted{role.capitalize()}",
        BanditSpeedWarning,
        stacklevel=_caller_stacklevel(),
    )
    return wrapped
