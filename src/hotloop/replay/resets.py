"""A filter for the reset steps of vector environments with next-step autoreset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hotloop.replay.checks import as_array
from hotloop.types import Array


class ResetFilter:
    """A filter for the reset steps of `num_envs` environments: the steps after an episode's end."""

    def __init__(self, num_envs: int) -> None:
        self._is_end = np.zeros(num_envs, np.bool_)
        self._next_is_end = self._is_end

    def clear(self, first: int, last: int) -> None:
        """Expect no reset step of environments `first` … `last`."""
        self._is_end[first : last + 1] = False

    def find_transitions(self, fields: Mapping[str, Any], env: ArrayLike | None) -> Array | None:
        """Return which rows are transitions, bool, (B,).

        Return None if fields or environments are invalid. `Staging.put` reports these errors.
        """
        expects_reset = self._next_is_end = self._is_end.copy()
        terminated, truncated = (as_array(k, fields.get(k)) for k in ("terminated", "truncated"))
        if {terminated.dtype, truncated.dtype} != {np.dtype(np.bool_)}:
            return None
        if terminated.ndim != 1 or terminated.shape != truncated.shape:
            return None
        is_end = terminated | truncated
        envs = np.arange(len(is_end)) % len(expects_reset) if env is None else as_array("env", env)
        if envs.shape != is_end.shape or envs.dtype.kind not in "iu":
            return None
        if ((envs < 0) | (envs >= len(expects_reset))).any():
            return None
        rows = np.ones(len(is_end), np.bool_)
        for row, index in enumerate(envs.tolist()):
            rows[row] = not expects_reset[index]
            expects_reset[index] = is_end[row] and rows[row]
        return rows

    def commit(self) -> None:
        """Advance the state to the rows of the last `find_transitions`."""
        self._is_end = self._next_is_end
