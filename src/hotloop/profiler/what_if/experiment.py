"""The experiment beside a running program: it delays one candidate at a time in short windows.

    with Experiment(directory):
        record_program(arguments, directory, what_if=True)
    read_result(directory)

Undelayed windows alternate with delayed ones, whose candidates come in random order. So slow
changes of the program or of the machine affect both alike. If one thread does all of the program's
work, it queues for a core only because of other programs. Windows then exclude this time.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hotloop.base import processes
from hotloop.base.files import atomic_write
from hotloop.base.processes import CoreTimes
from hotloop.base.signals import start_thread
from hotloop.errors import ConfigError, HotloopError, ProfileError
from hotloop.profiler.collect import delays
from hotloop.profiler.collect.samples import THREAD_PREFIX
from hotloop.profiler.session.reading import read
from hotloop.profiler.what_if import places
from hotloop.profiler.what_if.elasticity import Window
from hotloop.profiler.what_if.places import MeasuredPlace, Place, PlaceTimes
from hotloop.profiler.what_if.result import WhatIf, measured

# Delay relative to the time of the place. A longer delay is measured more precisely. A shorter one
# distinguishes a bottleneck from a stage that is almost one.
_DELAY = 0.5
# Samples after importing before candidates are chosen, and the time between two attempts.
_LEAST_SAMPLES, _ATTEMPT_S = 250, 2.0
_ARMING_S = 0.3  # until all processes have read the points
# A trial counts the passes of all points.
_TRIAL_S, _TRIAL_STEP_S = 1.0, 0.01
_LEAST_RATE = 3.0  # passes per second of a measure of progress
_MAX_CANDIDATES = 6
# A point that is passed more often slows the program by more than 3 %.
_MAX_RATE = 200_000.0
# Times until the delays are adapted to the latest samples. A trial slows the program.
_FIRST_REFRESH_S, _REFRESH_S = 3.0, 10.0
_WINDOW_S, _SETTLE_S = 0.2, 0.04
# Part of the CPU time of a thread that does all of the work.
_ALL_WORK = 0.95
# A window has at least this many of the longest times between two units of progress.
_GAPS = 2.0


class Experiment:
    """An experiment with the program that is recorded in a directory.

    Args:
        directory: directory of the profile.
        names: candidates of the user; empty to choose them by samples.
        progress: the user's measure of progress; empty to choose one.
    """

    def __init__(self, directory: Path, names: Sequence[str] = (), progress: str = "") -> None:
        self._directory = directory
        self._files = directory / delays.DIRECTORY
        self._names, self._progress_name = names, progress
        self._stopping = threading.Event()
        self._counters: dict[str, memoryview] = {}
        self._points: list[MeasuredPlace] = []
        self._candidates: list[int] = []  # indices of points
        self._progress = -1
        # CPU time and sleep per call in ns, and whether the CPU time needs no interpreter lock.
        self._delays: dict[int, tuple[int, int, int]] = {}
        self._windows: list[Window] = []
        self._notes: list[str] = []
        self._excludes_queues = False
        self._window_s = _WINDOW_S
        # When the windows began: sampled times and the end of the samples, in ns.
        self._start: tuple[PlaceTimes, int] = {}, 0
        self._start_progress = 0, 0
        self._problem = "it ended before samples of its loop were taken"

    def __enter__(self) -> Experiment:
        self._files.mkdir()
        path = self._files / delays.CONTROL_FILE
        path.write_bytes(bytes(8 * delays.NUM_CONTROLS))
        with path.open("r+b") as file:
            self._control = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._control[delays.QUEUE_POINT] = -1
        self._rng = random.Random(0)
        self._thread = start_thread(self._run, name="what-if")
        return self

    def __exit__(self, *_: object) -> None:
        """Store the result in the profile's directory, after the program's end."""
        self._stopping.set()
        self._thread.join()
        try:
            result = self.result()
        except Exception as error:  # the results of the program must not depend on it
            result = WhatIf(problem=str(error))
        with contextlib.suppress(OSError):  # a full disk
            result.write(self._directory)

    def result(self) -> WhatIf:
        """Return the result, after the program's end."""
        if not self._windows:
            return WhatIf(problem=self._problem)
        times, sampled_ns = self._read_times()
        result = measured(
            [self._points[index].place for index in self._candidates],
            self._windows,
            places.difference(times, self._start[0]),
            sampled_ns - self._start[1],
            self._progress_rate(),
            self._points[self._progress].place,
            self._window_s,
            excludes_queues=self._excludes_queues,
        )
        result.notes += self._notes
        return result

    def _read_times(self) -> tuple[PlaceTimes, int]:
        """Return the sampled times so far, and the time of the last sample."""
        session = read(self._directory)
        ends = [process.periods[-1].end_ns for process in session.processes if process.periods]
        return places.activities(session), max(ends, default=0)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with contextlib.suppress(_Stopped):
                self._prepare()
                self._measure()
        except HotloopError as error:
            self._problem = str(error)
        except Exception as error:  # the program goes on
            self._problem = f"{type(error).__name__}: {error}"

    def _prepare(self) -> None:
        """Choose candidates and the measure of progress, as soon as there are any."""
        before: PlaceTimes = {}
        before_s = time.monotonic()
        while True:
            self._wait(_ATTEMPT_S)
            try:
                after = places.activities(read(self._directory))
            except ProfileError:  # nothing is recorded yet
                continue
            now_s = time.monotonic()
            recent = places.difference(after, before)
            if sum(time.count for time in recent.values()) < _LEAST_SAMPLES:
                continue
            try:
                chosen = self._choose_points(recent, (now_s - before_s) * 1e9)
            except ConfigError as error:  # the named place may run later
                self._problem, chosen = str(error), []
            if chosen and self._try_points(len(chosen)):
                self._set_delays(recent, self._rates[self._progress] * (now_s - before_s))
                return
            before, before_s = after, now_s

    def _choose_points(self, recent: PlaceTimes, wall_ns: float) -> list[Place]:
        """Write the points of candidates and possible measures of progress."""
        chosen = [places.find_place(name, recent) for name in self._names]
        chosen = (chosen or places.candidates(recent, wall_ns))[: delays.MAX_POINTS // 2]
        if self._progress_name:
            progress = [places.find_place(self._progress_name, recent)]
        else:
            progress = places.progress_places(recent)
        if not chosen:
            self._problem = "no place of its own code takes 5 % of the time"
            return []
        files = places.own_files(recent)
        unique = [*dict.fromkeys([*chosen, *progress])][: delays.MAX_POINTS]
        self._points = [places.point_of(place, files) for place in unique]
        self._write_points(range(len(self._points)), is_final=False)
        self._progress_order = [unique.index(place) for place in progress if place in unique]
        return chosen

    def _write_points(self, indices: Iterable[int], *, is_final: bool) -> None:
        """Make the program's processes call the points with these indices."""
        used = {*indices}
        points = [
            point.to_json() if index in used else {"places": [], "spans": []}
            for index, point in enumerate(self._points)
        ]
        with atomic_write(self._files / delays.POINTS_FILE) as partial:
            content = json.dumps({"points": points, "is_final": is_final})
            partial.write_text(content, encoding="utf-8")
        self._wait(_ARMING_S)

    def _try_points(self, num_candidates: int) -> bool:
        """Count all points for a second. Choose the measure of progress and possible candidates."""
        number, first_times = len(self._points), self._thread_times()
        for index in range(number):
            self._control[delays.FIRST_MODE + index] = delays.COUNTED
        first = [self._count(index, delays.CALLS) for index in range(number)]
        start_s = time.monotonic()
        latest, gaps, last_s = first[:], [0.0] * number, [start_s] * number
        duration_s = _TRIAL_S
        while (now_s := time.monotonic()) < start_s + duration_s:
            self._wait(_TRIAL_STEP_S)
            for index in self._progress_order:
                calls = self._count(index, delays.CALLS)
                gaps[index] = max(gaps[index], now_s - last_s[index])
                if calls != latest[index]:
                    latest[index], last_s[index] = calls, now_s
        passed_s = time.monotonic() - start_s
        rates = [
            (self._count(index, delays.CALLS) - first[index]) / passed_s for index in range(number)
        ]
        self._rates = rates
        self._excludes_queues = _has_only_thread(first_times, self._thread_times())
        least_rate = 1e-9 if self._progress_name else _LEAST_RATE
        self._progress = next((i for i in self._progress_order if rates[i] >= least_rate), -1)
        for index in range(number):
            is_progress = index == self._progress
            mode = delays.COUNTED if is_progress else delays.IGNORED
            self._control[delays.FIRST_MODE + index] = mode
        if self._progress < 0:
            self._problem = (
                "it has no measure of progress: no environment step, update or loop of its own "
                "ran at least 3 times a second; name one with `--progress FILE:LINE`"
            )
            return False
        possible = [i for i in range(num_candidates) if 0 < rates[i] <= _MAX_RATE]
        self._notes = [
            f"{self._points[i].place.label} ran {rates[i]:,.0f} times a second, expected between "
            "1 and 200,000: name a line inside or around it"
            for i in range(num_candidates)
            if self._names and i not in possible
        ]
        self._candidates = possible[:_MAX_CANDIDATES]
        if not self._candidates:
            self._problem = (
                "none of the candidates ran between once and 200,000 times a second; name another "
                "place with `--what-if-at`"
            )
            return False
        self._window_s = max(_WINDOW_S, _GAPS * gaps[self._progress])
        self._control[delays.QUEUE_POINT] = self._progress if self._excludes_queues else -1
        self._write_points([*self._candidates, self._progress], is_final=True)
        return True

    def _set_delays(self, times: PlaceTimes, units: float) -> None:
        """Compute the delay of a call from sampled times during some units of progress."""
        for index in self._candidates:
            time_in = places.time_in(self._points[index].place, times)
            calls = max(1e-9, units * self._rates[index] / self._rates[self._progress])
            cpu_ns, sleep_ns = _DELAY * time_in.cpu_ns / calls, _DELAY * time_in.blocked_ns / calls
            without_lock = time_in.lock_free_ns > 0.5 * time_in.cpu_ns
            self._delays[index] = round(cpu_ns), round(sleep_ns), int(without_lock)

    def _measure(self) -> None:
        """Run windows until the program ends."""
        self._start = self._read_times()
        self._start_progress = self._count(self._progress, delays.CALLS), time.monotonic_ns()
        self._problem = ""
        due_s, is_first = time.monotonic() + _FIRST_REFRESH_S, True
        while True:
            if time.monotonic() > due_s:
                self._refresh_delays()
                if is_first:  # the trial slowed the program, so the first delays are too long
                    self._windows.clear()
                due_s, is_first = time.monotonic() + _REFRESH_S, False
            order = self._candidates[:]
            self._rng.shuffle(order)
            for index in order:
                self._windows.append(self._run_window(-1))
                self._windows.append(self._run_window(index))

    def _refresh_delays(self) -> None:
        """Compute the delays again, from all samples since the windows began."""
        times, end_ns = self._read_times()
        units = self._progress_rate() * (end_ns - self._start[1]) / 1e9
        if units > 0:
            self._set_delays(places.difference(times, self._start[0]), units)

    def _progress_rate(self) -> float:
        """Return units of progress per second since the windows began, including queues."""
        first_units, first_ns = self._start_progress
        last_ns = max(self._column(self._progress, delays.LAST_NS), default=0)
        units = self._count(self._progress, delays.CALLS) - first_units
        return units / max(1e-9, (last_ns - first_ns) / 1e9)

    def _run_window(self, index: int) -> Window:
        """Delay a point (−1: none) for the length of a window."""
        mode_word = delays.FIRST_MODE + index
        if index >= 0:
            for word, value in enumerate(self._delays[index]):  # CPU_NS, SLEEP_NS, WITHOUT_LOCK
                self._control[word] = value
            self._control[mode_word] = delays.DELAYED
        try:
            self._wait(_SETTLE_S + 0.1 * self._window_s)
            first_calls, first_ns, first_delay_ns = self._read_progress(index)
            self._wait(self._window_s)
            while (reading := self._read_progress(index))[0] == first_calls:
                self._wait(_TRIAL_STEP_S)
        finally:
            if index >= 0:
                is_progress = index == self._progress
                self._control[mode_word] = delays.COUNTED if is_progress else delays.IGNORED
        calls, last_ns, delay_ns = reading
        return Window(
            self._candidates.index(index) if index >= 0 else -1,
            calls - first_calls,
            last_ns - first_ns,
            delay_ns - first_delay_ns,
        )

    def _read_progress(self, index: int) -> tuple[int, int, int]:
        """Return units of progress, the time of the last one, and the delays of a point."""
        delay_ns = self._count(index, delays.DELAYED_NS) if index >= 0 else 0
        if not self._excludes_queues:
            last_ns = max(self._column(self._progress, delays.LAST_NS), default=0)
            return self._count(self._progress, delays.CALLS), last_ns, delay_ns
        while True:  # until the process does not write in between
            calls = self._count(self._progress, delays.READ_CALLS)
            read_ns = self._count(self._progress, delays.READ_NS)
            queued_ns = self._count(self._progress, delays.QUEUED_NS)
            if calls == self._count(self._progress, delays.READ_CALLS):
                return calls, read_ns - queued_ns, delay_ns

    def _thread_times(self) -> dict[int, CoreTimes]:
        """Return the kernel's times of the program's threads, by native id."""
        self._column(0, delays.CALLS)  # opens the files of new processes
        pids = {int(name.partition("-")[0]) for name in self._counters}
        return {
            thread.number: thread.times
            for pid in pids
            for thread in processes.threads(pid)
            if not thread.name.startswith(THREAD_PREFIX)
        }

    def _count(self, index: int, counter: int) -> int:
        return sum(self._column(index, counter))

    def _column(self, index: int, counter: int) -> list[int]:
        """Return a counter of a point in all processes."""
        for path in self._files.glob(f"*{delays.COUNTERS_SUFFIX}"):
            if path.name not in self._counters and path.stat().st_size:
                with path.open("rb") as file:
                    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    self._counters[path.name] = memoryview(view).cast("q")
        word = index * delays.NUM_COUNTERS + counter
        return [counters[word] for counters in self._counters.values()]

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped


def _has_only_thread(before: Mapping[int, CoreTimes], after: Mapping[int, CoreTimes]) -> bool:
    """Return whether one thread did all of the work between two readings."""
    on_core_ns = [
        times.on_core_ns - (before[thread].on_core_ns if thread in before else 0)
        for thread, times in after.items()
    ]
    return bool(on_core_ns) and max(on_core_ns) >= _ALL_WORK * sum(on_core_ns) > 0


class _Stopped(Exception):
    """The program has ended."""
