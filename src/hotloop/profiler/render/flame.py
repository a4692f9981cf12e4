"""Flame graphs: samples of all processes by stack, as SVG, speedscope file or text.

stacks = folded(session, by="on_core")
write_svg(session, "train.svg")
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hotloop.base.files import atomic_write
from hotloop.errors import ProfileError
from hotloop.profiler.render.flame_svg import draw
from hotloop.profiler.session import Frame, ProfiledProcess, Sample, Session
from hotloop.profiler.session.sums import sums

__all__ = [
    "Folded",
    "folded",
    "write_folded",
    "write_speedscope",
    "write_svg",
]

Folded = dict[tuple[Frame, ...], int]
"""Weights in nanoseconds by stack. A stack starts with the outermost frame, a process."""

TimeKind = Literal["elapsed", "on_core", "blocked"]
TIME_NAMES = {"elapsed": "all time", "on_core": "time on CPU", "blocked": "blocked time"}
# A thread that runs for a smaller share of its time only waits, such as one of a pool or queue.
_MIN_RUNNING = 0.01


def folded(session: Session, by: TimeKind = "elapsed", *, merge_workers: bool = False) -> Folded:
    """Return the weights of stacks, in nanoseconds, over all processes.

    A stack's first frame is the process. Then come the open spans in brackets, then functions.
    Threads other than the main one are included if they ran for at least 1 % of their time. Their
    stacks start with a frame that has the thread's name.

    Args:
        session: the recorded session.
        by: the time to count: all time between samples ("elapsed"), time on the CPU ("on_core"),
            or time in which the thread neither ran nor was queued for a core ("blocked").
        merge_workers: whether to merge all workers into one process, "workers".

    Raises:
        ProfileError: The session has no samples.
    """
    stacks: Folded = {}
    for process in session.processes:
        name = "workers" if merge_workers and process.role == "worker" else process.name
        threads = _threads(process)
        for sample in process.samples:
            if sample.thread not in threads:
                continue
            weight = _weight(sample, by)
            if weight <= 0:
                continue
            stack = (
                Frame(name, "", 0),
                *threads[sample.thread],
                *(Frame(f"[{span}]", "", 0) for span in sample.path),
                *process.stacks[sample.stack].frames,
            )
            stacks[stack] = stacks.get(stack, 0) + weight
    if not stacks:
        if by != "elapsed" and any(process.samples for process in session.processes):
            raise ProfileError(
                f"expected samples with {TIME_NAMES[by]} in {session.directory}, got none: the "
                "system does not provide it, or the program was too short; pass `--by elapsed`"
            )
        advice = "profile for longer, and without `--interval 0`"
        if not session.metadata:  # spans that a training recorded
            advice = "a training records only spans, use `hotloop profile train …`"
        raise ProfileError(f"expected samples of stacks in {session.directory}, got none: {advice}")
    return stacks


def _weight(sample: Sample, by: TimeKind) -> int:
    if by == "elapsed":
        return sample.elapsed_ns
    if by == "on_core":
        return sample.on_core_ns
    return sample.elapsed_ns - sample.on_core_ns - sample.queued_ns


def _threads(process: ProfiledProcess) -> dict[int, tuple[Frame, ...]]:
    """Return the included threads, with the frames above their stacks."""
    elapsed = sums((sample.thread, sample.elapsed_ns) for sample in process.samples)
    on_core = sums((sample.thread, sample.on_core_ns) for sample in process.samples)
    names = process.thread_names
    return {
        thread: ()
        if thread == process.pid
        else (Frame(f"thread {names.get(thread) or thread}", "", 0),)
        for thread in elapsed
        if thread == process.pid or on_core[thread] >= _MIN_RUNNING * max(elapsed[thread], 1)
    }


def write_folded(
    session: Session,
    path: str | os.PathLike[str],
    *,
    by: TimeKind = "elapsed",
    merge_workers: bool = False,
) -> None:
    """Write stacks with their nanoseconds in Brendan Gregg's collapsed format.

    Raises:
        OutputError: The file can't be written.
        ProfileError: The session has no samples.
    """
    text = "".join(format_lines(folded(session, by, merge_workers=merge_workers)))
    with atomic_write(Path(path)) as partial:  # replaces invalid characters in names
        partial.write_text(text, encoding="utf-8", errors="replace")


def format_lines(stacks: Mapping[tuple[Frame, ...], int]) -> Iterator[str]:
    """Yield the lines of the collapsed format, sorted by the stacks' names."""
    lines = [(";".join(map(_format_frame, stack)), weight) for stack, weight in stacks.items()]
    for line, weight in sorted(lines):
        yield f"{line} {weight}\n"


def _format_frame(frame: Frame) -> str:
    place = f" ({frame.file}:{frame.first_line})" if frame.file else ""
    return f"{frame.function}{place}".replace(";", ":").replace("\n", " ")


def write_svg(
    session: Session,
    path: str | os.PathLike[str],
    *,
    by: TimeKind = "elapsed",
    merge_workers: bool = False,
) -> None:
    """Write a self-contained flame graph for browsers, with tooltips, zoom and search.

    See `write_folded`. The title is the program's command.
    """
    stacks = folded(session, by, merge_workers=merge_workers)
    drawing = draw(stacks, _title(session, by))
    with atomic_write(Path(path)) as partial:
        partial.write_text(drawing, encoding="utf-8")


def _title(session: Session, by: TimeKind) -> str:
    return f"{' '.join(session.command) or session.main.name}: {TIME_NAMES[by]}"


def write_speedscope(
    session: Session,
    path: str | os.PathLike[str],
    *,
    by: TimeKind = "elapsed",
    merge_workers: bool = False,
) -> None:
    """Write a file for speedscope.app, with a "sampled" profile of each process, in nanoseconds.

    See `write_folded`.
    """
    content = speedscope(folded(session, by, merge_workers=merge_workers), _title(session, by))
    with atomic_write(Path(path)) as partial, open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))


def speedscope(stacks: Mapping[tuple[Frame, ...], int], name: str) -> dict[str, Any]:
    """Return the content of a speedscope file: https://www.speedscope.app/file-format-schema.json."""
    numbers: dict[Frame, int] = {}
    by_process: dict[str, list[tuple[list[int], int]]] = {}
    for (process, *frames), weight in stacks.items():
        sample = [numbers.setdefault(frame, len(numbers)) for frame in frames]
        by_process.setdefault(process.function, []).append((sample, weight))
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "hotloop",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(frame) for frame in numbers]},
        "profiles": [
            {
                "type": "sampled",
                "name": process,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weight for _, weight in samples),
                "samples": [sample for sample, _ in samples],
                "weights": [weight for _, weight in samples],
            }
            for process, samples in by_process.items()
        ],
    }


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": frame.function}
    if frame.file:
        fields["file"] = frame.file
        if frame.first_line > 0:
            fields["line"] = frame.first_line
    return fields
