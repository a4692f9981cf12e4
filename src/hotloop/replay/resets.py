"""Rows that are no transitions: the step that a vector environment spends on a reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hotloop.replay.checks import as_array
from hotloop.types import Array


class Resets:
    """Tells transitions from resets where environments reset themselves a step after the end.

    Args:
        num_envs: environments that step together.
    """

    def __init__(self, num_envs: int) -> None:
        self._ended = np.zeros(num_envs, np.bool_)
        self._after = self._ended

    def clear(self, first: int, last: int) -> None:
        """Take environments for begun anew, from one number to another."""
        self._ended[first : last + 1] = False

    def transitions(self, fields: Mapping[str, Any], env: ArrayLike | None) -> Array | None:
        """Return which rows are transitions, bool, (B,).

        None where fields or environments are not as they should be, which others tell of.
        """
        after = self._after = self._ended.copy()
        terminated, truncated = (as_array(x, fields.get(x)) for x in ("terminated", "truncated"))
        if {terminated.dtype, truncated.dtype} != {np.dtype(np.bool_)}:
            return None
        if terminated.ndim != 1 or terminated.shape != truncated.shape:
            return None
        ended = terminated | truncated
        envs = np.arange(len(ended)) % len(after) if env is None else as_array("env", env)
        if envs.shape != ended.shape or envs.dtype.kind not in "iu":
            return None
        if ((envs < 0) | (envs >= len(after))).any():
            return None
        rows = np.ones(len(ended), np.bool_)
        for row, one in enumerate(envs.tolist()):
            rows[row] = not after[one]
            after[one] = ended[row] and rows[row]
        return rows

    def take(self) -> None:
        """Go on from what `transitions` has seen: it is stored."""
        self._ended = self._after
