"""Profiles for the Firefox Profiler, which Python's profiling.sampling writes with `--gecko`.

This is the processed format: tables of stacks, frames and functions in columns, for each thread.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from hotloop.profiler.session import Frame
from hotloop.profiler.session.other_profilers.stacks import (
    MAIN,
    OtherProfile,
    StackSample,
    without_middle,
)

_MAX_INTERVAL_MS = 10_000.0


def read(document: dict[str, Any]) -> OtherProfile:
    """Return the profile in a document.

    Raises:
        KeyError, IndexError, TypeError, ValueError: The document is damaged.
    """
    metadata = document["meta"]
    interval_ms = float(metadata["interval"])
    if not 0 < interval_ms <= _MAX_INTERVAL_MS:
        raise ValueError(f"its interval must be up to {_MAX_INTERVAL_MS:,} ms, got {interval_ms}")
    interval_ns = max(1, round(interval_ms * 1e6))
    is_python = "Tachyon" in str(metadata.get("importedFrom", ""))
    profile = OtherProfile(
        "profiling.sampling" if is_python else str(metadata.get("product") or "another profiler"),
        [],
        [
            "its stacks have no spans, memory or causes of waits, and files have no folders, so "
            "that only files beside the recording or in the current directory count as yours"
        ],
        interval_ns,
        has_folders=not is_python,
    )
    samples: list[StackSample] = []
    for thread in document["threads"]:
        samples += _thread_samples(document, thread, profile)
    profile.samples = samples
    return profile


def _thread_samples(
    document: dict[str, Any], thread: dict[str, Any], profile: OtherProfile
) -> list[StackSample]:
    texts = document.get("shared", {}).get("stringArray") or thread["stringArray"]
    stacks = _stacks(thread, texts)
    pid = str(thread.get("pid", ""))
    process = f"process {pid}" if pid.isdigit() else MAIN
    if pid.isdigit():
        profile.pids[process] = int(pid)
    name = "" if thread.get("isMainThread") else str(thread.get("name") or thread.get("tid"))
    starts, ends = _marked(thread, texts, "Off CPU")
    samples: list[StackSample] = []
    for stack, at in zip(thread["samples"]["stack"], thread["samples"]["time"], strict=True):
        if stack is None:
            continue
        if not isinstance(stack, int) or not 0 <= stack < len(stacks):
            raise ValueError(f"stack {stack!r} must be below {len(stacks):,}")
        marker = bisect_right(starts, at) - 1
        is_idle = marker >= 0 and at < ends[marker]
        end_ns = max(0, round(float(at) * 1e6)) + profile.interval_ns
        samples.append(
            StackSample(process, name, stacks[stack], profile.interval_ns, (), is_idle, end_ns)
        )
    return samples


def _stacks(thread: dict[str, Any], texts: list[Any]) -> list[tuple[Frame, ...]]:
    """Return the frames of each stack."""
    frames, functions, table = thread["frameTable"], thread["funcTable"], thread["stackTable"]

    def text(number: int | None) -> str:
        return "" if number is None else str(texts[number])

    places = [
        Frame(
            text(functions["name"][function]),
            text(functions["fileName"][function]),
            line if isinstance(line, int) and 0 < line < 2**31 else 0,
        )
        for function, line in zip(frames["func"], frames["line"], strict=True)
    ]
    stacks: list[tuple[Frame, ...]] = []
    for frame, prefix in zip(table["frame"], table["prefix"], strict=True):
        if prefix is not None and not 0 <= prefix < len(stacks):
            raise ValueError(f"stack {len(stacks):,} has an impossible prefix {prefix!r}")
        outer = () if prefix is None else stacks[prefix]
        stacks.append(without_middle((*outer, places[frame])))
    return stacks


def _marked(thread: dict[str, Any], texts: list[Any], name: str) -> tuple[list[float], list[float]]:
    """Return the starts and ends of a thread's markers of a name, in order."""
    markers = thread.get("markers") or {}
    pairs = sorted(
        (float(start), float(end))
        for number, start, end in zip(
            markers.get("name", ()),
            markers.get("startTime", ()),
            markers.get("endTime", ()),
            strict=True,
        )
        if texts[number] == name and end is not None
    )
    return [start for start, _ in pairs], [end for _, end in pairs]
