"""A check of the final observations of a vector environment in same-step mode."""

from __future__ import annotations

import numpy as np

from hotloop.types import Array, StepArrays

# Number of truncated episodes, all with wrong final observations, before they count as wrong.
_ENOUGH_EPISODES = 10


class FinalObsCheck:
    """A check for final observations that are wrongly those after the reset.

    If `final_obs` is a view of a buffer that the reset overwrites, it equals the next episode's
    first observation. One end at which the two differ proves them right. Equality counts as wrong
    only after truncations: the successor of a termination is unused, and some environments return
    any value there. It does not count either if observations never change: until `has_change`,
    every step must be passed to `update`, afterwards only those that end episodes.
    """

    def __init__(self, obs: Array) -> None:
        self.has_change = False
        self._first = obs.copy()
        self._num_same = 0

    def update(self, is_ended: Array, step: StepArrays) -> bool | None:
        """Return whether final observations are right, None if it is still unknown."""
        if not self.has_change:
            running = ~is_ended
            self.has_change = not np.array_equal(step.obs[running], self._first[running])
            self._first[is_ended] = step.obs[is_ended]
        if not np.array_equal(step.next_obs[is_ended], step.obs[is_ended]):
            return True
        self._num_same += int((is_ended & ~step.terminated).sum())
        return False if self.has_change and self._num_same >= _ENOUGH_EPISODES else None
