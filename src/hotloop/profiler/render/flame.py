"""Flame graphs: samples of all processes by stack, as SVG, for speedscope, as text.

    stacks = folded(session, by="on_core")
    write_svg(session, "train.svg")
    write_svg(read_folded("py-spy.txt"), "train.svg")  # others' stacks

What draws takes a session, or stacks and their weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hotloop.errors import ProfileError
from hotloop.profiler.render import collapsed
from hotloop.profiler.render.collapsed import Folded
from hotloop.profiler.render.collapsed import read as read_folded
from hotloop.profiler.render.flame_svg import draw
from hotloop.profiler.session import Frame, Process, Sample, Session
from hotloop.system.files import written_whole

__all__ = [
    "Folded",
    "folded",
    "read_folded",
    "write_folded",
    "write_speedscope",
    "write_svg",
]

By = Literal["elapsed", "on_core", "blocked"]
WHAT = {"elapsed": "all time", "on_core": "time on a core", "blocked": "time blocked"}
# A thread that ran for less than this share of its time only waits: a pool's, a queue's.
_MIN_RUNNING = 0.01


def folded(session: Session, by: By = "elapsed", *, merge_workers: bool = False) -> Folded:
    """Weights of stacks, in nanoseconds, over all processes.

    A stack's first frame is the process, then come the open spans in brackets, then functions. Of
    threads beside the main one those are told that ran for 1 % of their time and more, below a
    frame with their name.

    Args:
        session: what was recorded.
        by: all time between samples; that on a core; that in which the thread was blocked, neither
            on a core nor queued for one.
        merge_workers: whether all workers are one process, "workers".

    Raises:
        ProfileError: the session has no samples.
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
                f"expected samples with {WHAT[by]} in {session.directory}, got none: the system "
                "does not tell it, or the program was too short; pass `--by elapsed`"
            )
        cure = "profile for longer, and without `--interval 0`"
        if not session.about:  # a training's own spans
            cure = "a training keeps none by itself, `hotloop profile train …` does"
        raise ProfileError(f"expected samples of stacks in {session.directory}, got none: {cure}")
    return stacks


def _weight(sample: Sample, by: By) -> int:
    if by == "elapsed":
        return sample.elapsed_ns
    if by == "on_core":
        return sample.on_core_ns
    return sample.elapsed_ns - sample.on_core_ns - sample.queued_ns


def _threads(process: Process) -> dict[int, tuple[Frame, ...]]:
    """The threads that are told, and the frames that their stacks stand below."""
    elapsed: dict[int, int] = {}
    on_core: dict[int, int] = {}
    for sample in process.samples:
        elapsed[sample.thread] = elapsed.get(sample.thread, 0) + sample.elapsed_ns
        on_core[sample.thread] = on_core.get(sample.thread, 0) + sample.on_core_ns
    names = {thread.number: thread.name for thread in process.threads}
    names.update((thread.number, thread.name) for thread in process.span_threads if thread.name)
    return {
        thread: ()
        if thread == process.pid
        else (Frame(f"thread {names.get(thread) or thread}", "", 0),)
        for thread in elapsed
        if thread == process.pid or on_core[thread] >= _MIN_RUNNING * max(elapsed[thread], 1)
    }


def _stacks(source: Session | Folded, by: By, merge_workers: bool) -> Folded:
    if isinstance(source, Session):
        return folded(source, by, merge_workers=merge_workers)
    return source


def write_folded(
    source: Session | Folded,
    path: str | os.PathLike[str],
    *,
    by: By = "elapsed",
    merge_workers: bool = False,
) -> None:
    """Write stacks and their nanoseconds, in Brendan Gregg's collapsed format.

    Args:
        source: a session, or stacks of another one's.
        path: of the file.
        by, merge_workers: as of `folded`, for a session.

    Raises:
        OutputError: it can't be written there.
        ProfileError: the session has no samples.
    """
    stacks = _stacks(source, by, merge_workers)
    # A name that is no valid text is told as far as it is.
    with (
        written_whole(Path(path)) as aside,
        open(aside, "w", encoding="utf-8", errors="replace") as file,
    ):
        file.writelines(collapsed.text(stacks))


def write_svg(
    source: Session | Folded,
    path: str | os.PathLike[str],
    *,
    by: By = "elapsed",
    merge_workers: bool = False,
    title: str | None = None,
) -> None:
    """Write a flame graph that a browser shows without anything else: hover, click, search.

    Args:
        source: a session, or stacks of another one's.
        path: of the file.
        by, merge_workers: as of `folded`, for a session.
        title: what stands above it; None: the program's command.

    Raises:
        OutputError: it can't be written there.
        ProfileError: the session has no samples.
    """
    stacks = _stacks(source, by, merge_workers)
    drawing = draw(stacks, _title(source, by) if title is None else title)
    with written_whole(Path(path)) as aside:
        aside.write_text(drawing, encoding="utf-8")


def _title(source: Session | Folded, by: By) -> str:
    if not isinstance(source, Session):
        return "imported stacks"
    return f"{' '.join(source.command) or source.main.name}: {WHAT[by]}"


def write_speedscope(
    source: Session | Folded,
    path: str | os.PathLike[str],
    *,
    by: By = "elapsed",
    merge_workers: bool = False,
) -> None:
    """Write a file for speedscope.app: a "sampled" profile of each process, in nanoseconds.

    Args:
        source: a session, or stacks of another one's.
        path: of the file.
        by, merge_workers: as of `folded`, for a session.

    Raises:
        OutputError: it can't be written there.
        ProfileError: the session has no samples.
    """
    content = speedscope(_stacks(source, by, merge_workers), _title(source, by))
    with written_whole(Path(path)) as aside, open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))


def speedscope(stacks: Mapping[tuple[Frame, ...], int], name: str) -> dict[str, Any]:
    """The content of speedscope's file: https://www.speedscope.app/file-format-schema.json."""
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
