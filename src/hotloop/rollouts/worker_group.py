"""The learner's record of each worker's episodes, and of the rows at which they were cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hotloop.envs import ActionSpec
from hotloop.rollouts.schedules import NUM_AHEAD
from hotloop.rollouts.state import (
    ActionHistory,
    GroupState,
    RolloutPosition,
    running_episodes,
    saved_hidden_states,
)
from hotloop.types import NO_INFO, Array, Episode, Fragment

# Record of an episode that ended in a row. Length 0: none ended. `following` is the episode that
# runs after the row, set if an episode ended or an environment failed in the row of any
# environment. `has_failures` is set in the second case: then invalid rows are failures.
EPISODE_DTYPE = np.dtype(
    [
        *(("undiscounted_return", "f8"), ("length", "i8"), ("episode", "i8"), ("following", "i8")),
        *(("num_infos", "i8"), ("has_failures", "?")),  # number of logged numbers
    ],
    align=True,
)


def record_episodes(
    record: Array,
    episodes: Sequence[Episode],
    running: Sequence[int],
    first_env: int,
    *,
    has_failures: bool = False,
) -> None:
    """Write the episodes that ended in a row into the row's record, (N,) of `EPISODE_DTYPE`.

    Args:
        record: Record, with zeros everywhere.
        episodes: Episodes that ended in the row.
        running: Number of each environment's episode after the row.
        first_env: Global index of the first environment.
        has_failures: Whether an environment failed in the row.
    """
    for ep in episodes:
        entry = ep.undiscounted_return, ep.length, ep.episode, 0, len(ep.info), False
        record[ep.env - first_env] = entry
    record["following"], record["has_failures"] = running, has_failures


class WorkerGroup:
    """The environments of one worker, as of the last row that the learner has taken.

    Args:
        first_env: Global index of the group's first environment.
        num_envs: N.
        num_steps: T, rows of a fragment.
        action: Shape and dtype of an action.
        can_replay: Whether the episodes can be replayed. Otherwise an invalid row is the reset
            after an episode. If they can, it is a failure, or an agent is absent from its game.

    Attributes:
        num_envs: N.
        first_row: First row of this rollout.
        next_row: Row after the last one that the learner has taken.
        cuts: Rows at which a new process started, and the number of its first episodes.
    """

    def __init__(
        self,
        first_env: int,
        num_envs: int,
        num_steps: int,
        action: ActionSpec,
        *,
        can_replay: bool,
    ) -> None:
        self.first_row = self.next_row = 0
        self.cuts: dict[int, int] = {}
        self.num_envs = num_envs
        self._first_env = first_env
        self._can_replay = can_replay
        self._episodes = np.zeros(num_envs, np.int64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._has_ended = np.ones(num_envs, np.bool_)
        # Environments whose episodes were lost before the next row.
        self._lost_envs: set[int] = set()
        # The next observations and hidden states. None before the first row.
        self._obs: Array | None = None
        self._memory = np.zeros((num_envs, 0), np.float32)
        example = np.empty((0, num_envs, *action.shape), action.dtype)
        self._history = ActionHistory(NUM_AHEAD * num_steps, example)

    def state(self) -> GroupState | None:
        """Return the state for a checkpoint, or None before the first row."""
        if self._obs is None:
            return None
        return GroupState(
            vector_steps=self.next_row,
            running=self._running(),
            obs=self._obs,
            memory=self._memory,
            history=self._history.chunks(),
        )

    def resume(
        self,
        arrays: Mapping[str, Array],
        position: RolloutPosition,
        restarted_envs: Sequence[int],
        obs: Array,
    ) -> None:
        """Set the state that the worker has restored, and drop the progress of earlier processes.

        Args:
            arrays: Arrays from `RolloutState.to_arrays`.
            position: Counters from `RolloutState.position`.
            restarted_envs: Environments, 0 … N − 1, that started their next episode instead.
            obs: Next observations to act on, (N, *obs_shape).
        """
        first = self._first_env
        for i in range(len(self._episodes)):
            is_restarted = i in restarted_envs
            if is_restarted and self._lengths[i]:  # an earlier process restored it
                self._lost_envs.add(i)
            self._episodes[i] = position.episodes[first + i][0] + is_restarted
            self._lengths[i] = 0 if is_restarted else len(arrays[f"actions.{first + i}"])
        self._has_ended[:] = False
        self._obs = obs
        memory = saved_hidden_states(arrays, first, len(self._episodes))
        if memory is not None:
            self._memory = memory
            self._memory[list(restarted_envs)] = 0.0
        if self._can_replay:
            past = running_episodes(arrays, position.episodes)[first : first + len(self._episodes)]
            self._history.resume(past, self._running())

    def take(
        self,
        fragment: Fragment,
        table: Array,
        read_info: Callable[[int, int], Mapping[str, float]],
        *,
        is_dropped: bool = False,
    ) -> list[Episode]:
        """Advance by the rows of `fragment`, and mark the rows whose predecessor was lost.

        Args:
            fragment: The next rows.
            table: Episode records of the rows, (T, N) of `EPISODE_DTYPE`.
            read_info: Returns the logged numbers of an episode from its last row and its
                environment, 0 … N − 1.
            is_dropped: Whether the learner skips these rows. Then the next rows follow a gap.

        Returns:
            The episodes that ended in these rows.
        """
        start, stop = self.next_row, self.next_row + fragment.num_steps
        cut_step, had_ended = 0, self._has_ended
        if self.cuts or self._lost_envs or not fragment.valid.all():
            failures = table["has_failures"] & ~fragment.valid
            cut_step = self._mark_cuts(fragment, failures, start, stop)
        episodes = self._update_episodes(fragment, table, cut_step, start, read_info)
        if is_dropped:
            self._has_ended, self._lost_envs = had_ended, set(range(self.num_envs))
        self.next_row, self._obs, self._memory = stop, fragment.last_obs, fragment.last_memory
        if self._can_replay:
            self._history.add(fragment.action, self._running())
        return episodes

    def _mark_cuts(self, fragment: Fragment, failures: Array, start: int, stop: int) -> int:
        """Truncate rows before another process or episode. Return the last process's first step."""
        cut_step, is_new = 0, failures
        for row in sorted(row for row in self.cuts if row < stop):
            cut_step = row - start
            is_new[cut_step] = True
            self._episodes[:], self._lengths[:] = self.cuts.pop(row), 0
        is_new[0, list(self._lost_envs)] = True
        self._lost_envs.clear()
        if stop in self.cuts:
            fragment.truncated[-1] |= ~fragment.terminated[-1]
        if is_new.any():
            fragment.truncated[:-1] |= is_new[1:] & ~fragment.terminated[:-1]
            fragment.restarted_envs = tuple(np.flatnonzero(is_new[0] & ~self._has_ended).tolist())
        return cut_step

    def _update_episodes(
        self,
        fragment: Fragment,
        table: Array,
        cut_step: int,
        start: int,
        read_info: Callable[[int, int], Mapping[str, float]],
    ) -> list[Episode]:
        """Update the running episodes, and return those that ended."""
        is_end = fragment.terminated | fragment.truncated | ~fragment.valid
        self._has_ended = is_end[-1]
        if cut_step == 0 and not is_end.any():  # the usual case for short fragments
            self._lengths += len(is_end)
            return []
        # Flags alone do not show an episode's end: a resumed run may continue an episode that a
        # worker lost.
        is_recorded = table["length"] > 0
        episodes: list[Episode] = []
        for t, i in np.argwhere(is_recorded).tolist():
            total_reward, length, episode, _, num_infos, _ = table[t, i].item()
            info = read_info(start + t, i) if num_infos else NO_INFO
            episodes.append(Episode(self._first_env + i, episode, total_reward, length, info))
        if self._can_replay and not fragment.valid.all():
            # Episodes also end by failures, and with the game of an agent that took no part in it.
            numbers = np.maximum.accumulate(np.vstack((self._episodes, table["following"])))
            is_recorded |= numbers[1:] > numbers[:-1]
        for i in range(len(self._episodes)):
            end_steps = np.flatnonzero(is_recorded[cut_step:, i]) + cut_step
            last_end = end_steps[-1] if len(end_steps) else cut_step - 1
            num_resets = 0
            if not self._can_replay:
                num_resets = int((~fragment.valid[last_end + 1 :, i]).sum())
            num_steps = len(is_end) - 1 - last_end - num_resets
            if len(end_steps):
                self._episodes[i], self._lengths[i] = table["following"][last_end, i], 0
            self._episodes[i] += num_resets
            self._lengths[i] += num_steps
        return episodes

    def _running(self) -> list[tuple[int, int]]:
        return list(zip(self._episodes.tolist(), self._lengths.tolist(), strict=True))
