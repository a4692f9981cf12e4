"""Episodes of each worker's environments as the learner knows them, and where they were cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hotloop.rollouts.state import (
    GroupState,
    History,
    RolloutPosition,
    memory_of,
    running_episodes,
)
from hotloop.rollouts.workers.shared_memory import NUM_SLOTS
from hotloop.types import NO_INFO, Array, Episode, Fragment


class Group:
    """The environments of one worker, as they were at the last row that was taken.

    Args:
        first_env: number of the first one, counted over all workers.
        num_envs: N.
        num_steps: T, rows of a slot.
        action: of a slot, (T, N, *action_shape), for its dtype and shape.
        can_replay: whether they are single environments, whose episodes can be replayed; else a row
            that is not valid is the reset after an end.

    Attributes:
        num_envs: N.
        first_row: where this rollout began.
        taken: the row after the last one that was taken.
        cuts: rows at which another process began, and the number of its first episodes.
    """

    def __init__(
        self, first_env: int, num_envs: int, num_steps: int, action: Array, *, can_replay: bool
    ) -> None:
        self.first_row = self.taken = 0
        self.cuts: dict[int, int] = {}
        self.num_envs = num_envs
        self._first_env = first_env
        self._can_replay = can_replay
        self._episodes = np.zeros(num_envs, np.int64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._has_ended = np.ones(num_envs, np.bool_)
        # Environments whose episodes were lost before the next row.
        self._lost: set[int] = set()
        # What is acted on next, and what is remembered before it; None before the first row.
        self._obs: Array | None = None
        self._memory = np.zeros((num_envs, 0), np.float32)
        self._history = History(NUM_SLOTS * num_steps, action)

    def state(self) -> GroupState | None:
        """For a checkpoint; None before the first row."""
        if self._obs is None:
            return None
        return GroupState(
            vector_steps=self.taken,
            running=self._running(),
            obs=self._obs,
            memory=self._memory,
            history=self._history.parts(),
        )

    def resume(
        self,
        arrays: Mapping[str, Array],
        position: RolloutPosition,
        restarted_envs: Sequence[int],
        obs: Array,
    ) -> None:
        """Know what the worker was brought to; what another process made of it is forgotten.

        Args:
            arrays: from `RolloutState.to_arrays`.
            position: from `RolloutState.position`.
            restarted_envs: environments, 0 … N − 1, that began their next episode instead.
            obs: (N, *obs_shape), what they are to act on next.
        """
        first = self._first_env
        for i in range(len(self._episodes)):
            is_new = i in restarted_envs
            if is_new and self._lengths[i]:  # a process before had brought it there
                self._lost.add(i)
            self._episodes[i] = position.episodes[first + i][0] + is_new
            self._lengths[i] = 0 if is_new else len(arrays[f"actions.{first + i}"])
        self._has_ended[:] = False
        self._obs = obs
        memory = memory_of(arrays, first, len(self._episodes))
        if memory is not None:
            self._memory = memory
            self._memory[list(restarted_envs)] = 0.0
        if self._can_replay:
            own = running_episodes(arrays, position.episodes)[first : first + len(self._episodes)]
            self._history.resume(own, self._running())

    def take(
        self,
        fragment: Fragment,
        table: Array,
        read_info: Callable[[int, int], Mapping[str, float]],
    ) -> list[Episode]:
        """Take in the next rows; those that follow on nothing are marked in `fragment`.

        Args:
            fragment: the rows.
            table: (T, N) of `EPISODE_DTYPE`, what the worker noted of them.
            read_info: gives the numbers of the episode that ended in a row, counted from the start
                of the run, of environment 0 … N − 1.

        Returns:
            The episodes that ended in them.
        """
        start, stop = self.taken, self.taken + fragment.num_steps
        since = 0
        if self.cuts or self._lost or not fragment.valid.all():
            since = self._mark_cuts(fragment, start, stop)
        episodes = self._follow(fragment, table, since, start, read_info)
        self.taken, self._obs, self._memory = stop, fragment.last_obs, fragment.last_memory
        if self._can_replay:
            self._history.add(fragment.action, self._running())
        return episodes

    def _mark_cuts(self, fragment: Fragment, start: int, stop: int) -> int:
        """Where a row follows on nothing, what came before it was cut off.

        Gives the step from which on all belongs to the process that wrote the last row.
        """
        since, anew = 0, np.zeros((fragment.num_steps, len(self._episodes)), np.bool_)
        for row in sorted(row for row in self.cuts if row < stop):
            since = row - start
            anew[since] = True
            self._episodes[:], self._lengths[:] = self.cuts.pop(row), 0
        if self._can_replay:  # else it is a reset, after an end
            anew |= ~fragment.valid
        anew[0, list(self._lost)] = True
        self._lost.clear()
        if anew.any():
            fragment.truncated[:-1] |= anew[1:] & ~fragment.terminated[:-1]
            fragment.restarted_envs = tuple(np.flatnonzero(anew[0] & ~self._has_ended).tolist())
        return since

    def _follow(
        self,
        fragment: Fragment,
        table: Array,
        since: int,
        start: int,
        read_info: Callable[[int, int], Mapping[str, float]],
    ) -> list[Episode]:
        """Know which episodes are running now; gives those that ended."""
        ended = fragment.terminated | fragment.truncated | ~fragment.valid
        self._has_ended = ended[-1]
        if since == 0 and not ended.any():  # most often, where fragments are short
            self._lengths += len(ended)
            return []
        # Not by the flags: an episode that its process was lost in may be gone on with by a resumed
        # run.
        is_noted = table["length"] > 0
        episodes: list[Episode] = []
        for t, i in np.argwhere(is_noted).tolist():
            total, length, episode, _, num_infos = table[t, i].item()
            info = read_info(start + t, i) if num_infos else NO_INFO
            episodes.append(Episode(self._first_env + i, episode, total, length, info))
        if self._can_replay:  # else a row that is not valid is the reset after an end
            is_noted |= ~fragment.valid
        for i in range(len(self._episodes)):
            ends = np.flatnonzero(is_noted[since:, i]) + since
            last = ends[-1] if len(ends) else since - 1
            resets = 0
            if not self._can_replay:
                resets = int((~fragment.valid[last + 1 :, i]).sum())
            steps = len(ended) - 1 - last - resets
            if len(ends):
                self._episodes[i], self._lengths[i] = table["following"][last, i], 0
            self._episodes[i] += resets
            self._lengths[i] += steps
        return episodes

    def _running(self) -> list[tuple[int, int]]:
        return list(zip(self._episodes.tolist(), self._lengths.tolist(), strict=True))
