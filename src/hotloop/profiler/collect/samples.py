"""The samples file of one process: what its threads did, about a hundred times a second.

`<component>-<pid>.samples.jsonl`, beside the process's recording, has one JSON object per line. The
first line describes the process. Each other line is a period of about a second, so that a process
killed with SIGKILL loses at most its last second. The first second is written in three parts. Code
places, stacks and paths are numbered in the order of their first use.

    {"version": 1, "pid": …, "parent_pid": …, "component": …, "host": …, "boot_id": …,
     "start_ns": …, "ticks": …, "interval_s": …, "python": …, "command": […], "cores": …}
    {"t": …, "early": …, "last": …, "places": […], "stacks": […], "paths": […],
     "counts": […], "threads": […], "spans": […], "cpu_ns": …, "rss": …, "own_ns": …,
     "facts": {…}, "problems": {…}, "others": […], "recordings": […]}

* `ticks`: start time of the process according to the kernel. It distinguishes processes that had
  the same process id.
* `t`: CLOCK_MONOTONIC at the end of the period. `early`: the next line continues this period.
  `last`: sampling ended, usually because the program ended.
* `places`: new places, [function, file, first line]. `stacks`: new stacks, [[place, …], [line, …]],
  outermost first; of a deep one, both ends. Lines are recorded for the innermost frame and the
  user's code, and 0 elsewhere.
  `paths`: new paths, the names of the spans that were open.
* `counts`: [thread, path, stack, samples, on core, queued, elapsed, waits] of this period, with
  times in nanoseconds between samples of the thread. `waits` divides the blocked time by cause:
  "sleep", "lock", "interpreter" (the GIL), "child", "disk", "network", "pipe", "events" (of
  several descriptors), "something". An empty `waits` is omitted.
* `threads`: [native thread id, name, on core, queued], in nanoseconds since the thread started.
* `spans`: [names of the path, kind, count, total ns, open], of the process since its start.
* `own_ns`: CPU time of the sampling. `facts`: numbers that hooks recorded, by name.
  `problems`: modules that could not be hooked, and the errors.
* `executed`: only before a call of exec, {"command": […], "has_settings": …} of the new program.
* `others`: descendants, [pid, parent, command, cpu ns]. `recordings`: the recordings' files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.base.files import open_regular
from hotloop.base.line_checksums import LineChecksums
from hotloop.timing.clocks import Clock, Clocks

VERSION = 1
_HEADER_TYPES = {
    "version": int,
    "pid": int,
    "parent_pid": int,
    "component": str,
    "boot_id": str,
    "start_ns": int,
}
# Fields that older versions lack.
_OPTIONAL_TYPES = {"host": str, "ticks": int, "interval_s": float, "command": list, "cores": int}
_MAX_INTERVAL_S = 3600.0
_MAX_INTEGER = 2**62  # of times in nanoseconds
SUFFIX = ".samples.jsonl"
THREAD_PREFIX = "hotloop-"  # names of the sampling threads start with this
# Parts of the paths of files that are not the user's code.
_LIBRARY_PATHS = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "/hotloop/profiler/",  # outside site-packages in an editable install
    "/hotloop/timing/",
)
# Code that a library writes: `<string>`, `<eval_with_key>`, or Inductor's cache, whose files are
# named after their content. The code of a notebook's cell is the user's.
_GENERATED = re.compile(
    r"^<(?!ipython-input|stdin>)|/torchinductor_[^/]*/|/([a-z2-7]{2})/c\1[a-z2-7]{20,}\.py$"
)


def is_library_file(file: str) -> bool:
    """Return whether a source file belongs to a library or to Python, or was generated."""
    return any(part in file for part in _LIBRARY_PATHS) or bool(_GENERATED.search(file))


class SamplesError(ValueError):
    """An error about a file without samples or of a newer version."""


@dataclass
class Samples:
    """The content of a samples file.

    Attributes:
        header: first line.
        periods: other lines, in their order, up to the first damaged one. They are read from the
            file as they are used, once, since all of them take several times the file's size.
        is_torn: whether the last line is incomplete. Known after the last period.
        damage: number of the damaged line and its problem, "" if there is none. Known then, too.
    """

    header: dict[str, Any]
    periods: Iterable[dict[str, Any]]
    is_torn: bool = False
    damage: str = ""


def align_clocks(clocks: Clocks, samples: Samples) -> Samples:
    """Convert times and process ids to those of the main machine, and return the samples."""
    clock = clocks.by_boot.get(samples.header["boot_id"])
    if clock is None:
        return samples
    samples.header |= {"boot_id": clocks.boot_id}
    samples.header["start_ns"] += clock.offset_ns
    for name in ("pid", "parent_pid"):
        samples.header[name] += clock.first_pid
    samples.periods = _align_periods(samples.periods, clock, samples.header["pid"])
    return samples


def _align_periods(
    periods: Iterable[dict[str, Any]], clock: Clock, pid: int
) -> Iterator[dict[str, Any]]:
    """Yield the periods of the process that has the pid `pid` now. So has its main thread."""
    for period in periods:
        for rows in (period.get("counts", ()), period.get("threads", ())):
            for row in rows:
                if row[0] == pid - clock.first_pid:
                    row[0] = pid
        yield period | {"t": period["t"] + clock.offset_ns}


def read(path: Path) -> Samples:
    """Read a samples file. Its process may have ended, still run, or have been killed.

    Raises:
        SamplesError: The file has no samples, or is of a newer version.
        OSError: The file cannot be read.
    """
    samples = Samples({}, ())
    samples.periods = lines = _read_lines(path, samples)
    header = next(lines, None)
    if not isinstance(header, dict) or not _has_types(header):
        raise SamplesError(
            f"expected samples of a profile in {path}, got a file without their "
            "header: remove it, or profile again"
        )
    if header["version"] > VERSION:
        raise SamplesError(
            f"expected samples of version {VERSION} or older in {path}, got version "
            f"{header['version']}: update hotloop"
        )
    samples.header = header
    return samples


def _read_lines(path: Path, samples: Samples) -> Iterator[Any]:
    """Yield the header and the periods of a file, and set the other attributes of `samples`."""
    checksums = LineChecksums()
    with open_regular(path) as file:
        for number, line in enumerate(file, 1):
            samples.is_torn = not line.endswith(b"\n")
            try:
                content = json.loads(checksums.check(line.rstrip(b"\n")))
            except (ValueError, RecursionError) as error:
                if not samples.is_torn:
                    samples.damage = f"line {number}: {error}"
                return  # later lines may refer to numbers that this one defined
            samples.is_torn = False
            if number > 1 and not (isinstance(content, dict) and _is_integer(content.get("t"))):
                samples.damage = f"line {number}: it has no time"
                return
            yield content


def _has_types(header: dict[str, Any]) -> bool:
    """Return whether the fields of a header have their types, and possible values."""
    types = {name: type(value) for name, value in header.items()}
    optional = {name: kind for name, kind in _OPTIONAL_TYPES.items() if name in header}
    if not _HEADER_TYPES.items() | optional.items() <= types.items():
        return False
    if not all(_is_integer(value) for value in header.values() if isinstance(value, int)):
        return False
    interval_s, command = header.get("interval_s", 0.0), header.get("command", ())
    return 0 <= interval_s <= _MAX_INTERVAL_S and all(isinstance(text, str) for text in command)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < _MAX_INTEGER
