"""Checks of values from environments, and errors that name environment, episode and step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from hotloop.envs.spaces import ObsSpec
from hotloop.errors import EnvironmentFailure, NonFiniteStep, ShapeError
from hotloop.types import Array, Fragment

# The largest number that float32 holds, the type of rewards and of networks' inputs.
FLOAT32_MAX = float(np.finfo(np.float32).max)
# From here on, float32 does not hold all integers: its numbers are at least 2 apart.
_COARSE = 2.0**24
_SQUARE_OVERFLOWS = 1e18


def describe_value(value: object) -> str:
    """Return a short description of a value: its type, and its shape and dtype or its length."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sized):
        text = repr(value)
        return text if len(text) <= 60 else f"a {type(value).__name__}"
    return f"a {type(value).__name__} of length {len(value)}"


def as_reward(value: Any) -> float:
    """Return a reward as a Python float, since sums of float32 would lose digits.

    Raises:
        ValueError: the reward is not one real number, or exceeds the range of floats.
    """
    number = _as_number(value)
    if number is None:
        raise ValueError(
            f"the reward must be one number, got {describe_value(value)}: return `float(reward)`"
        )
    try:
        return float(number)
    except OverflowError:
        raise ValueError("the reward is an integer beyond 1e308: scale the rewards down") from None


def as_flag(value: Any, name: str = "the flag") -> bool:
    """Return a flag such as `terminated` as a Python bool.

    Raises:
        ValueError: the flag is neither a bool nor the number 0 or 1.
    """
    number = _as_number(value)
    if number is None or number not in (0, 1):
        raise ValueError(
            f"{name} must be True or False, got {describe_value(value)}: return one bool"
        )
    return bool(number)


def as_rows(values: Any, count: int, name: str, *, are_flags: bool = False) -> Array:
    """Return the rewards or flags of a vector environment as an array, (N,).

    Raises:
        ValueError: they are not N numbers, or a flag is neither True nor False.
    """
    try:
        array = np.asarray(values)
    except Exception:  # ragged lists, and tensors with gradients or of another device
        array = np.empty(0, np.object_)
    if array.shape != (count,) or array.dtype.kind not in "fiub":
        actual = array if array.dtype != np.object_ else values
        raise ValueError(
            f"the {name} must be {count} numbers, got {describe_value(actual)}: return one for "
            "each environment"
        )
    if are_flags and array.dtype != np.bool_:
        is_flag = (array == 0) | (array == 1)
        if not is_flag.all():
            row = int(is_flag.argmin())
            raise ValueError(f"the {name} must be True or False, got {array[row]} in row {row}")
    return array


def check_reset(result: Any) -> Any:
    """Return the result of `reset`, or raise ValueError if it does not have two parts."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise ValueError(
            f"`reset` must return (obs, info), got {describe_value(result)}: return both, "
            "as in Gymnasium's interface"
        )
    return result


def describe_bad_step(result: Any) -> str:
    """Return the problem of a result of `step` that does not have five parts."""
    hint = "return all five, as in Gymnasium's interface"
    if isinstance(result, tuple) and len(result) == 4:
        hint = "split `done` of the old Gym interface into `terminated` and `truncated`"
    return (
        "`step` must return (obs, reward, terminated, truncated, info), "
        f"got {describe_value(result)}: {hint}"
    )


def describe_bad_info(info: Any) -> str:
    """Return the problem of an `info` that is no dict."""
    return f"`info` must be a dict, got {describe_value(info)}: return {{}} if there is nothing"


def has_finite_square(values: Array) -> bool:
    """Return whether float32 numbers are finite, and the sum of their squares too."""
    # This takes a third of the time of `isfinite`, which is too slow for a check of every step.
    # Unlike `dot`, `vdot` does not warn of an overflow.
    return values.dtype != np.float32 or math.isfinite(np.vdot(values, values))


def describe_range(name: str, value: float) -> str:
    """Return the problem of a finite number that float32 does not hold."""
    return (
        f"{name} must lie within ±3.4e38, the range of float32, got {value:g}: scale it down in "
        "the environment"
    )


def warn_of_coarse_numbers(
    env_id: str, spec: ObsSpec, obs: Array, *, first_obs: Array | None = None
) -> None:
    """Warn if observations have numbers so large that float32 does not distinguish neighbors.

    Args:
        env_id: the environment's name in the warning.
        spec: the layout of observations.
        obs: observations, (…, *obs_shape).
        first_obs: earlier observations. Large numbers at their positions are not reported again.
    """
    known = {} if first_obs is None else spec.unflatten(first_obs)
    for name, values in spec.unflatten(obs).items():
        if values.dtype != np.float32:
            continue
        largest = np.abs(values).max(initial=0.0)
        is_known = name in known and np.abs(known[name]).max(initial=0.0) >= _COARSE
        if is_known or not largest >= _COARSE:
            continue
        field = f"the part {name!r} of the observation" if name else "the observation"
        warnings.warn(
            f"{env_id}: {field} has numbers as large as {largest:.3g}. The numbers of float32, in "
            f"which networks compute, are {np.spacing(largest):.3g} apart there, and smaller "
            "differences are lost: subtract a start value in the environment, and scale the result",
            RuntimeWarning,
            stacklevel=3,
        )


def advice_for_non_finite(
    batch: Mapping[str, Any],
    *,
    stored: Mapping[str, Any] | None = None,
    is_scaled: bool = False,
) -> str:
    """Return the advice if an update gave NaN or infinity.

    Args:
        batch: the update's raw batch, arrays by name, empty if it is lost.
        stored: other transitions, if the batch is lost.
        is_scaled: whether the networks receive scaled observations, so that large ones do no harm.
    """
    rows = batch or stored or {}
    obs = rows.get("obs")
    if isinstance(obs, np.ndarray) and obs.dtype.kind == "f" and not is_scaled:
        largest = np.abs(obs).max(initial=0.0)
        if largest >= _COARSE:
            return (
                f"scale the observations, which are as large as {largest:.3g}, in the environment, "
                "or set `normalize_obs`"
            )
    # NaN of a policy would have ended the run earlier, so NaN in the returns is an overflow.
    rewards = rows.get("reward", rows.get("returns", np.zeros(1)))
    if not (np.abs(rewards) < _SQUARE_OVERFLOWS).all():
        return "scale the rewards down in the environment: the square of their sums exceeds float32"
    if not batch:
        return "check the scale of the observations and of the rewards, and lower the learning rate"
    return "lower the learning rate, and check the scale of the rewards"


def _as_number(value: Any) -> bool | int | float | None:
    """Return a real number, or the only element of an array or tensor, None for other values."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, np.generic):
        shape = getattr(value, "shape", None)
        if not isinstance(shape, tuple) or math.prod(shape) != 1 or not hasattr(value, "item"):
            return None
        if value is np.ma.masked:  # its `item` is 0
            return None
    number = float(value) if isinstance(value, np.floating) else value.item()
    return number if isinstance(number, (bool, int, float)) else None


def check_call(env_id: str, action: Array, shape: tuple[int, ...], *, has_begun: bool) -> None:
    """Check that `step` is called with one action per environment, and after `reset`.

    Raises:
        ShapeError: `action` does not have `shape`.
        EnvironmentFailure: `has_begun` is False.
    """
    if getattr(action, "shape", None) != shape:
        raise ShapeError(
            f"`action` must be an array of shape {shape}, got "
            f"{getattr(action, 'shape', None) or describe_value(action)}: pass one action for each "
            "environment"
        )
    if not has_begun:
        raise EnvironmentFailure(f"{env_id}: call `reset` before `step`, and nothing after `close`")


def check_finite(
    fragment: Fragment, spec: ObsSpec, first_step: int = 0, rows: slice = slice(None)
) -> None:
    """Check that the observations and rewards of a fragment's rows contain no NaN or infinity.

    One pass over whole arrays takes 6 µs for 128 steps of 8 CartPoles. A check in every step would
    cost 1.8 µs each.

    Args:
        fragment: the fragment whose `next_obs` and `reward` are checked.
        spec: the layout of observations, to name the field of a value.
        first_step: number of steps of each environment before these rows, for the message.
        rows: the rows to check, by default all.

    Raises:
        NonFiniteStep: a value is not finite. The message names environment, step, field and value.
    """
    for name, values in (("next_obs", fragment.next_obs), ("reward", fragment.reward)):
        if values.dtype.kind != "f":
            continue
        values = values[rows]
        finite = np.isfinite(values)
        if finite.all():
            continue
        step, env, *position = (int(i) for i in np.argwhere(~finite)[0])
        index = spec.element_name(position) if position else ""
        raise NonFiniteStep(
            f"environment {fragment.first_env + env}, step {first_step + step} (counted over all "
            f"its episodes): `{name}{index}` must be finite, got {values[(step, env, *position)]}: "
            "look for a division by zero or a simulation that diverged, and end the episode before "
            "it does"
        )


def describe_non_finite(obs: Array, spec: ObsSpec) -> str | None:
    """Return the problem of a first observation with NaN or infinity, or None if it is finite."""
    if obs.dtype.kind != "f":
        return None
    finite = np.isfinite(obs)
    if finite.all():
        return None
    position = [int(i) for i in np.argwhere(~finite)[0]]
    return (
        f"`obs{spec.element_name(position)}` must be finite, got {obs[tuple(position)]}: "
        "`reset` must return a finite observation"
    )
