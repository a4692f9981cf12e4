"""Stacks as text, one a line with its weight: `main;step (envs.py:12);_roll (dynamics.py:3) 12000`.

Brendan Gregg's collapsed format, which flamegraph.pl, inferno and speedscope draw. py-spy and
austin write dialects of it, which are read here too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hotloop.errors import ProfileError
from hotloop.profiler.session import Frame

Folded = dict[tuple[Frame, ...], int]
"""Weights in nanoseconds of stacks, from the outermost frame in. The first is a process."""

# py-spy counts samples; by default it takes a hundred a second.
PY_SPY_INTERVAL_NS = 10_000_000
# A thread that only looks at the others, and that others' samplers take for busy.
_OUR_SAMPLER = "hotloop/profiler/collect/sampler.py"

_PLACE = re.compile(r"(?P<function>.+) \((?P<file>.*?)(?::(?P<line>-?\d+))?\)")
_PY_SPY_PROCESS = re.compile(r'process \d+:".*?"(?=;|$)')
_PY_SPY_THREAD = re.compile(r"thread \((0x)?[0-9A-Fa-f]+\)(: .*)?")
_AUSTIN_HEAD = re.compile(r"P(?P<pid>\d+);T(?:-?\d+:)?(?P<thread>[0-9A-Fa-fx]+)(?:;|$)")
_AUSTIN_METRICS = re.compile(r"(?P<stack>.*?)(?P<metrics>(?: [+-]?\d+(?:,[+-]?\d+)*)+)")
_AUSTIN_LINE = re.compile(r"L\d+")


def text(stacks: Mapping[tuple[Frame, ...], int]) -> Iterator[str]:
    """The lines, in the order of the stacks' names."""
    lines = [(";".join(map(_text_of, stack)), weight) for stack, weight in stacks.items()]
    for line, weight in sorted(lines):
        yield f"{line} {weight}\n"


def _text_of(frame: Frame) -> str:
    place = f" ({frame.file}:{frame.first_line})" if frame.file else ""
    return f"{frame.function}{place}".replace(";", ":").replace("\n", " ")


def read(path: str | os.PathLike[str]) -> Folded:
    """Read stacks that py-spy (`--format raw`), austin or `write_folded` have written.

    Of py-spy's samples each counts for 10 ms, as by its default rate; austin's times are taken as
    they are. Its threads other than a process's main one have a frame of their own. What was seen
    of our own sampler is left out.

    Raises:
        ProfileError: it can't be read, is in austin's binary format, or holds no stacks and times.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"expected stacks of py-spy or austin in {path}, got '{error.strerror or error}': name "
            "what `py-spy record --format raw` or austin has written"
        ) from error
    if raw.startswith(b"MOJ"):
        raise ProfileError(
            f"expected stacks as text in {path}, got austin's binary MOJO format: "
            f"`mojo2austin {path} stacks.austin` (pip install austin-python) makes text of it"
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
            if number == len(lines):  # the writer was killed in the middle of it
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
            f"expected stacks and their times in {path}, got austin's memory mode, which has "
            "bytes: record without `--memory`"
        )


def _plain(line: str, process: str) -> tuple[tuple[Frame, ...], int, bool] | None:
    """A line of py-spy's, or one of our own, which begins with a process and has nanoseconds."""
    stack, _, weight = line.rstrip("\r").rpartition(" ")
    if not stack or not weight.isdigit():
        return None
    frames: list[Frame] = []
    # Of a child's the parents are told too: the innermost process is the one that was sampled.
    while found := _PY_SPY_PROCESS.match(stack):
        frames = [Frame(found.group(), "", 0)]
        stack = stack[found.end() + 1 :]
    rest = [_frame(text) for text in stack.split(";")] if stack else []
    is_ours = not frames and bool(rest) and not rest[0].file and not _is_thread(rest[0])
    if not frames and not is_ours:
        frames = [Frame(process, "", 0)]
    return (*frames, *rest), int(weight), not is_ours


def _is_thread(frame: Frame) -> bool:
    return _PY_SPY_THREAD.fullmatch(frame.function) is not None


def _frame(text: str) -> Frame:
    found = None if _PY_SPY_THREAD.fullmatch(text) else _PLACE.fullmatch(text)
    # `worker-3 (1234)` is a process that shares its name, and no place.
    if found is None or found["file"].isdigit():
        return Frame(text, "", 0)
    return Frame(found["function"], found["file"], int(found["line"] or 0))


def _austin(line: str) -> tuple[tuple[Frame, ...], int, bool] | None:
    """`P<pid>;T<interpreter>:<thread>;file:function:line;... time[,idle,memory]`, in microseconds.

    Before version 3 there was no interpreter, lines stood as frames of their own
    (`file:function;L12`), and further metrics behind a space.
    """
    found = _AUSTIN_METRICS.fullmatch(line.rstrip("\r"))
    head = found and _AUSTIN_HEAD.match(found["stack"])
    if not found or not head:
        return None
    pid, thread = head["pid"], head["thread"]
    frames = [Frame(f"process {pid}", "", 0)]
    # The main thread has its process's number; some versions write it in hexadecimal.
    if thread not in (pid, f"{int(pid):x}"):
        frames.append(Frame(f"thread {thread}", "", 0))
    for text in filter(None, found["stack"][head.end() :].split(";")):
        if not _AUSTIN_LINE.fullmatch(text):
            frames.append(_austin_frame(text))
    return tuple(frames), int(re.split("[ ,]", found["metrics"].strip())[0]) * 1000, False


def _austin_frame(text: str) -> Frame:
    file, _, line = text.rpartition(":")
    if line.isdigit() or not line:
        file, _, function = file.rpartition(":")
        return Frame(function, file, int(line or 0))
    return Frame(line, file, 0)
