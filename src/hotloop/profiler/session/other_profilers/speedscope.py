"""Files of speedscope, which py-spy and other samplers write.

See https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hotloop.profiler.session import Frame
from hotloop.profiler.session.other_profilers.stacks import (
    MAIN,
    OtherProfile,
    StackSample,
    without_middle,
)

_UNITS_NS = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
_INTERVAL_NS = 10_000_000
_NAME = re.compile(r'(?:Process (?P<pid>\d+) )?Thread (?P<thread>\S+)(?: "(?P<name>.*)")?')


def read(document: dict[str, Any]) -> OtherProfile:
    """Return the profile in a speedscope file.

    Raises:
        KeyError, IndexError, TypeError, ValueError: The file is damaged.
    """
    frames = [_frame(frame) for frame in document["shared"]["frames"]]
    tool = str(document.get("exporter") or "speedscope").partition("@")[0]
    profile = OtherProfile(
        tool,
        [],
        [
            "its stacks have no spans, memory or causes of waits, and threads that wait may be "
            "left out"
        ],
        _INTERVAL_NS,
    )
    samples: list[StackSample] = []
    for item in document["profiles"]:
        process, thread = _names(str(item.get("name", "")), profile)
        unit_ns = _UNITS_NS.get(item.get("unit", ""), _INTERVAL_NS)
        rows = _sampled(item) if item.get("type") == "sampled" else _evented(item)
        at = 0.0
        for stack, weight in rows:
            at += weight * unit_ns
            places = tuple(frames[_index(number, len(frames))] for number in stack)
            samples.append(
                StackSample(process, thread, places, round(weight * unit_ns), end_ns=round(at))
            )
    profile.samples = samples
    return profile


def _names(name: str, profile: OtherProfile) -> tuple[str, str]:
    """Return the process and the thread of a profile, by the names that py-spy gives."""
    match = _NAME.fullmatch(name)
    if match is None:
        if name != MAIN and profile.tool == "hotloop":
            profile.parents[name] = MAIN
        return (name or MAIN), ""
    process = f"process {match['pid']}" if match["pid"] else MAIN
    if match["pid"]:
        profile.pids[process] = int(match["pid"])
    thread = match["name"] or match["thread"]
    # The main thread has its process's number.
    is_main = thread == "MainThread" or (match["pid"] and match["thread"] == match["pid"])
    return process, "" if is_main else thread


def _frame(frame: dict[str, Any]) -> Frame:
    line = frame.get("line")
    if not isinstance(line, int) or not 0 < line < 2**31:
        line = 0
    return Frame(str(frame["name"]), str(frame.get("file") or ""), line)


def _index(number: Any, size: int) -> int:
    if not isinstance(number, int) or not 0 <= number < size:
        raise ValueError(f"frame {number!r} must be below {size:,}")
    return number


def _sampled(item: dict[str, Any]) -> list[tuple[Sequence[Any], float]]:
    weights = item.get("weights") or [1] * len(item["samples"])
    return list(zip(item["samples"], map(_weight, weights), strict=True))


def _evented(item: dict[str, Any]) -> list[tuple[Sequence[Any], float]]:
    """Return the stacks between the opening and closing of frames."""
    rows: list[tuple[Sequence[Any], float]] = []
    stack: list[Any] = []
    previous = float(item["startValue"])
    for event in item["events"]:
        at = _weight(event["at"])
        rows.append((without_middle(stack), max(0.0, at - previous)))
        previous = at
        if event["type"] == "O":
            stack.append(event["frame"])
        elif stack:
            stack.pop()
    return rows


def _weight(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value < 2**60:
        raise ValueError(f"a time must be a number of 0 or more, got {value!r}")
    return float(value)
