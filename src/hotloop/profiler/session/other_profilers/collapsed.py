"""Stacks as text, one per line: py-spy's raw format, austin's, profiling.sampling's, hotloop's.

main;step (envs.py:12);_roll (dynamics.py:3) 12000        py-spy and hotloop
P10;T0:10;/t.py:<module>:3;/t.py:step:9 300               austin
tid:10;t.py:<module>:3;t.py:step:9 7                      profiling.sampling
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hotloop.errors import ProfileError
from hotloop.profiler.session import Frame
from hotloop.profiler.session.other_profilers.stacks import MAIN, OtherProfile, StackSample

# py-spy and profiling.sampling count samples, by default a hundred and a thousand per second.
_PY_SPY_NS, _SAMPLING_NS = 10_000_000, 1_000_000
_PLACE = re.compile(r"(?P<function>.+) \((?P<file>.*?)(?::(?P<line>-?\d+))?\)")
_PY_SPY_PROCESS = re.compile(r'process (?P<pid>\d+):"(?P<command>.*?)"(?=;|$)')
_PY_SPY_THREAD = re.compile(r"thread \((?:0x)?(?P<number>[0-9A-Fa-f]+)\)(?:: (?P<name>.*))?")
_AUSTIN_HEAD = re.compile(r"P(?P<pid>\d+);T(?:-?\d+:)?(?P<thread>[0-9A-Fa-fx]+)(?:;|$)")
_AUSTIN_METRIC = re.compile(r"[+-]?\d+(,[+-]?\d+)*")
_AUSTIN_LINE = re.compile(r"L\d+")
_SAMPLING_HEAD = re.compile(r"tid:(?P<thread>\d+)(?:;|$)")
_NO_TIMES = "its stacks have no spans, times of day, memory or causes of waits"
AUSTIN_IDLE = "all time counts as on a core, since it was recorded without `--full`"
_MISSING = {
    "py-spy": f"{_NO_TIMES}, and threads that wait are left out unless you record with `--idle`; "
    "each sample counts as 10 ms",
    "austin": _NO_TIMES,
    "profiling.sampling": f"{_NO_TIMES}, files have no folders, so that only files beside the "
    "recording or in the current directory count as yours, and waiting counts as on a core; each "
    "sample counts as 1 ms",
    "hotloop": "stacks as text have no times of day, memory or waits",
}


def read(content: bytes, path: Path) -> OtherProfile:
    """Return the profile in stacks as text.

    Raises:
        ProfileError: A line has another format, or the weights are no times.
    """
    lines = content.decode("utf-8", "replace").split("\n")
    parser = _Parser(path)
    if any(_AUSTIN_HEAD.match(line) for line in lines):
        parse, tool = parser.austin, "austin"
    elif any(_SAMPLING_HEAD.match(line) for line in lines):
        parse, tool = parser.sampling, "profiling.sampling"
    else:
        parse, tool = parser.plain, "py-spy"
    profile = parser.profile
    samples: list[StackSample] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.startswith("# "):
            _check_header(path, line, profile)
            continue
        sample = parse(line.rstrip("\r"))
        if sample is None:
            if number == len(lines) and samples:  # the writer was killed
                continue
            raise ProfileError(
                f"expected `frame;frame;... weight` in line {number} of {path}, got "
                f"{line[:80]!r}: record again with py-spy (`--format raw` or `speedscope`), austin "
                "or another profiler that `hotloop report --help` names"
            )
        samples.append(sample)
    profile.samples = samples
    profile.tool = "hotloop" if tool == "py-spy" and parser.is_hotloop else tool
    profile.missing = [_MISSING[profile.tool]]
    if tool == "austin" and not parser.has_idle_times:
        profile.missing.append(AUSTIN_IDLE)
    profile.has_folders = tool != "profiling.sampling"
    return profile


def _check_header(path: Path, line: str, profile: OtherProfile) -> None:
    """Read a line of austin's metadata."""
    key, _, value = (part.strip() for part in line[2:].partition(":"))
    if (key, value) == ("mode", "memory"):
        raise ProfileError(
            f"expected stacks and their times in {path}, got bytes of austin's memory mode: "
            "record without `--memory`"
        )
    if key == "interval" and value.isdigit():
        profile.interval_ns = max(1, int(value) * 1000)


class _Parser:
    """Parsers of single lines, which return None for a line of another format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_hotloop = False
        self.has_idle_times = False
        self.profile = OtherProfile("", [], [], _PY_SPY_NS)

    def plain(self, line: str) -> StackSample | None:
        """Parse a line of py-spy or hotloop, whose lines start with a process and have times."""
        stack, _, weight = line.rpartition(" ")
        if not stack or not weight.isdigit():
            return None
        process, parent = "", ""
        # Lines of a child start with its parents: the innermost process was sampled.
        start = 0
        while match := _PY_SPY_PROCESS.match(stack, start):
            parent, process = process, f"process {match['pid']}"
            self.profile.pids[process] = int(match["pid"])
            self.profile.commands[process] = _command(match["command"])
            if parent:
                self.profile.parents[process] = parent
            start = match.end() + 1
        names = stack[start:].split(";") if stack[start:] else []
        thread = ""
        if process or not names or _PY_SPY_THREAD.fullmatch(names[0]) or _frame(names[0]).file:
            if names and (match := _PY_SPY_THREAD.fullmatch(names[0])):
                name = match["name"] or names[0]
                is_main = name == "MainThread" or match["number"] == process.rpartition(" ")[2]
                thread = "" if is_main else name
                names = names[1:]
            frames = tuple(map(_frame, names))
            ns = int(weight) * _PY_SPY_NS
            return StackSample(process or MAIN, thread, frames, ns)
        return self._hotloop(names, int(weight))

    def _hotloop(self, names: list[str], ns: int) -> StackSample:
        """Return a line of hotloop: process, thread, spans in brackets, functions."""
        self.is_hotloop = True
        process, *names = names
        thread = ""
        if names and names[0].startswith("thread ") and not _frame(names[0]).file:
            thread = names.pop(0).removeprefix("thread ")
        path: list[str] = []
        while names and names[0].startswith("[") and names[0].endswith("]"):
            path.append(names.pop(0)[1:-1])
        if process != MAIN:
            self.profile.parents[process] = MAIN
        return StackSample(process, thread, tuple(map(_frame, names)), ns, tuple(path))

    def austin(self, line: str) -> StackSample | None:
        """Parse `P<pid>;T<interpreter>:<thread>;file:function:line;... time[,idle,memory]`."""
        # Before version 3 there was no interpreter, line numbers were separate frames
        # (`file:function;L12`), and further metrics followed a space.
        words = line.split(" ")
        start = len(words)
        while start > 0 and _AUSTIN_METRIC.fullmatch(words[start - 1]):
            start -= 1
        stack = " ".join(words[:start])
        metrics = [text for word in words[start:] for text in word.split(",")]
        head = _AUSTIN_HEAD.match(stack)
        if not metrics or not head:
            return None
        frames: list[Frame] = []
        for text in filter(None, stack[head.end() :].split(";")):
            if not _AUSTIN_LINE.fullmatch(text):
                frames.append(_austin_frame(text))
            elif frames:
                frames[-1] = frames[-1]._replace(first_line=int(text[1:]))
        process = f"process {head['pid']}"
        self.profile.pids[process] = int(head["pid"])
        thread = austin_thread(int(head["pid"]), head["thread"])
        is_full = len(metrics) == 3
        self.has_idle_times |= is_full
        is_idle = is_full and metrics[1] == "1"
        return StackSample(process, thread, tuple(frames), int(metrics[0]) * 1000, (), is_idle)

    def sampling(self, line: str) -> StackSample | None:
        """Parse `tid:<thread>;file:function:line;... samples`."""
        stack, _, weight = line.rpartition(" ")
        head = _SAMPLING_HEAD.match(stack)
        if head is None or not weight.isdigit():
            return None
        self.profile.interval_ns = _SAMPLING_NS
        frames = tuple(_austin_frame(text) for text in filter(None, stack[head.end() :].split(";")))
        return StackSample(MAIN, head["thread"], frames, int(weight) * _SAMPLING_NS)


def austin_thread(pid: int, thread: str) -> str:
    """Return the name of a thread of austin, which is empty for the main thread."""
    # The main thread has its process's number, in some versions as hexadecimal.
    return "" if thread in (str(pid), f"{pid:x}") else thread


def _command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return ["python", *words[1:]] if words else []


def _frame(text: str) -> Frame:
    # Without its last character, the pattern of a place would take quadratic time.
    has_place = text.endswith(")") and not _PY_SPY_THREAD.fullmatch(text)
    match = _PLACE.fullmatch(text) if has_place else None
    # `worker-3 (1234)` is a process that shares its name, not a function.
    if match is None or match["file"].isdigit():
        return Frame(text, "", 0)
    return Frame(match["function"], match["file"], max(0, int(match["line"] or 0)))


def _austin_frame(text: str) -> Frame:
    file, _, line = text.rpartition(":")
    if line.isdigit() or not line:
        file, _, function = file.rpartition(":")
        return Frame(function or text.strip(":"), file, int(line or 0))
    return Frame(line, file, 0)
