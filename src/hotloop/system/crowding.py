"""Crowding: how long a training's threads waited for a core, and which of them are too many."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hotloop.system.cores import available_cores
from hotloop.system.groups import PROC
from hotloop.system.processes import Times, descendants, read_files

# Share of the time in which threads could run that they wait for a core, from which on it is told.
TOLD = 0.15
# Of a shorter time, and of threads that could run for less of it, nothing is told.
_LEAST_S, _LEAST_SHARE = 1.0, 0.05
# A thread that could run for so much of the time is at work.
_AT_WORK = 0.02
# Seconds between two looks.
_LOOK_S = 5.0
_WORKER, _INFERENCE = "hotloop.rollouts.worker", "hotloop.rollouts.inference"
# In the environment of trainings that `--seeds` starts: how many run at a time.
JOBS = "HOTLOOP_JOBS"
# How the line begins that tells of it.
CROWDED = "threads waited for a core"


@dataclass(frozen=True, kw_only=True)
class Crowding:
    """What `cores.json` of a run says, of the process that ran last and of those that it started.

    Attributes:
        cores: that it may use.
        seconds: from the first iteration on.
        on_core_s, queued_s: of all threads together: on a core, and waiting for one.
        longest_s: the queued time of the thread that waited the longest.
        threads: of the learner that were at work.
        torch_threads: that it was allowed; 0: as many as are free.
        workers: processes.
        workers_queued_s: their part of `queued_s`.
        jobs: trainings that `--seeds` runs at a time; 0: it was started by itself.
        others: other trainings on the machine, while cores were short.
    """

    cores: int
    seconds: float
    on_core_s: float
    queued_s: float
    longest_s: float
    threads: int = 0
    torch_threads: int = 0
    workers: int = 0
    workers_queued_s: float = 0.0
    jobs: int = 0
    others: int = 0

    @property
    def share(self) -> float:
        """Of the time in which threads could run, what they waited for a core."""
        could_run_s = self.on_core_s + self.queued_s
        return self.queued_s / could_run_s if could_run_s else 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether there is something to tell."""
        is_known = self.cores > 0 and self.seconds >= _LEAST_S
        return is_known and self.share > TOLD and self.longest_s > _LEAST_SHARE * self.seconds

    @property
    def has_many_threads(self) -> bool:
        """Whether its update has more threads than it finds cores for."""
        wanted = self.torch_threads * max(1, self.jobs, self.others + 1)
        return self.torch_threads > 1 and min(self.threads, wanted) > 1 and wanted > self.cores

    @property
    def has_many_workers(self) -> bool:
        """Whether its workers are more than the cores, and are what waits."""
        return self.workers > self.cores and self.workers_queued_s > 0.5 * self.queued_s

    @property
    def causes(self) -> list[tuple[str, str]]:
        """What is too many, and the option that cures it; the first is to be tried first."""
        found: list[tuple[str, str]] = []
        if self.has_many_threads:
            found.append((f"{self.torch_threads} torch threads", "--torch-threads 1"))
        if self.has_many_workers:
            found.append((f"{self.workers} workers", f"--workers {self.cores}, or auto"))
        fewer = max(1, self.cores // (1 + self.workers))
        if self.jobs > fewer:
            found.append((f"{self.jobs} seeds at a time", f"--jobs {fewer}"))
        strangers = self.others - max(0, self.jobs - 1)
        if strangers > 0:
            count = f"{strangers} other training{'s' * (strangers > 1)}"
            found.append((f"{count} beside this one", "one after another: --seeds 1-5 --jobs 1"))
        return found or [("other programs", "a machine of its own, or nice for the others")]

    @property
    def gain(self) -> float:
        """How many times as fast it is at most if nothing waits for a core.

        Work that was done on the cores has to be done then too; but threads that share an operation
        spin while they wait for each other.
        """
        least_s = 0.02 * self.seconds
        if not self.has_many_threads:
            least_s = max(least_s, min(self.seconds, self.on_core_s / self.cores))
        return self.seconds / max(self.seconds - self.longest_s, least_s)

    def told(self) -> str:
        """In a line, for the end of a training; "" where there is nothing to tell."""
        if not self.is_crowded:
            return ""
        what = " and ".join(cause for cause, _ in self.causes)
        cores = f"{self.cores} core{'s' * (self.cores > 1)}"
        return (
            f"{CROWDED} for {self.share:.0%} of the time in which they could run: "
            f"{what} on {cores}; up to {self.gain:.1f}× as fast without; try "
            f"{self.causes[0][1]}"
        )

    @classmethod
    def of(cls, value: Any) -> Crowding | None:
        """Of a file's content; None where it is of another shape."""
        names = cls.__dataclass_fields__
        if not isinstance(value, dict) or not {"cores", "seconds", "queued_s"} <= value.keys():
            return None
        known = {name: x for name, x in value.items() if name in names}
        try:
            if not all(type(x) in (int, float) and 0 <= x < 1e12 for x in known.values()):
                return None
            return cls(**known)
        except TypeError:
            return None


class CoreTimes:
    """Adds up how long threads of this process and of its workers are on a core and queued.

    Args:
        torch_threads: that the update is allowed; 0: as many as are free.
    """

    def __init__(self, torch_threads: int) -> None:
        self._torch_threads = torch_threads
        self._own: dict[str, Times] = {}
        self._workers: dict[str, Times] = {}
        self._inference: dict[str, Times] = {}
        self._begin: dict[str, Times] = {}
        self._others = 0
        self._began_s = self._looked_s = time.monotonic()

    def begin(self) -> None:
        """Count from here on."""
        self._began_s = self._looked_s = time.monotonic()
        self._read()
        self._begin = {**self._own, **self._workers, **self._inference}

    def look(self, *, is_last: bool = False) -> None:
        """Read the times, if some have passed since the last look."""
        now = time.monotonic()
        if not is_last and now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        self._read()
        if self.crowding().is_crowded:
            self._others = max(self._others, _other_trainings())

    def crowding(self) -> Crowding:
        """What is known by the last look."""
        seconds = self._looked_s - self._began_s
        own, workers = self._since(self._own), self._since(self._workers)
        every = [*own, *workers, *self._since(self._inference)]
        at_work = [one for one in own if sum(one) > _AT_WORK * seconds * 1e9]
        return Crowding(
            cores=available_cores(),
            seconds=round(seconds, 3),
            on_core_s=sum(one.on_core_ns for one in every) / 1e9,
            queued_s=sum(one.queued_ns for one in every) / 1e9,
            longest_s=max((one.queued_ns for one in every), default=0) / 1e9,
            threads=len(at_work),
            torch_threads=self._torch_threads,
            workers=len({path.split("/")[2] for path in self._workers}),
            workers_queued_s=sum(one.queued_ns for one in workers) / 1e9,
            jobs=_jobs(),
            others=self._others,
        )

    def _since(self, times: dict[str, Times]) -> list[Times]:
        none = Times(0, 0)
        return [
            Times(*(now - then for now, then in zip(one, self._begin.get(path, none), strict=True)))
            for path, one in times.items()
        ]

    def _read(self) -> None:
        """Read them; of threads that have ended, what was last seen stays."""
        started = descendants()
        workers, inference = (
            [one.pid for one in started if program in one.command]
            for program in (_WORKER, _INFERENCE)
        )
        for into, pids in (
            (self._own, [os.getpid()]),
            (self._workers, workers),
            (self._inference, inference),
        ):
            for path, text in read_files([f"/proc/{pid}/task/*/schedstat" for pid in pids]):
                with suppress(ValueError):
                    on_core, queued, _ = map(int, text.split())
                    into[path] = Times(on_core, queued)


def _jobs() -> int:
    text = os.environ.get(JOBS, "")
    return int(text) if text.isdecimal() else 0


def _other_trainings() -> int:
    """Count the processes that train by `hotloop train` or `resume`, this one left out."""
    found = 0
    with suppress(OSError):
        for entry in os.scandir(PROC):
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    found += _is_training((PROC / entry.name / "cmdline").read_bytes())
    return found


def _is_training(command: bytes) -> bool:
    """Whether a command trains by itself; one with `--seeds` waits for others that do."""
    arguments = command.decode(errors="replace").split("\0")
    for name, then in pairwise(arguments):
        if name.rpartition("/")[2] == "hotloop" and then in ("train", "resume"):
            return not any(x.partition("=")[0] == "--seeds" for x in arguments)
    return False
