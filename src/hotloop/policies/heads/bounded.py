"""Heads for continuous actions within bounds: tanh of the outputs or of Gaussian samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.ops.noise import counter_normal
from hotloop.policies.heads.base import Head, Params, num_action_values
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor


LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # bounds of a squashed Gaussian, as in CleanRL


@dataclass(frozen=True)
class Bounded(Head):
    """Actions c + h · u, u = tanh(…) of the outputs.

    c and h are the center and half the width of the bounds.
    """

    def check(self) -> None:
        check_bounded(self.spec)

    @cached_property
    def num_actions(self) -> int:
        """Return A."""
        return num_action_values(self.spec)

    @cached_property
    def action_scale(self) -> tuple[Array, Array]:
        low, high = (np.asarray(bound, np.float64) for bound in (self.spec.low, self.spec.high))
        return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        low, high = np.asarray((self.spec.low, self.spec.high), np.float32)
        return low, high

    def greedy(self, outputs: Array, out: Array) -> None:
        self.write(np.tanh(outputs[:, : self.num_actions]), out)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs[:, : self.num_actions].tanh()

    def write(self, unit: Array, out: Array) -> None:
        """Write actions from u, clipped to the bounds because of rounding and noise."""
        (center, half_width), (low, high) = self.action_scale, self._bounds
        flat = out.reshape(unit.shape)
        np.multiply(unit, half_width, out=flat)
        np.add(flat, center, out=flat)
        np.maximum(flat, low, out=flat)
        np.minimum(flat, high, out=flat)


@dataclass(frozen=True)
class SquashedGaussian(Bounded):
    """Outputs are A means and A raw log standard deviations, both before tanh."""

    meaning = "squashed_gaussian"
    description = "means before tanh, and a raw log standard deviation for each"

    @cached_property
    def size(self) -> int:
        return 2 * self.num_actions

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return standard normal numbers."""
        return counter_normal(seed, size=self.num_actions, **block)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        return rng.standard_normal((shape[0], self.num_actions), np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        mean, raw = outputs[:, : self.num_actions], outputs[:, self.num_actions :]
        self.write(np.tanh(mean + np.exp(bounded_log_std(raw)) * noise), out)

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action in [−1, 1], (B, A), and its log π, (B,), from normal noise, (B, A).

        It is the density of u, independent of the bounds of the actions.
        """
        from hotloop.ops.activations import tanh
        from hotloop.ops.distributions import squashed_gaussian

        mean, raw = outputs.chunk(2, dim=-1)
        return squashed_gaussian(mean, bounded_log_std(raw, tanh), noise)


@dataclass(frozen=True)
class Deterministic(Bounded):
    """Outputs are actions before tanh. The noise is added after tanh."""

    meaning = "deterministic"
    description = "actions before tanh"

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return zeros: the policy is deterministic."""
        return np.zeros((block["num_steps"], block["num_envs"], self.size), np.float32)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return zeros: the policy is deterministic."""
        return np.zeros((shape[0], self.size), np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        self.write(np.tanh(outputs) + noise, out)

    def act(self, outputs: Tensor) -> Tensor:
        """Return the action in [−1, 1], (B, A)."""
        from hotloop.ops.activations import tanh

        return tanh(outputs)


def bounded_log_std(raw: Any, tanh: Callable[[Any], Any] = np.tanh) -> Any:
    """Return the log standard deviation, in [−5, 2], from the network's raw outputs.

    Args:
        raw: an array or a tensor of any shape.
        tanh: hyperbolic tangent for the type of `raw`.
    """
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (tanh(raw) + 1.0)


def check_bounded(spec: ActionSpec) -> None:
    """Raise `SpaceError` unless actions are continuous with bounds of finite, positive width."""
    if spec.kind != "box":
        raise SpaceError(
            f"a continuous (box) action space is needed, got a {spec.kind} one: use "
            + ("dqn, sac_discrete or ppo" if spec.kind == "discrete" else "ppo")
        )
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.array(x, np.float64).astype(np.float32) for x in (spec.low, spec.high))
        is_finite = bool(np.isfinite(high - low).all())
    bounds = f"{list(spec.low)} to {list(spec.high)}"
    if not is_finite:
        shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
        raise SpaceError(
            "the bounds of the actions must be finite float32 numbers, since tanh squashes actions "
            f"to them, got {bounds}: set bounds with `gymnasium.wrappers.TransformAction(env, "
            f"lambda action: action, gymnasium.spaces.Box(-1.0, 1.0, {shape}))`, or use ppo"
        )
    if not (low < high).all():
        raise SpaceError(
            "the upper bound of each action must be greater than the lower one, as float32 "
            f"numbers, got {bounds}: leave out actions with only one value, and shift others with "
            "`gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)`"
        )
