"""The file of samples of one process: what its threads were doing, a hundred times a second.

`<component>-<pid>.samples.jsonl`, beside the process's recording: one JSON object a line, each a
period of about a second, so that a process killed with SIGKILL leaves all but its last second; the
first second is written in three parts. The first line says who it is. Code places and stacks are
numbered when they first come up.

    {"version": 1, "pid": …, "parent_pid": …, "component": …, "host": …, "boot_id": …,
     "start_ns": …, "ticks": …, "interval_s": …, "python": …, "command": […], "cores": …}
    {"t": …, "early": …, "last": …, "places": […], "stacks": […], "paths": […],
     "counts": […], "threads": […], "spans": […], "cpu_ns": …, "rss": …, "own_ns": …,
     "facts": {…}, "problems": {…}, "others": […], "recordings": […]}

* `ticks`: when the process began, as the kernel has it, so that another of its number is not
  taken for it.
* `t`: CLOCK_MONOTONIC at the end of the period; `early`: the next line is of the same one; `last`:
  sampling was ended, by the program's end as a rule.
* `places`: new ones, [function, file, first line]; `stacks`: new ones, [[place, …], [line, …]] from
  the outermost in, with the lines that ran in what runs and in the user's code, and 0 elsewhere;
  `paths`: new ones, names of the spans that were open.
* `counts`: of this period, [thread, path, stack, samples, on core, queued, elapsed, waits], the
  times in nanoseconds between a thread's samples. `waits` says of those in which it was blocked on
  what: "sleep", "lock", "interpreter" (its lock), "child", "disk", "network", "pipe", "events"
  (of several descriptors), "something"; it is left out where it is empty.
* `threads`: [native number, name, on core, queued], nanoseconds since the thread began.
* `spans`: all there are so far, [path's names, kind, count, total ns, open]; of the process.
* `own_ns`: CPU time of sampling; `facts`: what hooks have seen, numbers by name;
  `problems`: what could not be hooked, and why.
* `others`: descendants, [pid, parent, command, cpu ns]; `recordings`: directories recorded to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.timing.clocks import Clocks

VERSION = 1
_HEADER = {
    "version": int,
    "pid": int,
    "parent_pid": int,
    "component": str,
    "boot_id": str,
    "start_ns": int,
}
SUFFIX = ".samples.jsonl"
OWN_THREADS = "hotloop-"  # what the kernel calls those that sample begins with this
# In the files of code that is not the user's.
LIBRARY = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "<frozen ",
    "<string>",
    "/hotloop/profiler/",  # installed in place, its wrappers lie elsewhere
    "/hotloop/timing/",
)


class SamplesError(ValueError):
    """A file that holds no samples, or is of a newer version."""


class Samples(NamedTuple):
    """All that one process left.

    Attributes:
        about: the first line.
        periods: the others, in their order.
        is_torn: the last line is not whole.
    """

    about: dict[str, Any]
    periods: list[dict[str, Any]]
    is_torn: bool


def told_by(clocks: Clocks, samples: Samples) -> Samples:
    """Return samples as if they had been taken on the machine whose clock that is."""
    clock = clocks.others.get(samples.about["boot_id"])
    if clock is None:
        return samples
    about: dict[str, Any] = {**samples.about, "boot_id": clocks.boot_id}
    about["start_ns"] += clock.offset_ns
    for name in ("pid", "parent_pid"):
        about[name] += clock.first_pid
    periods = [one | {"t": one["t"] + clock.offset_ns} for one in samples.periods]
    return samples._replace(about=about, periods=periods)


def read(path: Path) -> Samples:
    """Read a file, whether its process has ended, still writes, or was killed.

    Raises:
        SamplesError: it holds no samples, or is of a newer version.
        OSError: it can't be read.
    """
    lines = list(_lines(path))
    about = lines[0] if lines else None
    if not isinstance(about, dict) or not _HEADER.items() <= _types(about).items():
        raise SamplesError(
            f"expected samples of a profile in {path}, got a file that does not begin with one's "
            "header: leave it out, or profile again"
        )
    if about["version"] > VERSION:
        raise SamplesError(
            f"expected samples of version {VERSION} or older in {path}, got version "
            f"{about['version']}: update hotloop"
        )
    periods: list[dict[str, Any]] = []
    for line in lines[1:]:
        if not isinstance(line, dict) or not isinstance(line.get("t"), int):
            break  # what comes after it may refer to what it told of
        periods.append(line)
    return Samples(about, periods, is_torn=len(periods) < len(lines) - 1)


def _types(about: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in about.items()}


def _lines(path: Path) -> Iterator[Any]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                yield None
