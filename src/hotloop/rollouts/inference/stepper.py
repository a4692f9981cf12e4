"""Stepping environments whose actions the inference process chooses: the workers' side.

A worker's environments are two halves. While the one waits for its actions the other steps, and no
half is more than a row ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hotloop.envs import Halves
from hotloop.errors import EnvironmentFailure
from hotloop.rollouts.collector import HalfWatch, check_rows
from hotloop.rollouts.workers.shared_memory import (
    ACTING,
    EVALUATION,
    FIRST,
    FIRST_ENV,
    NEWEST,
    PUBLICATION,
    SERIAL,
    STOP,
    STOP_ENV,
    VERSION,
    SharedMemory,
)
from hotloop.timing import span
from hotloop.types import Array, RunningEpisode, StepArrays


class Stepper:
    """The twin of `Collector` where another process acts; see `Acting`.

    Args:
        envs: in halves.
        shared: where rows are written, and asked for.
        worker: number of the worker.
        first_row: to begin with.
        has_value: whether rows are evaluated.
        ring: wakes the inference process.
        rest: waits until it may have answered.
    """

    def __init__(
        self,
        envs: Halves,
        shared: SharedMemory,
        worker: int,
        *,
        first_row: int,
        has_value: bool,
        ring: Callable[[], None],
        rest: Callable[[], None],
    ) -> None:
        self._envs = envs
        self._weights, self._memory = shared.weights, shared.workers[worker]
        self._requests = [line.data for line in shared.requests[worker]]
        self._answers = [line.data for line in shared.answers[worker]]
        self._has_value, self._ring, self._rest = has_value, ring, rest
        # Evaluating asks the network once more, and lets no half step meanwhile.
        self.chunk_s = 0.1 if has_value else 0.002
        self._row = first_row
        self._publication = NEWEST
        self.ahead = -1
        self.obs: Array | None = None
        self._remembered = np.zeros(self._memory.slots[0].fragment.last_memory.shape, np.float32)
        # Views of every step's halves: what they do, and where it leads.
        self._views: list[list[list[tuple[Array, StepArrays]]]] = [
            [
                [
                    (action[start:stop], StepArrays(*(array[start:stop] for array in arrays)))
                    for start, stop in envs.ranges
                ]
                for _, _, action, arrays in slot.rows
            ]
            for slot in self._memory.slots
        ]
        # What the process before this one has asked for, whose rows are made anew.
        for line in range(len(self._requests)):
            self._wait_for(line)

    def begin(self, *, first_episode: int | None = None) -> None:
        """See `Collector.begin`."""
        with span("env_reset"):
            self.obs = self._envs.reset(first_episode)

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        memory: Array | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """See `Collector.resume`."""
        with span("env_reset"):
            self.obs, restarted_envs = self._envs.resume(episodes, on_step)
        if memory is not None:
            self._remembered = memory.copy()
            self._remembered[restarted_envs] = 0.0
        return restarted_envs

    def load(self, number: int) -> None:
        """See `Acting`."""
        self._publication = number

    def load_newest(self) -> None:
        """See `Acting`."""
        words, weights = self._memory.words, self._weights
        self._publication = NEWEST
        if self.ahead >= 0:
            return  # the learner knows of it already
        while True:
            newest = weights.newest
            words[ACTING] = weights.newest_version
            if weights.newest == newest:
                return

    def collect(self, which: int, start: int, stop: int, watch: HalfWatch) -> None:
        """See `Acting`.

        Raises:
            EnvironmentFailure: an environment raised, or gave NaN or a wrong shape.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        slot, versions = self._memory.slots[which], self._memory.versions[which]
        memories, memory, halves = slot.memories, None, self._envs.halves
        if self.ahead < 0:
            for line in range(len(halves)):
                self._ask(line)
        self.ahead = -1
        goes_on = False
        for t in range(start, stop):
            if memories:
                memory = memories[t + 1]
            self.obs = slot.rows[t][3].obs
            for line, (half, (action, arrays)) in enumerate(
                zip(halves, self._views[which][t], strict=True)
            ):
                version = self._wait_for(line)
                versions[t] = version if line == 0 else min(version, versions[t])
                watch.begins()
                with span("env_step"):
                    try:
                        half.step(action, arrays)
                    except EnvironmentFailure:
                        # What failed may have been given NaN, by itself or by the policy.
                        self._check_finite(which, start, t, self._row - (t - start))
                        raise
                if memory is not None:
                    first, last = self._envs.ranges[line]
                    is_over = arrays.terminated | arrays.truncated | ~arrays.valid
                    memory[first:last][is_over] = 0.0
                    self._remembered = memory
                if line == 0:
                    goes_on = t + 1 < stop
                    if not goes_on and watch.has_room():
                        goes_on, self.ahead = True, self._weights.newest_version
                if line < len(halves) - 1:
                    watch.pauses()
                if goes_on:
                    self._ask(line, after=1)
            self._row += 1
            watch.ended(t)
        self._check_finite(which, start, stop, self._row - (stop - start))

    def evaluate(self, which: int, start: int, stop: int) -> None:
        """See `Acting`."""
        if not self._has_value:
            return
        with span("evaluate"):
            first = self._row - (stop - start)
            self._send(EVALUATION, (first, self._row, 0, self._envs.num_envs))
            self._wait_for(EVALUATION)

    def _ask(self, line: int, after: int = 0) -> None:
        """Ask for a half's actions in the next row, or in one after it."""
        row = self._row + after
        which, t = self._memory.place(row)
        slot, (first, stop) = self._memory.slots[which], self._envs.ranges[line]
        assert self.obs is not None
        if t == 0 or not after:  # else they are there
            slot.fragment.obs[t, first:stop] = self.obs[first:stop]
            slot.fragment.memory[t, first:stop] = self._remembered[first:stop]
        self._send(line, (row, row + 1, first, stop))

    def _send(self, line: int, what: tuple[int, int, int, int]) -> None:
        request = self._requests[line]
        request[FIRST], request[STOP], request[FIRST_ENV], request[STOP_ENV] = what
        request[PUBLICATION] = self._publication
        request[SERIAL] += 1
        self._ring()

    def _wait_for(self, line: int) -> int:
        """Wait for what a line has asked for; gives the version that acted."""
        request, answer = self._requests[line], self._answers[line]
        if answer[SERIAL] != request[SERIAL]:
            with span("wait_for_inference", kind="wait"):
                while answer[SERIAL] != request[SERIAL]:
                    self._rest()
        return answer[VERSION]

    def _check_finite(self, which: int, start: int, stop: int, first_step: int) -> None:
        """See `check_rows`."""
        slot = self._memory.slots[which]
        first_env = slot.fragment.first_env
        check_rows(slot, start, stop, first_env=first_env, first_step=first_step)
