"""Environments in two halves: one half steps while the other waits for its actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hotloop.envs.attributes import values_by_row
from hotloop.envs.closing import close_all
from hotloop.envs.protocol import VectorEnv, allocate_step
from hotloop.errors import SpaceError
from hotloop.types import Array, Episode, RunningEpisode, StepArrays


class DoubleBufferedEnvs:
    """N environments whose two halves can be stepped separately.

    Args:
        halves: one or two vector environments. The second continues the first one's numbering.

    Attributes:
        halves: the same, as a list.
        ranges: index of each half's first environment, 0 … N − 1, and one past its last.

    Raises:
        SpaceError: the spaces of the halves differ.
    """

    def __init__(self, halves: Sequence[VectorEnv]) -> None:
        self.halves = list(halves)
        stops = list(accumulate(half.num_envs for half in halves))
        self.num_envs = stops[-1]
        self.ranges = list(zip([0, *stops], stops, strict=False))
        self.obs_spec, self.action_spec = halves[0].obs_spec, halves[0].action_spec
        self.can_replay = all(half.can_replay for half in halves)
        for half in self.halves:
            for spec_name in ("obs_spec", "action_spec"):
                expected, actual = getattr(self, spec_name), getattr(half, spec_name)
                if expected != actual:
                    raise SpaceError(
                        f"all environments must have the same `{spec_name}`, but those from "
                        f"{self.ranges[1][0]} on have {actual}, and the first ones {expected}: pad "
                        "or wrap them to make them equal"
                    )
        self._step_buffers = allocate_step(self.num_envs, self.obs_spec, self.action_spec.mask_size)

    @property
    def mask(self) -> Array:
        """See `VectorEnv.mask`."""
        return np.concatenate([half.mask for half in self.halves])

    def reset(self, first_episode: int | None = None) -> Array:
        """See `VectorEnv.reset`."""
        return np.concatenate([half.reset(first_episode) for half in self.halves])

    def step(self, action: Array, out: StepArrays | None = None) -> StepArrays:
        """See `VectorEnv.step`. The halves are stepped one after the other."""
        out = self._step_buffers if out is None else out
        for half, (start, stop) in zip(self.halves, self.ranges, strict=True):
            half.step(action[start:stop], StepArrays(*(array[start:stop] for array in out)))
        return out

    def running_episodes(self) -> list[tuple[int, int]]:
        """See `VectorEnv.running_episodes`."""
        return [episode for half in self.halves for episode in half.running_episodes()]

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        on_step: Callable[[], None] = lambda: None,
    ) -> tuple[Array, list[int]]:
        """See `VectorEnv.resume`."""
        observations: list[Array] = []
        restarted_envs: list[int] = []
        for half, (start, stop) in zip(self.halves, self.ranges, strict=True):
            obs, restarted = half.resume(episodes[start:stop], on_step)
            observations.append(obs)
            restarted_envs += [start + i for i in restarted]
        return np.concatenate(observations), restarted_envs

    def pop_episodes(self) -> list[Episode]:
        """See `VectorEnv.pop_episodes`. The first half's episodes come first."""
        return [episode for half in self.halves for episode in half.pop_episodes()]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`."""
        return tuple(x for half in self.halves for x in half.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `VectorEnv.get_attr`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`."""
        row_values = values_by_row(values, self.num_envs)
        for half, (start, stop) in zip(self.halves, self.ranges, strict=True):
            half.set_attr(name, list(row_values[start:stop]))

    def close(self) -> None:
        """See `VectorEnv.close`."""
        close_all(self.halves)
