"""Faster versions of parts of the original's loop over steps, with bitwise equal results.

In a rollout of a small environment, a third of the time goes to copies of the steps' `info`, to
storing the steps, and to the advantages. A shortcut never replaces a method of the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import NoneType
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import dummy_vec_env
from torch import Tensor

from hotloop.accelerate.acceleration import own_methods
from hotloop.accelerate.module_calls import replaced_attribute
from hotloop.accelerate.shared_changes import SharedChange
from hotloop.ops.arrays import backward_sums
from hotloop.types import Array

# Types whose deep copy is the value itself, or equal to it.
_ATOMIC = frozenset(
    [bool, int, float, str, NoneType, np.bool_, np.int32, np.int64, np.float32, np.float64]
)


@contextmanager
def rollout_shortcuts(buffer: Any) -> Iterator[None]:
    """Use the shortcuts in the body, which collects a rollout into this buffer."""
    with ExitStack() as stack:
        stack.enter_context(FAST_COPIES)
        shortcuts: list[type[_Shortcut]] = [_AdvantageComputation]
        has_arrays = isinstance(buffer.observation_space, spaces.Box)
        if type(buffer) is buffers.RolloutBuffer and has_arrays:
            shortcuts.append(_StepStorage)
        for shortcut in shortcuts:
            if not own_methods(buffer, [shortcut.name]):
                replaced = replaced_attribute(buffer, shortcut.name, shortcut(buffer))
                stack.enter_context(replaced)
        yield


def deep_copy(value: Any) -> Any:
    """Return a deep copy of observations by name, or of a list with the `info` of each environment.

    The copy of HalfCheetah's `info` takes 1 µs, and 20 µs with `copy.deepcopy`.
    """
    if isinstance(value, dict) and all(map(_is_plain_array, value.values())):
        return type(value)((name, x.copy(order="K")) for name, x in value.items())
    if type(value) is list:
        return [_copy_info(x) for x in value]
    return copy.deepcopy(value)


def _is_plain_array(x: Any) -> bool:
    return type(x) is np.ndarray and not x.dtype.hasobject


def _copy_info(info: Any) -> Any:
    is_simple = type(info) is dict and _ATOMIC.issuperset(map(type, info.values()))
    return info.copy() if is_simple else copy.deepcopy(info)


def _replace_deepcopy() -> Callable[[], None]:
    module: Any = dummy_vec_env
    original = vars(module).get("deepcopy")
    if original is not copy.deepcopy:  # another version of the library, or the user's function
        return lambda: None

    def undo() -> None:
        module.deepcopy = original

    module.deepcopy = deep_copy
    return undo


FAST_COPIES = SharedChange(_replace_deepcopy)
"""A context in which vector environments of this process copy their results by `deep_copy`."""


class _Shortcut:
    """A faster method of a buffer."""

    name: str

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        """Put the buffer's own method into copies and files of the buffer."""
        return getattr, (self._buffer, self.name)


class _StepStorage(_Shortcut):
    """`RolloutBuffer.add` for observations that are arrays, without copies of its arguments."""

    name = "add"

    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer)
        self._action_shape = (buffer.n_envs, buffer.action_dim)

    def __call__(
        self,
        obs: Array,
        action: Array,
        reward: Array,
        episode_start: Array,
        value: Tensor,
        log_prob: Tensor,
    ) -> None:
        """Store a step of all environments."""
        buffer = self._buffer
        position = buffer.pos
        buffer.observations[position] = obs
        buffer.actions[position] = action.reshape(self._action_shape)
        buffer.rewards[position] = reward
        buffer.episode_starts[position] = episode_start
        buffer.values[position] = value.numpy().reshape(-1)
        buffer.log_probs[position] = log_prob.numpy()
        buffer.pos = position + 1
        if buffer.pos == buffer.buffer_size:
            buffer.full = True


class _AdvantageComputation(_Shortcut):
    """`RolloutBuffer.compute_returns_and_advantage` with two operations for each step."""

    name = "compute_returns_and_advantage"

    def __call__(self, last_values: Tensor, dones: Array) -> None:
        """Compute the advantages and returns. See `hotloop.ops.gae` for the equation."""
        buffer = self._buffer
        ends = np.concatenate([buffer.episode_starts[1:], dones[None].astype(np.float32)])
        continues = 1.0 - ends
        last = last_values.detach().cpu().numpy().reshape(1, -1)
        next_values = np.concatenate([buffer.values[1:], last])
        delta = buffer.rewards + buffer.gamma * next_values * continues - buffer.values
        factors = buffer.gamma * buffer.gae_lambda * continues
        buffer.advantages[:] = backward_sums(delta, factors)
        buffer.returns = buffer.advantages + buffer.values
