"""Collection in a worker whose actions come from the inference process.

A worker's environments form two halves. One half steps while the other waits for its actions. No
half is more than one row ahead.
"""

from __future__ import annotations

from collections.abc import Callable

from hotloop.envs import DoubleBufferedEnvs
from hotloop.errors import EnvironmentFailure
from hotloop.rollouts.collector import HalfStepObserver, PolicyInputs, check_rows
from hotloop.rollouts.processes.shared_memory import (
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
from hotloop.types import Array, StepArrays


class CentralCollector(PolicyInputs):
    """Steps environments with actions from the inference process; see `LocalCollector`.

    Args:
        envs: Environments in halves.
        shared: Shared memory for rows, requests and answers.
        worker: Number of the worker.
        first_row: Number of the first row.
        has_value: Whether rows are evaluated.
        has_episode_noise: Whether the exploration is an `EpisodeNoise`.
        wake_inference: Wakes the inference process.
        wait: Waits until the inference process may have answered.
    """

    def __init__(
        self,
        envs: DoubleBufferedEnvs,
        shared: SharedMemory,
        worker: int,
        *,
        first_row: int,
        has_value: bool,
        has_episode_noise: bool = False,
        wake_inference: Callable[[], None],
        wait: Callable[[], None],
    ) -> None:
        self._weights, self._memory = shared.weights, shared.workers[worker]
        memory_size = self._memory.slots[0].fragment.last_memory.shape[1]
        super().__init__(envs, memory_size, vector_steps=first_row)
        self.episode_starts = self._memory.episode_starts  # read by the inference process
        self._has_episode_noise = has_episode_noise
        self._halves, self._ranges = envs.halves, envs.ranges
        self._requests = [request.data for request in shared.requests[worker]]
        self._answers = [answer.data for answer in shared.answers[worker]]
        self._has_value, self._wake_inference, self._wait = has_value, wake_inference, wait
        # Evaluation is another request, during which neither half steps.
        self.chunk_s = 0.1 if has_value else 0.002
        self._publication = NEWEST
        self.requested_version = -1
        # For each slot and step, views of each half's actions and results.
        self._views: list[list[list[tuple[Array, StepArrays]]]] = [
            [
                [
                    (action[start:stop], StepArrays(*(array[start:stop] for array in arrays)))
                    for start, stop in envs.ranges
                ]
                for _, _, _, action, arrays in slot.rows
            ]
            for slot in self._memory.slots
        ]
        # Wait for the answers to the previous process's requests. Its rows are collected again.
        for kind in range(len(self._requests)):
            self._wait_for(kind)

    def load(self, number: int) -> None:
        """See `LocalCollector`."""
        self._publication = number

    def load_newest(self) -> None:
        """See `LocalCollector`."""
        words, weights = self._memory.words, self._weights
        self._publication = NEWEST
        if self.requested_version >= 0:
            return  # the learner has already read this version
        while True:
            newest = weights.newest
            words[ACTING] = weights.newest_version
            if weights.newest == newest:
                return

    def collect(self, slot_index: int, start: int, stop: int, observer: HalfStepObserver) -> None:
        """See `LocalCollector`.

        Raises:
            EnvironmentFailure: An environment raised, or returned NaN or a wrong shape.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        slot, versions = self._memory.slots[slot_index], self._memory.versions[slot_index]
        memories, memory, halves = slot.memories, None, self._halves
        tracks_episodes = bool(memories) or self._has_episode_noise
        # Request the actions of the first row, unless an earlier call has requested them.
        if self.requested_version < 0:
            for half_index in range(len(halves)):
                self._request_actions(half_index)
        self.requested_version = -1
        has_next_row = False
        for t in range(start, stop):
            if memories:
                memory = memories[t + 1]
            self.obs = slot.rows[t][-1].obs
            for half_index, (half, (action, arrays)) in enumerate(
                zip(halves, self._views[slot_index][t], strict=True)
            ):
                # Step this half, then request its next actions while the other half steps.
                version = self._wait_for(half_index)
                versions[t] = version if half_index == 0 else min(version, versions[t])
                observer.on_step_start()
                with span("env_step"):
                    try:
                        half.step(action, arrays)
                    except EnvironmentFailure:
                        # NaN from the policy or from an earlier step may be the cause.
                        first_step = self.vector_steps - (t - start)
                        check_rows(slot, start, t, self.envs.obs_spec, first_step)
                        raise
                if tracks_episodes:
                    first, last = self._ranges[half_index]
                    is_over = arrays.terminated | arrays.truncated | ~arrays.valid
                    if memory is not None:
                        memory[first:last][is_over] = 0.0
                        self.memory = memory
                    if self._has_episode_noise:
                        self.episode_starts[first:last][is_over] = self.vector_steps + 1
                if half_index == 0:
                    has_next_row = t + 1 < stop
                    if not has_next_row and observer.has_room():
                        has_next_row, self.requested_version = True, self._weights.newest_version
                if half_index < len(halves) - 1:
                    observer.on_half_step()
                if has_next_row:
                    self._request_actions(half_index, num_ahead=1)
            self.vector_steps += 1
            observer.on_step_end(t)
        check_rows(slot, start, stop, self.envs.obs_spec, self.vector_steps - (stop - start))

    def evaluate(self, slot_index: int, start: int, stop: int) -> None:
        """See `LocalCollector`."""
        if not self._has_value:
            return
        with span("evaluate"):
            first = self.vector_steps - (stop - start)
            self._send(EVALUATION, (first, self.vector_steps, 0, self.envs.num_envs))
            self._wait_for(EVALUATION)

    def _request_actions(self, half_index: int, num_ahead: int = 0) -> None:
        """Request a half's actions for the row that is `num_ahead` rows after the current one."""
        row = self.vector_steps + num_ahead
        slot_index, t = self._memory.slot_and_step(row)
        slot, (first, stop) = self._memory.slots[slot_index], self._ranges[half_index]
        assert self.obs is not None
        if t == 0 or not num_ahead:  # otherwise the previous step has written the inputs
            slot.fragment.obs[t, first:stop] = self.obs[first:stop]
            slot.fragment.mask[t, first:stop] = self._halves[half_index].mask
            slot.fragment.memory[t, first:stop] = self.memory[first:stop]
        self._send(half_index, (row, row + 1, first, stop))

    def _send(self, kind: int, row_and_env_ranges: tuple[int, int, int, int]) -> None:
        request = self._requests[kind]
        request[FIRST], request[STOP], request[FIRST_ENV], request[STOP_ENV] = row_and_env_ranges
        request[PUBLICATION] = self._publication
        request[SERIAL] += 1
        self._wake_inference()

    def _wait_for(self, kind: int) -> int:
        """Wait for the answer to a request, and return the version that acted."""
        request, answer = self._requests[kind], self._answers[kind]
        if answer[SERIAL] != request[SERIAL]:
            with span("wait_for_inference", kind="wait"):
                while answer[SERIAL] != request[SERIAL]:
                    self._wait()
        return answer[VERSION]
