"""Action masks: the discrete actions that an environment allows next, stored in the observation.

An environment returns `info["action_mask"]`, 1 for allowed actions, from `reset` and each `step`.
hotloop appends the mask to the observation's row. So each copy of a row contains its mask: the
policy's input, the true successor, a resumed episode, a fragment, a transition in a replay buffer.
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

MASK_KEY = "action_mask"


def with_mask(obs_spec: ObsSpec, action_spec: ActionSpec) -> ObsSpec:
    """Return the spec of float32 rows that end in a mask.

    Raises:
        SpaceError: actions are not discrete, or observations are not one row of numbers.
    """
    if action_spec.kind == "box":
        raise SpaceError(
            "`action_masks` need discrete actions, got a box space: leave the option out"
        )
    if len(obs_spec.shape) != 1 or any(part.is_image for part in obs_spec.layout):
        raise SpaceError(
            "`action_masks` need observations that are one row of numbers, got "
            f"{obs_spec.dtype} of shape {obs_spec.shape}: wrap the environment in Gymnasium's "
            "FlattenObservation. For images, let invalid actions do nothing and leave the option "
            "out"
        )
    size = sum(num_choices(action_spec))
    layout = tuple(dataclasses.replace(part, dtype="float32") for part in obs_spec.layout)
    shape = (obs_spec.shape[0] + size,)
    return dataclasses.replace(
        obs_spec, shape=shape, dtype="float32", layout=layout, mask_size=size
    )


def warn_unused_masks(env_id: str) -> None:
    """Warn that an environment returns masks, and that the run ignores them."""
    warnings.warn(
        f"{env_id} returns action masks (`info['{MASK_KEY}']`), which this run ignores: train ppo "
        "or dqn with `action_masks` (`--action-masks`) to sample and learn only allowed actions",
        UserWarning,
        stacklevel=4,
    )


def num_choices(action_spec: ActionSpec) -> tuple[int, ...]:
    """Return the number of choices of each component of a discrete action."""
    return (action_spec.num_actions,) if action_spec.kind == "discrete" else action_spec.nvec


class MaskWriter:
    """Checks masks, and writes them into the last columns of rows.

    Args:
        action_spec: spec of discrete actions. Masks of several components are concatenated.
    """

    def __init__(self, action_spec: ActionSpec) -> None:
        choices = num_choices(action_spec)
        self.size = sum(choices)
        self._ranges = list(pairwise(np.cumsum((0, *choices)).tolist()))

    def write_from_info(self, info: Any, out: Array, *, is_last: Any = False) -> None:
        """Write the masks in `info`.

        Args:
            info: `info` of one environment, or of a vector environment.
            out: float32, (…, M).
            is_last: bool, (…,), whether the episode has terminated. Its mask may be missing or
                empty: all actions count as allowed, since none follows.

        Raises:
            MismatchError: the mask is missing or invalid.
        """
        mask = info.get(MASK_KEY) if isinstance(info, dict) else None
        is_last = np.asarray(is_last)
        if mask is None and not is_last.all():
            raise MismatchError(
                f"`action_masks` need `info['{MASK_KEY}']` at each reset and step, got "
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
            mask: zeros and ones, (…, M).
            out: float32, (…, M).
            is_last: bool, (…,), see `write_from_info`.

        Raises:
            MismatchError: a mask has the wrong shape or other values, or allows no action.
        """
        array = np.asarray(mask)
        if array.dtype == object:  # some vector environments return one array per environment
            try:
                array = np.stack([np.zeros(self.size) if x is None else x for x in array.flat])
            except (TypeError, ValueError):
                array = np.asarray(mask)
        is_numeric = array.shape == out.shape and array.dtype.kind in "biuf"
        # `np.isin` would take 15 µs.
        is_binary = (array == 0) | (array == 1) if is_numeric else np.False_
        if not is_binary.all():
            value = describe_value(array)
            if is_numeric:
                value = f"other numbers, such as {array[~is_binary][0]}"
            raise MismatchError(
                f"`{MASK_KEY}` must be of shape {out.shape}, 1 for allowed actions and 0 for "
                f"the others, got {value}: concatenate the masks of several components"
            )
        out[...] = array
        if is_last is not None:
            out[is_last] = 1.0
        for start, stop in self._ranges:
            if not out[..., start:stop].any(axis=-1).all():
                raise MismatchError(
                    f"`{MASK_KEY}` must allow an action"
                    + (f" among {start} … {stop - 1}" if len(self._ranges) > 1 else "")
                    + ", got only zeros: end the episode when no action is possible"
                )
