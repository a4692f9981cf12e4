"""A head for continuous actions: means, and one log standard deviation for all states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.errors import SpaceError
from hotloop.ops.noise import counter_normal
from hotloop.policies.heads.base import Head, Params
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD = "policy.log_std"
# Half widths of bounds that a standard normal distribution explores without scaling.
_NEAR = 0.25, 4.0
# Finite bounds beyond this magnitude count as infinite.
MOST_FAR = 1e15
_LOG_SQRT_2PI = np.float32(0.5 * math.log(2.0 * math.pi))


@dataclass(frozen=True)
class Gaussian(Head):
    """A diagonal Gaussian with the log standard deviation as the parameter `policy.log_std`."""

    meaning = description = "means"
    kind = "box"

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {**shapes, LOG_STD: (self.size,)}

    def acting_params(self, params: Params) -> dict[str, Array]:
        return {"log_std": params[LOG_STD], "std": np.exp(params[LOG_STD])}

    def draw_noise(self, seed: Any, **block: Any) -> Any:
        """Return standard normal numbers, also on a device."""
        return counter_normal(seed, size=self.size, **block)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        return rng.standard_normal(shape, np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        flat = out.reshape(outputs.shape)  # a view, since `out` is one step of a fragment
        np.multiply(noise, params["std"], out=flat)
        np.add(flat, outputs, out=flat)

    def greedy(self, outputs: Array, out: Array) -> None:
        out.reshape(outputs.shape)[...] = outputs

    def log_prob(self, outputs: Array, noise: Array, action: Array, params: Params) -> Array:
        """See `Head`. The noise is the standardized action."""
        per_dimension = 0.5 * np.square(noise) + (params["log_std"] + _LOG_SQRT_2PI)
        return -per_dimension.sum(axis=-1, dtype=np.float32)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs

    def describe_actions(self) -> str:
        is_far, center, half_width = _far_bounds(self.spec)
        if is_far.any():
            k = int(is_far.argmax())
            low, high = center[k] - half_width[k], center[k] + half_width[k]
            return (
                f"actions: {is_far.sum()} of {len(is_far)} numbers are scaled from −1 … 1 to their "
                f"bounds, such as {low:g} … {high:g}"
            )
        bounds = (*self.spec.low, *self.spec.high)
        is_huge = any(MOST_FAR < abs(bound) < math.inf for bound in bounds)
        return f"actions: bounds beyond ±{MOST_FAR:g} count as infinite" if is_huge else ""

    def draw(self, params: Params, outputs: Tensor, noise: Tensor) -> Tensor:
        flat = outputs + params[LOG_STD].exp() * noise
        return flat.view(-1, *self.spec.shape)

    def evaluate(self, params: Params, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        from hotloop.ops import distributions

        return distributions.diagonal_gaussian(outputs, params[LOG_STD], action.flatten(1))


@dataclass(frozen=True)
class ScaledGaussian(Gaussian):
    """A Gaussian of u for actions c + h · u, where the bounds are far from [−1, 1].

    c and h are the center and half the width of these bounds. All other actions are u itself. The
    standard deviation and the density are those of u.
    """

    @cached_property
    def action_scale(self) -> tuple[Array, Array]:
        is_far, center, half_width = _far_bounds(self.spec)
        low, high = (x.astype(np.float32) for x in (center - half_width, center + half_width))
        if (is_far & (low >= high)).any():
            raise SpaceError(
                "different bounds of an action must be different float32 numbers, got "
                f"{list(self.spec.low)} to {list(self.spec.high)}: shift and scale the actions "
                "with `gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)`"
            )
        center = np.where(is_far, center, 0.0).astype(np.float32)
        return center, np.where(is_far, half_width, 1.0).astype(np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        super().choose(outputs, noise, out, params)
        self._scale(out, outputs.shape)

    def greedy(self, outputs: Array, out: Array) -> None:
        super().greedy(outputs, out)
        self._scale(out, outputs.shape)

    def _scale(self, out: Array, shape: tuple[int, ...]) -> None:
        center, half_width = self.action_scale
        flat = out.reshape(shape)
        np.multiply(flat, half_width, out=flat)
        np.add(flat, center, out=flat)


def gaussian_for(spec: ActionSpec) -> Gaussian:
    """Return the head for continuous actions with these bounds."""
    return ScaledGaussian() if _far_bounds(spec)[0].any() else Gaussian()


def _far_bounds(spec: ActionSpec) -> tuple[Array, Array, Array]:
    """Return which bounds are finite and far from [−1, 1], their centers and half widths, (A,)."""
    low, high = np.array(spec.low, np.float64), np.array(spec.high, np.float64)
    is_finite = (np.maximum(abs(low), abs(high)) <= MOST_FAR) & (low < high)
    low, high = np.where(is_finite, low, -1.0), np.where(is_finite, high, 1.0)
    center, half_width = (low + high) / 2, (high - low) / 2
    is_near = (_NEAR[0] <= half_width) & (half_width <= _NEAR[1]) & (abs(center) <= half_width)
    return is_finite & ~is_near, center, half_width
