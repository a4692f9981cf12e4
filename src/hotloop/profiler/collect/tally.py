"""Times of threads by place, from the kernel's counters at two consecutive samples."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from hotloop.base.processes import CoreTimes

# A longer time without a sample is not divided by the state at its end.
_MAX_GAP_NS = 1_000_000_000


class _Observation(NamedTuple):
    """State of a thread at a sample: time, kernel counters, place, and cause of its wait."""

    at_ns: int
    times: CoreTimes | None
    key: tuple[int, int, int]
    wait: str | None


class _PlaceTimes:
    """Samples of a thread in one place, with times in nanoseconds."""

    __slots__ = ("elapsed", "on_core", "queued", "samples", "waits")

    def __init__(self) -> None:
        self.samples = self.on_core = self.queued = self.elapsed = 0
        self.waits: dict[str, int] = {}

    def add(self, elapsed: int, on_core: int, queued: int, wait: str | None) -> None:
        """Add the time between two samples to the place of the second one."""
        # If the thread was blocked at the tick, all of the time is blocked. If it ran, the time is
        # divided in proportion to the kernel's on-core and queued time. If the state is unknown
        # (`wait` is None), the place gets the kernel's counts since the previous sample. So it does
        # if they are small in a long time, as after Ctrl-Z and `fg`.
        self.elapsed += elapsed
        runnable = on_core + queued
        if wait:
            self.waits[wait] = self.waits.get(wait, 0) + elapsed
        elif wait is None or (elapsed > _MAX_GAP_NS and 0 < runnable < elapsed / 2):
            self.on_core += on_core
            self.queued += queued
        else:
            queued_part = round(elapsed * queued / runnable) if runnable > 0 else 0
            self.queued += queued_part
            self.on_core += elapsed - queued_part

    def fields(self) -> list[Any]:
        """Return the row in the format of the samples file."""
        numbers = [self.samples, self.on_core, self.queued, self.elapsed]
        return [*numbers, self.waits] if self.waits else numbers


class Tally:
    """Counts of samples and sums of times, by thread, path of spans and stack.

    Attributes:
        last_sample_ns: time of the last sample.
        has_thread_times: whether the system reports the on-core time of threads. If not, as on
            macOS, all time counts as on a core, and waiting cannot be distinguished from computing.
    """

    def __init__(self) -> None:
        self.last_sample_ns = 0
        self.has_thread_times = True
        # By thread, at the previous sample and at the current one.
        self._previous: dict[int, _Observation] = {}
        self._current: dict[int, _Observation] = {}
        self._counts: dict[tuple[int, int, int], _PlaceTimes] = {}

    def begin(self, thread: int, at_ns: int, times: CoreTimes | None) -> None:
        """Start a thread's time, so that the time before its first sample counts."""
        self._current[thread] = _Observation(at_ns, times, (0, 0, 0), None)

    def add(
        self,
        thread: int,
        path: int,
        stack: int,
        at_ns: int,
        times: CoreTimes | None,
        wait: str | None,
    ) -> None:
        """Count a sample of a thread, and the time since the previous one."""
        if at_ns != self.last_sample_ns:
            self.last_sample_ns, self._previous, self._current = at_ns, self._current, {}
        key = thread, path, stack
        row = self._row_of(key)
        row.samples += 1
        previous = self._previous.get(thread)
        if previous is not None:
            on_core_ns = queued_ns = 0
            if times is not None and previous.times is not None:
                on_core_ns = times.on_core_ns - previous.times.on_core_ns
                queued_ns = times.queued_ns - previous.times.queued_ns
            elif not self.has_thread_times:
                on_core_ns = at_ns - previous.at_ns
            row.add(at_ns - previous.at_ns, on_core_ns, queued_ns, wait)
        self._current[thread] = _Observation(at_ns, times, key, wait)

    def add_idle(self, until_ns: int, ticks: int) -> None:
        """Add samples of a time in which no thread ran since its last sample."""
        if not ticks:
            return
        for thread, observation in self._current.items():
            row = self._row_of(observation.key)
            row.samples += ticks
            # The thread has not run since its sample: it was blocked then, or just before blocking.
            row.add(until_ns - observation.at_ns, 0, 0, observation.wait or None)
            self._current[thread] = observation._replace(at_ns=until_ns)

    def threads(self) -> Set[int]:
        """Return the threads of the last sample."""
        return self._current.keys()

    def busy_threads(self) -> list[int]:
        """Return the threads that were runnable for over a fifth of the last sampling interval."""
        busy: list[int] = []
        for thread, current in self._current.items():
            previous = self._previous.get(thread)
            if previous is None or previous.times is None or current.times is None:
                continue
            if sum(current.times) - sum(previous.times) > 0.2 * (current.at_ns - previous.at_ns):
                busy.append(thread)
        return busy

    def pop(self) -> list[list[Any]]:
        """Return the counts since the last call, in the format of the samples file."""
        counts, self._counts = self._counts, {}
        return [[*key, *row.fields()] for key, row in counts.items()]

    def _row_of(self, key: tuple[int, int, int]) -> _PlaceTimes:
        row = self._counts.get(key)
        if row is None:
            row = self._counts[key] = _PlaceTimes()
        return row
