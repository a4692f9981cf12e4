"""Action masks: which discrete actions an environment allows next, carried with the observation.

An environment tells them as `info["action_mask"]`, 1 where allowed, of its `reset` and each `step`.
They are written behind the observation's numbers, in the same row. So whatever has a row has its
mask: what is acted on, the true successor, a resumed episode, a fragment, a transition in a replay
buffer.
"""

from __future__ import annotations

import dataclasses
import warnings
from itertools import pairwise
from typing import Any

import numpy as np

from hotloop.envs.checks import describe_value
from hotloop.envs.encoding import MismatchError
from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import SpaceError
from hotloop.types import Array

KEY = "action_mask"


def with_mask(obs_spec: ObsSpec, action_spec: ActionSpec) -> ObsSpec:
    """Return the spec of rows with a mask behind their numbers.

    Raises:
        SpaceError: actions are not discrete, or observations are no rows of numbers.
    """
    if action_spec.kind == "box":
        raise SpaceError(
            "`action_masks` are of discrete actions, got a box space: leave the option out"
        )
    if obs_spec.dtype != "float32" or len(obs_spec.shape) != 1:
        raise SpaceError(
            "`action_masks` need observations that are one row of numbers, got "
            f"{obs_spec.dtype} of shape {obs_spec.shape}: wrap the environment in Gymnasium's "
            "FlattenObservation, or, where they are images, let invalid actions do nothing and "
            "leave the option out"
        )
    size = sum(choices_of(action_spec))
    return dataclasses.replace(obs_spec, shape=(obs_spec.shape[0] + size,), mask_size=size)


def warn_of_masks(env_id: str) -> None:
    """Say that an environment tells masks and nobody looks at them."""
    warnings.warn(
        f"{env_id} tells which actions are allowed (`info['{KEY}']`), and that is not looked at: "
        "train ppo or dqn with `action_masks` (`--action-masks`) to take and to learn from allowed "
        "ones alone",
        UserWarning,
        stacklevel=4,
    )


def choices_of(action_spec: ActionSpec) -> tuple[int, ...]:
    """Return how many choices each component of a discrete action has."""
    return (action_spec.num_actions,) if action_spec.kind == "discrete" else action_spec.nvec


class MaskWriter:
    """Checks masks, and writes them behind observations.

    Args:
        action_spec: of discrete actions; masks of several components lie one after another.
    """

    def __init__(self, action_spec: ActionSpec) -> None:
        choices = choices_of(action_spec)
        self.size = sum(choices)
        self._parts = list(pairwise(np.cumsum((0, *choices)).tolist()))

    def write_of(self, info: Any, out: Array, *, is_last: Any = False) -> None:
        """Write the masks that `info` holds.

        Args:
            info: of one environment, or of several side by side.
            out: float32, (…, M).
            is_last: bool, (…,), where the episode has terminated: no mask is needed, and an empty
                one will do. All actions count as allowed: nobody takes one.

        Raises:
            MismatchError: there is none, or it is not one that a policy can act by.
        """
        mask = info.get(KEY) if isinstance(info, dict) else None
        is_last = np.asarray(is_last)
        if mask is None and not is_last.all():
            raise MismatchError(
                f"`action_masks` need `info['{KEY}']` at each reset and step, got "
                f"{describe_value(info) if not isinstance(info, dict) else sorted(map(str, info))}"
                ": add it to the environment, or leave the option out"
            )
        if mask is None:
            out.fill(1.0)
        else:
            self.write(mask, out, is_last=is_last)

    def write(self, mask: Any, out: Array, *, is_last: Array | None = None) -> None:
        """Write masks.

        Args:
            mask: 0 and 1, (…, M).
            out: float32, of that shape.
            is_last: bool, (…,), see `write_of`.

        Raises:
            MismatchError: they are not such, or allow no action.
        """
        array = np.asarray(mask)
        if array.dtype == object:  # how some vector environments hold one array for each
            try:
                array = np.stack([np.zeros(self.size) if x is None else x for x in array.flat])
            except (TypeError, ValueError):
                array = np.asarray(mask)
        is_such = array.shape == out.shape and array.dtype.kind in "biuf"
        is_flag = (array == 0) | (array == 1) if is_such else np.False_  # `isin` takes 15 µs
        if not is_flag.all():
            wrong = describe_value(array)
            if is_such:
                wrong = f"other numbers, such as {array[~is_flag][0]}"
            raise MismatchError(
                f"`{KEY}` must be of shape {out.shape}, 1 for each action that is allowed and 0 "
                f"for the others, got {wrong}"
                ": several components' masks stand one after another"
            )
        out[...] = array
        if is_last is not None:
            out[is_last] = 1.0
        for start, stop in self._parts:
            if not out[..., start:stop].any(axis=-1).all():
                raise MismatchError(
                    f"`{KEY}` must allow an action"
                    + (f" among {start} … {stop - 1}" if len(self._parts) > 1 else "")
                    + ", got zeros alone: end the episode where there is nothing left to do"
                )
