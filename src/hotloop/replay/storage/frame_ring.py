"""Numbers of image frames in a device's ring, which stores each frame once.

Frames are numbered in the order of arrival. If an observation equals, byte for byte, the next
observation of its environment's previous step, it has the same frames. A stack adds one frame.
"""

from __future__ import annotations

import numpy as np

from hotloop.types import Array


class FrameRing:
    """The frame numbers of observations.

    Args:
        capacity: number of transitions that must fit, in episodes of eight or more steps.
        num_envs: number of environments.
        n_step: number of steps before a transition is stored.
        frames_per_obs: S, frames per observation: the length of a stack, or 1.

    Attributes:
        size: F, capacity in frames.
        margin: largest distance between the frames of a transition and of its neighbors.
        max_steps: largest number of steps between two calls of `take_new_frames`.
        num_frames: number of frames so far.
        new_frames: frames since the last `take_new_frames`, in order.
    """

    def __init__(self, capacity: int, num_envs: int, n_step: int, frames_per_obs: int) -> None:
        self.size, self.margin = ring_size(capacity, num_envs, n_step, frames_per_obs)
        self.frames_per_obs = frames_per_obs
        self.max_steps = self.margin // (4 * frames_per_obs)
        self.num_frames = 0
        self.new_frames: list[Array] = []
        self._last: list[tuple[Array, Array] | None] = [None] * num_envs

    def number_obs(
        self, obs: Array, next_obs: Array, is_end: bool, env: int
    ) -> tuple[Array, Array]:
        """Return the frame numbers of an observation and of the next one, int64, (S,) each.

        Args:
            obs: the observation, any dtype, (*obs_shape).
            next_obs: the next observation, same dtype and shape.
            is_end: whether the episode ends with this step.
            env: the environment.
        """
        stacked = self.frames_per_obs > 1
        frames, next_frames = (obs, next_obs) if stacked else (obs[None], next_obs[None])
        last = self._last[env]
        if (
            last is not None
            and last[0].min() >= self.num_frames - self.margin // 2
            and np.array_equal(frames, last[1])
        ):
            numbers = last[0]
        else:
            numbers = self._append_all(frames)
        if stacked and np.array_equal(frames[1:], next_frames[:-1]):
            next_numbers = np.concatenate([numbers[1:], self._append_all(next_frames[-1:])])
        else:
            next_numbers = self._append_all(next_frames)
        self._last[env] = None if is_end else (next_numbers, next_frames.copy())
        return numbers, next_numbers

    def append(self, frame: Array) -> int:
        """Append a frame, and return its number."""
        self.new_frames.append(frame)
        self.num_frames += 1
        return self.num_frames - 1

    def cut(self, env: int) -> None:
        """Forget the last observation of an environment."""
        self._last[env] = None

    def take_new_frames(self) -> tuple[int, list[Array]]:
        """Return the frames since the last call, after the number of the first one."""
        frames, self.new_frames = self.new_frames, []
        return self.num_frames - len(frames), frames

    def _append_all(self, frames: Array) -> Array:
        """Append frames, equal neighbors (as after a reset) once, and return all numbers."""
        numbers = np.empty(len(frames), np.int64)
        for position, frame in enumerate(frames):
            if position == 0 or not np.array_equal(frame, frames[position - 1]):
                self.append(frame)
            numbers[position] = self.num_frames - 1
        return numbers


def ring_size(capacity: int, num_envs: int, n_step: int, frames_per_obs: int) -> tuple[int, int]:
    """Return F and the margin of a `FrameRing` with these arguments."""
    margin = 1024 + 4 * frames_per_obs * num_envs * (n_step + 2)
    return capacity + capacity // 8 + 2 * margin, margin
