"""Frames of images on a device: which of them make an observation, each kept once.

Frames are numbered as they come and lie in a ring. An observation that is, byte for byte, what
followed its environment's last step has that one's frames; of a stack only the newest frame is new.
"""

from __future__ import annotations

import numpy as np

from hotloop.types import Array


class FrameRing:
    """The numbers of frames.

    Args:
        capacity: transitions that are to find room, in episodes of eight steps and more.
        num_envs: environments that write.
        n_step: steps that a transition waits before it is stored.
        num_places: S, frames that make an observation: a stack's, or 1.

    Attributes:
        size: F, frames that there is room for.
        margin: frames that may come between those of a transition and of its neighbours.
        most_steps: that may be placed between two calls of `take`.
        total: frames that ever came.
        fresh: those that came since `take`, in order.
    """

    def __init__(self, capacity: int, num_envs: int, n_step: int, num_places: int) -> None:
        self.size, self.margin = room(capacity, num_envs, n_step, num_places)
        self.num_places = num_places
        self.most_steps = self.margin // (4 * num_places)
        self.total = 0
        self.fresh: list[Array] = []
        self._last: list[tuple[Array, Array] | None] = [None] * num_envs

    def place(self, obs: Array, next_obs: Array, ended: bool, env: int) -> tuple[Array, Array]:
        """Return the numbers of an observation's frames and of the next one's, int64, (S,) each.

        Args:
            obs: uint8 or another dtype, (*obs_shape).
            next_obs: the same.
            ended: whether the episode ends here.
            env: whose.
        """
        stacked = self.num_places > 1
        now, following = (obs, next_obs) if stacked else (obs[None], next_obs[None])
        last = self._last[env]
        if (
            last is not None
            and last[0].min() >= self.total - self.margin // 2
            and np.array_equal(now, last[1])
        ):
            numbers = last[0]
        else:
            numbers = self._new(now)
        if stacked and np.array_equal(now[1:], following[:-1]):
            later = np.concatenate([numbers[1:], self._new(following[-1:])])
        else:
            later = self._new(following)
        self._last[env] = None if ended else (later, following.copy())
        return numbers, later

    def append(self, frame: Array) -> int:
        """Take a frame as it is; return its number."""
        self.fresh.append(frame)
        self.total += 1
        return self.total - 1

    def cut(self, env: int) -> None:
        """Have what comes next of an environment follow on nothing."""
        self._last[env] = None

    def take(self) -> tuple[int, list[Array]]:
        """Return the number of the first frame that came since the last call, and all of those."""
        fresh, self.fresh = self.fresh, []
        return self.total - len(fresh), fresh

    def _new(self, frames: Array) -> Array:
        """Number some frames; those that are equal, as after a reset, are one."""
        numbers = np.empty(len(frames), np.int64)
        for place, frame in enumerate(frames):
            if place == 0 or not np.array_equal(frame, frames[place - 1]):
                self.append(frame)
            numbers[place] = self.total - 1
        return numbers


def room(capacity: int, num_envs: int, n_step: int, num_places: int) -> tuple[int, int]:
    """Return F and the margin of a `FrameRing`; the arguments are its."""
    margin = 1024 + 4 * num_places * num_envs * (n_step + 2)
    return capacity + capacity // 8 + 2 * margin, margin
