"""Crowding: the time that a training's threads waited for a core, and its causes."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hotloop.base.control_groups import PROC
from hotloop.base.cores import available_cores
from hotloop.base.processes import CoreTimes, descendants, read_files

# Minimum share of the runnable time that a crowded run waits for cores.
CROWDED_SHARE = 0.15
# Minimum duration of a crowded run, and minimum share of it that one of its threads waited.
_MIN_S, _MIN_SHARE = 1.0, 0.05
# Minimum share of the time in which a working thread is runnable.
_WORKING_SHARE = 0.02
_READ_INTERVAL_S = 5.0
# Minimum speed-up to report. Fewer workers do not help if their work alone fills the cores.
_MIN_GAIN = 1.1
# If a training leaves cores idle for a larger share, only other programs can occupy them.
_FULL_SHARE = 0.8
# Counts of processes and threads are below any kernel's limit of pids.
_MAX_COUNT = 2**22
# Environment variable with the number of trainings that `--seeds` runs at a time.
JOBS = "HOTLOOP_JOBS"
# Start of the line that reports crowding.
CROWDED = "threads waited for a core"


@dataclass(frozen=True, kw_only=True)
class Crowding:
    """The content of a run's `cores.json`: core times of its last process and of its children.

    Attributes:
        cores: number of available cores.
        seconds: seconds since the first iteration.
        on_core_s, queued_s: seconds that all threads together ran on a core, and waited for one.
        longest_s: queued seconds of the thread that waited the longest.
        threads: number of working threads in the main process.
        torch_threads: limit of torch threads, 0 for the number of free cores.
        workers: number of worker processes.
        workers_on_core_s, workers_queued_s: the workers' part of `on_core_s` and `queued_s`.
        jobs: number of trainings that one command runs at a time, 0 without `--seeds` or a sweep.
        others: number of other trainings on the machine while it was crowded.
    """

    cores: int
    seconds: float
    on_core_s: float
    queued_s: float
    longest_s: float
    threads: int = 0
    torch_threads: int = 0
    workers: int = 0
    workers_on_core_s: float = 0.0
    workers_queued_s: float = 0.0
    jobs: int = 0
    others: int = 0

    @property
    def share(self) -> float:
        """Share of the runnable time of all threads that they waited for a core."""
        could_run_s = self.on_core_s + self.queued_s
        return self.queued_s / could_run_s if could_run_s else 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether threads waited for long, so that a change can make the training faster."""
        is_known = self.cores > 0 and self.seconds >= _MIN_S
        is_long = self.share > CROWDED_SHARE and self.longest_s > _MIN_SHARE * self.seconds
        return is_known and is_long and bool(self.causes) and self.gain >= _MIN_GAIN

    @property
    def has_many_threads(self) -> bool:
        """Whether all updates together have more threads than there are cores."""
        total = self.torch_threads * max(1, self.jobs, self.others + 1)
        return self.torch_threads > 1 and min(self.threads, total) > 1 and total > self.cores

    @property
    def enough_workers(self) -> int:
        """Smallest number of workers that keeps the cores as busy, and divides the environments."""
        # A worker computes for this share of the time in which it is not queued. In the rest it
        # sleeps in steps, or waits for the learner.
        share = self.workers_on_core_s / max(
            1e-9, self.workers * self.seconds - self.workers_queued_s
        )
        divisors = [w for w in range(1, self.workers) if self.workers % w == 0]
        return min((w for w in divisors if w * share >= 0.9 * self.cores), default=self.workers)

    @property
    def max_jobs(self) -> int:
        """Number of trainings like this one that fill the cores."""
        free_s = max(self.seconds - self.longest_s, 0.02 * self.seconds)
        used_cores = self.on_core_s / free_s  # if no thread waited
        return max(1, math.floor(self.cores / max(used_cores, 1e-3) + 0.2))

    @property
    def leaves_cores_idle(self) -> bool:
        """Whether this training alone uses less than the available cores."""
        return self.on_core_s < _FULL_SHARE * self.cores * self.seconds

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Causes of crowding with the changes that fix them, most promising first.

        There are none if the training's own processes take turns on the cores and fewer would be
        slower.
        """
        causes: list[tuple[str, str]] = []
        if self.has_many_threads:
            causes.append((f"{self.torch_threads} torch threads", "--torch-threads 1"))
        if self.enough_workers < self.workers:
            causes.append((f"{self.workers} workers", f"--workers {self.enough_workers}"))
        if self.jobs > self.max_jobs:
            causes.append((f"{self.jobs} trainings at a time", f"--jobs {self.max_jobs}"))
        num_unrelated = self.others - max(0, self.jobs - 1)
        if num_unrelated > 0:
            count = f"{num_unrelated} other training{'s' * (num_unrelated > 1)}"
            causes.append((count, "one training at a time"))
        is_own = self.workers > self.cores and self.workers_queued_s > 0.5 * self.queued_s
        if not causes and not is_own and self.leaves_cores_idle:
            causes.append(("other programs", "an idle machine or `nice`"))
        return causes

    @property
    def gain(self) -> float:
        """Upper bound of the speed-up if no thread waits for a core.

        The work done on the cores remains, unless torch threads are too many: threads that share an
        operation spin while they wait for each other.
        """
        min_s = 0.02 * self.seconds
        if not self.has_many_threads:
            min_s = max(min_s, min(self.seconds, self.on_core_s / self.cores))
        return self.seconds / max(self.seconds - self.longest_s, min_s)

    def summary(self) -> str:
        """Return one line for the end of a training, "" if it was not crowded."""
        if not self.is_crowded:
            return ""
        causes = " and ".join(cause for cause, _ in self.causes)
        cores = f"{self.cores} core{'s' * (self.cores > 1)}"
        return (
            f"{CROWDED} for {self.share:.0%} of their runnable time, because of {causes} on "
            f"{cores}: with {self.causes[0][1]}, this training would be up to {self.gain:.1f}× "
            "as fast"
        )

    @classmethod
    def from_json(cls, value: Any) -> Crowding | None:
        """Return the crowding from the content of `cores.json`, None if it is invalid."""
        names = cls.__dataclass_fields__
        if not isinstance(value, dict) or not {"cores", "seconds", "queued_s"} <= value.keys():
            return None
        known = {name: x for name, x in value.items() if name in names}
        for name, x in known.items():
            is_count = names[name].type == "int"
            if type(x) not in ((int,) if is_count else (int, float)):
                return None
            if not 0 <= x < (_MAX_COUNT if is_count else 1e12):
                return None
        try:
            return cls(**known)
        except TypeError:  # a field is missing
            return None


class CrowdingMonitor:
    """A monitor of the core times of this process's threads and of its workers'.

    Args:
        torch_threads: limit of torch threads, 0 for the number of free cores.
        worker_program: a text in the command line of each worker.
        inference_program: a text in the command line of each inference process.
    """

    def __init__(self, torch_threads: int, *, worker_program: str, inference_program: str) -> None:
        self._torch_threads = torch_threads
        self._programs = worker_program, inference_program
        self._main_times: dict[str, CoreTimes] = {}
        self._worker_times: dict[str, CoreTimes] = {}
        self._inference_times: dict[str, CoreTimes] = {}
        self._start_times: dict[str, CoreTimes] = {}
        self._num_others = 0
        self._start_s = self._read_s = time.monotonic()

    def start(self) -> None:
        """Start to count."""
        self._start_s = self._read_s = time.monotonic()
        self._read()
        self._start_times = {**self._main_times, **self._worker_times, **self._inference_times}

    def update(self, *, is_final: bool = False) -> None:
        """Read the times if the last reading is some seconds old, or if this is the last one."""
        now = time.monotonic()
        if not is_final and now - self._read_s < _READ_INTERVAL_S:
            return
        self._read_s = now
        self._read()
        if self.crowding().is_crowded:
            self._num_others = max(self._num_others, _count_other_trainings())

    def crowding(self) -> Crowding:
        """Return the crowding from the start to the last reading."""
        seconds = self._read_s - self._start_s
        main_times, worker_times = self._since(self._main_times), self._since(self._worker_times)
        all_times = [*main_times, *worker_times, *self._since(self._inference_times)]
        working = [times for times in main_times if sum(times) > _WORKING_SHARE * seconds * 1e9]
        return Crowding(
            cores=available_cores(),
            seconds=round(seconds, 3),
            on_core_s=sum(times.on_core_ns for times in all_times) / 1e9,
            queued_s=sum(times.queued_ns for times in all_times) / 1e9,
            longest_s=max((times.queued_ns for times in all_times), default=0) / 1e9,
            threads=len(working),
            torch_threads=self._torch_threads,
            workers=len({path.split("/")[2] for path in self._worker_times}),
            workers_on_core_s=sum(times.on_core_ns for times in worker_times) / 1e9,
            workers_queued_s=sum(times.queued_ns for times in worker_times) / 1e9,
            jobs=_num_jobs(),
            others=self._num_others,
        )

    def _since(self, times: dict[str, CoreTimes]) -> list[CoreTimes]:
        zero = CoreTimes(0, 0)
        return [
            CoreTimes(*(b - a for b, a in zip(end, self._start_times.get(path, zero), strict=True)))
            for path, end in times.items()
        ]

    def _read(self) -> None:
        """Read the times. A thread that ended keeps its last times."""
        processes = descendants()
        workers, inference = (
            [process.pid for process in processes if program in process.command]
            for program in self._programs
        )
        for times, pids in (
            (self._main_times, [os.getpid()]),
            (self._worker_times, workers),
            (self._inference_times, inference),
        ):
            for path, text in read_files([f"/proc/{pid}/task/*/schedstat" for pid in pids]):
                with suppress(ValueError):
                    on_core, queued, _ = map(int, text.split())
                    times[path] = CoreTimes(on_core, queued)


def _num_jobs() -> int:
    text = os.environ.get(JOBS, "")
    return int(text) if text.isdecimal() else 0


def _count_other_trainings() -> int:
    """Return the number of other processes that run `hotloop train` or `resume`."""
    count = 0
    with suppress(OSError):
        for entry in os.scandir(PROC):
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    count += _is_training((PROC / entry.name / "cmdline").read_bytes())
    return count


def _is_training(command: bytes) -> bool:
    """Return whether a command trains by itself. With `--seeds` it only waits for others."""
    arguments = command.decode(errors="replace").split("\0")
    for name, command_name in pairwise(arguments):
        if name.rpartition("/")[2] == "hotloop" and command_name in ("train", "resume"):
            return not any(x.partition("=")[0] == "--seeds" for x in arguments)
    return False
