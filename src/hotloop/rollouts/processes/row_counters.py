"""The counters and episodes of the rows that a worker collects, in shared memory."""

from __future__ import annotations

import time

import numpy as np

from hotloop.envs import VectorEnv
from hotloop.errors import HotloopError
from hotloop.rollouts.processes.shared_memory import BEGUN, EPISODE, STARTED, STEPPED, WorkerMemory
from hotloop.rollouts.worker_group import record_episodes
from hotloop.types import Array


class RowCounters:
    """Writes the counters and the episodes of a worker's rows; see `StepObserver`.

    Args:
        memory: Memory of the worker.
        envs: Environments of the worker.
        failures: Failures of environments that were replaced; emptied at each row.
        first_row: Number of the first row.

    Attributes:
        row: Number of the next row.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        envs: VectorEnv,
        failures: list[HotloopError],
        first_row: int,
    ) -> None:
        self._memory, self._words = memory, memory.words
        self._envs, self._failures = envs, failures
        self._first_env = memory.slots[0].fragment.first_env
        self.row = first_row
        # As bytes, which are cleared six times faster than records.
        self._table_bytes = [table.view(np.uint8) for table in memory.episodes]
        self._table: Array

    def begin_rows(self, slot_index: int, start: int, stop: int) -> None:
        """Clear the episodes of the next rows of a slot."""
        self._table = self._memory.episodes[slot_index]
        self._table_bytes[slot_index][start:stop] = 0

    def on_step_start(self) -> None:
        """See `StepObserver`."""
        words = self._words
        words[STARTED] = time.monotonic_ns()
        words[BEGUN] = self.row + 1

    def on_step_end(self, t: int) -> None:
        """See `StepObserver`."""
        words, envs = self._words, self._envs
        episodes = envs.pop_episodes()
        if episodes or self._failures:
            first_env, running = self._first_env, self._running_episodes()
            has_failures = bool(self._failures)
            self._failures.clear()
            record_episodes(self._table[t], episodes, running, first_env, has_failures=has_failures)
            for ep in episodes:
                if ep.info:
                    self._memory.write_info(self.row, ep.env - first_env, ep.info)
            self.record_max_episode(running)
        self.row += 1
        words[STARTED] = 0
        words[STEPPED] = self.row

    def record_max_episode(self, running: list[int] | None = None) -> None:
        """Record the episode numbers in use, for a process that replaces this one."""
        # The next step of a vector environment may begin its next episode.
        running = self._running_episodes() if running is None else running
        max_episode = max(running) + (not self._envs.can_replay)
        self._words[EPISODE] = max(self._words[EPISODE], max_episode)

    def _running_episodes(self) -> list[int]:
        return [number for number, _ in self._envs.running_episodes()]
