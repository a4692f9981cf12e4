"""Action masks: 1 for each discrete action that an environment allows next, 0 for the others.

An environment has its masks in one of three places. The first reset finds the place:

    info          `info["action_mask"]` of `reset` and each `step`
    method        `action_masks()` of the environment or of one that it wraps
    observation   the entry `action_mask` of a dict, which is then no part of the observation

hotloop stores masks beside the observations, see `StepArrays`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs.checks import describe_value
from hotloop.envs.encoding import MASK_KEY, MismatchError
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import MaskError, SpaceError
from hotloop.types import Array

_METHOD = "action_masks"

Source = Literal["info", "method", "observation"]


def with_masks(action_spec: ActionSpec) -> ActionSpec:
    """Return the spec of actions that masks may forbid.

    Raises:
        SpaceError: actions are not discrete.
    """
    if action_spec.kind == "box":
        raise SpaceError(
            "`action_masks` need discrete actions, got a box space: leave the option out"
        )
    return dataclasses.replace(action_spec, is_masked=True)


def find_source(env: Any, observation: Any, info: Any) -> Source | None:
    """Return where the masks of an environment or a vector environment are, if it has any."""
    if isinstance(info, Mapping) and MASK_KEY in info:
        return "info"
    if _find_method(env) is not None:
        return "method"
    return "observation" if isinstance(observation, Mapping) and MASK_KEY in observation else None


def _find_method(env: Any, *, is_known: bool = False) -> Callable[[], Any] | None:
    """Return `action_masks` of an environment or of those that it wraps or steps.

    If `is_known`, it exists, and worker processes are not queried for it.
    """
    from gymnasium.vector import AsyncVectorEnv

    while env is not None:
        if callable(method := getattr(env, _METHOD, None)):
            return method
        singles = getattr(env, "envs", None)  # of Gymnasium's SyncVectorEnv
        if isinstance(singles, (list, tuple)) and singles:
            methods = [_find_method(single) for single in singles]
            if None not in methods:
                return lambda: [method() for method in methods if method is not None]
        if isinstance(env, AsyncVectorEnv):
            if is_known or all(env.call("has_wrapper_attr", _METHOD)):
                return partial(env.call, _METHOD)
            return None
        env = getattr(env, "env", None)
    return None


class MaskMismatchError(MismatchError):
    """A mask that is missing or invalid."""

    failure_class = MaskError


class MaskWriter:
    """Finds masks, checks them, and writes them into arrays.

    Args:
        action_spec: spec of discrete actions. Masks of several components are concatenated.

    Attributes:
        source: where the masks are, None before the first of them.
    """

    def __init__(self, action_spec: ActionSpec) -> None:
        self.size = sum(action_spec.num_choices)
        self.source: Source | None = None
        self._ranges = list(pairwise(np.cumsum((0, *action_spec.num_choices)).tolist()))

    def write_from(
        self, env: Any, observation: Any, info: Any, out: Array, is_last: Any = False
    ) -> None:
        """Write the masks that an environment, or a vector environment, has now.

        Args:
            env: the environment.
            observation: its last raw observation.
            info: its last `info`.
            out: bool, (…, M).
            is_last: bool, (…,), whether the episode has terminated. Its mask may be missing or
                empty: then all actions count as allowed, since no action follows.

        Raises:
            MaskMismatchError: the mask is missing or invalid.
        """
        if self.source is None:
            self.source = find_source(env, observation, info)
        mask = None
        if self.source == "method":
            method = _find_method(env, is_known=True)
            try:
                mask = None if method is None else method()
            except (Exception, SystemExit) as error:
                raise MaskMismatchError(
                    f"`{_METHOD}()` raised {describe_exception(error)}"
                ) from error
        elif self.source is not None:
            values = info if self.source == "info" else observation
            mask = values.get(MASK_KEY) if isinstance(values, Mapping) else None
        is_last = np.asarray(is_last)
        if mask is not None:
            self.write(mask, out, is_last=is_last)
        elif is_last.all():
            out.fill(True)
        else:
            keys = sorted(map(str, info)) if isinstance(info, Mapping) else describe_value(info)
            raise MaskMismatchError(
                f"`action_masks` need `info['{MASK_KEY}']` at each reset and step, or a method "
                f"`{_METHOD}()`, or an entry '{MASK_KEY}' of a dict observation, got `info` with "
                f"{keys}: add one to the environment, or leave the option out"
            )

    def write(self, mask: Any, out: Array, *, is_last: Array | None = None) -> None:
        """Write masks.

        Args:
            mask: zeros and ones, (…, M).
            out: bool, (…, M).
            is_last: bool, (…,), see `write_from`.

        Raises:
            MaskMismatchError: a mask has the wrong shape or other values, or allows no action.
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
            raise _mismatch(
                f"`{MASK_KEY}` must be of shape {out.shape}, 1 for allowed actions and 0 for "
                f"the others, got {value}: concatenate the masks of several components",
                ~is_binary.all(axis=-1) if is_numeric else None,
            )
        out[...] = array
        if is_last is not None:
            out[is_last] = True
        for start, stop in self._ranges:
            is_possible = out[..., start:stop].any(axis=-1)
            if not is_possible.all():
                raise _mismatch(
                    f"`{MASK_KEY}` must allow an action"
                    + (f" among {start} … {stop - 1}" if len(self._ranges) > 1 else "")
                    + ", got only zeros: end the episode when no action is possible",
                    ~is_possible,
                )


def _mismatch(problem: str, is_wrong: Any) -> MaskMismatchError:
    """Return an error that names the first wrong row of a batch."""
    error = MaskMismatchError(problem)
    if np.ndim(is_wrong):
        error.row = int(np.argmax(is_wrong))
    return error
