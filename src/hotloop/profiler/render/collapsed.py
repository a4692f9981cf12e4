"""Stacks as text, one per line: `main;step (envs.py:12);_roll (dynamics.py:3) 12000`.

This is Brendan Gregg's collapsed format, which flamegraph.pl, inferno and speedscope draw. The
dialects of py-spy and austin can also be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hotloop.base.files import read_regular
from hotloop.errors import ProfileError
from hotloop.profiler.session import Frame

Folded = dict[tuple[Frame, ...], int]
"""Weights in nanoseconds by stack. A stack starts with the outermost frame, a process."""

# py-spy counts samples, by default a hundred per second.
PY_SPY_INTERVAL_NS = 10_000_000
# hotloop's sampler thread, which other profilers count as busy.
_OUR_SAMPLER = "hotloop/profiler/collect/sampler.py"

_PLACE = re.compile(r"(?P<function>.+) \((?P<file>.*?)(?::(?P<line>-?\d+))?\)")
_PY_SPY_PROCESS = re.compile(r'process \d+:".*?"(?=;|$)')
_PY_SPY_THREAD = re.compile(r"thread \((0x)?[0-9A-Fa-f]+\)(: .*)?")
_AUSTIN_HEAD = re.compile(r"P(?P<pid>\d+);T(?:-?\d+:)?(?P<thread>[0-9A-Fa-fx]+)(?:;|$)")
_AUSTIN_METRICS = re.compile(r"(?P<stack>.*?)(?P<metrics>(?: [+-]?\d+(?:,[+-]?\d+)*)+)")
_AUSTIN_LINE = re.compile(r"L\d+")


def format_lines(stacks: Mapping[tuple[Frame, ...], int]) -> Iterator[str]:
    """Yield the lines, sorted by the stacks' names."""
    lines = [(";".join(map(_format_frame, stack)), weight) for stack, weight in stacks.items()]
    for line, weight in sorted(lines):
        yield f"{line} {weight}\n"


def _format_frame(frame: Frame) -> str:
    place = f" ({frame.file}:{frame.first_line})" if frame.file else ""
    return f"{frame.function}{place}".replace(";", ":").replace("\n", " ")


def read(path: str | os.PathLike[str]) -> Folded:
    """Read stacks written by py-spy (`--format raw`), austin or `write_folded`.

    A sample of py-spy counts for 10 ms, its default interval. Austin's threads other than a
    process's main one have a frame of their own. Samples of hotloop's own sampler are skipped.

    Raises:
        ProfileError: The file can't be read, is in austin's binary format, or has no stacks.
    """
    path = Path(path)
    try:
        raw = read_regular(path)
    except OSError as error:
        raise ProfileError(
            f"expected stacks of py-spy or austin in {path}, got '{error.strerror or error}': pass "
            "a file of `py-spy record --format raw` or austin"
        ) from error
    if raw.startswith(b"MOJ"):
        raise ProfileError(
            f"expected stacks as text in {path}, got austin's binary MOJO format: "
            f"convert it with `mojo2austin {path} stacks.austin` (pip install austin-python)"
        )
    lines = raw.decode("utf-8", "replace").split("\n")
    is_austin = any(_AUSTIN_HEAD.match(line) for line in lines)
    stacks: Folded = {}
    counts_samples = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.startswith("# "):
            _check_mode(path, line)
            continue
        parsed = _austin(line) if is_austin else _plain(line, path.stem)
        if parsed is None:
            if number == len(lines):  # the writer was killed
                continue
            raise ProfileError(
                f"expected `frame;frame;... weight` in line {number} of {path}, got "
                f"{line[:80]!r}: export py-spy's stacks with `--format raw`, austin's as text"
            )
        stack, weight, is_count = parsed
        counts_samples |= is_count
        if weight > 0 and not any(frame.file.endswith(_OUR_SAMPLER) for frame in stack):
            stacks[stack] = stacks.get(stack, 0) + weight
    if not stacks:
        raise ProfileError(f"expected stacks of py-spy or austin in {path}, got none: record again")
    if counts_samples:
        stacks = {stack: count * PY_SPY_INTERVAL_NS for stack, count in stacks.items()}
    return stacks


def _check_mode(path: Path, line: str) -> None:
    key, _, value = line[2:].partition(": ")
    if key.strip() == "mode" and value.strip() == "memory":
        raise ProfileError(
            f"expected stacks and their times in {path}, got bytes of austin's memory mode: "
            "record without `--memory`"
        )


def _plain(line: str, process: str) -> tuple[tuple[Frame, ...], int, bool] | None:
    """Parse a line of py-spy or hotloop, whose lines start with a process and have nanoseconds."""
    stack, _, weight = line.rstrip("\r").rpartition(" ")
    if not stack or not weight.isdigit():
        return None
    frames: list[Frame] = []
    # Lines of a child start with its parents: the innermost process was sampled.
    while match := _PY_SPY_PROCESS.match(stack):
        frames = [Frame(match.group(), "", 0)]
        stack = stack[match.end() + 1 :]
    functions = [_frame(text) for text in stack.split(";")] if stack else []
    is_hotloop = (
        not frames and bool(functions) and not functions[0].file and not _is_thread(functions[0])
    )
    if not frames and not is_hotloop:
        frames = [Frame(process, "", 0)]
    return (*frames, *functions), int(weight), not is_hotloop


def _is_thread(frame: Frame) -> bool:
    return _PY_SPY_THREAD.fullmatch(frame.function) is not None


def _frame(text: str) -> Frame:
    match = None if _PY_SPY_THREAD.fullmatch(text) else _PLACE.fullmatch(text)
    # `worker-3 (1234)` is a process that shares its name, not a function.
    if match is None or match["file"].isdigit():
        return Frame(text, "", 0)
    return Frame(match["function"], match["file"], int(match["line"] or 0))


def _austin(line: str) -> tuple[tuple[Frame, ...], int, bool] | None:
    """`P<pid>;T<interpreter>:<thread>;file:function:line;... time[,idle,memory]`, in µs."""
    # Before version 3 there was no interpreter, line numbers were separate frames
    # (`file:function;L12`), and further metrics followed a space.
    match = _AUSTIN_METRICS.fullmatch(line.rstrip("\r"))
    head = match and _AUSTIN_HEAD.match(match["stack"])
    if not match or not head:
        return None
    pid, thread = head["pid"], head["thread"]
    frames = [Frame(f"process {pid}", "", 0)]
    # The main thread has its process's number, in some versions as hexadecimal.
    if thread not in (pid, f"{int(pid):x}"):
        frames.append(Frame(f"thread {thread}", "", 0))
    for text in filter(None, match["stack"][head.end() :].split(";")):
        if not _AUSTIN_LINE.fullmatch(text):
            frames.append(_austin_frame(text))
    return tuple(frames), int(re.split("[ ,]", match["metrics"].strip())[0]) * 1000, False


def _austin_frame(text: str) -> Frame:
    file, _, line = text.rpartition(":")
    if line.isdigit() or not line:
        file, _, function = file.rpartition(":")
        return Frame(function, file, int(line or 0))
    return Frame(line, file, 0)
