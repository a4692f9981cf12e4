"""MOJO, the binary format of austin: a stream of events, with texts and frames that are numbered.

See https://p403n1x87.github.io/austin/4.1/formats/mojo/. Versions 1 to 4 can be read.
"""

from __future__ import annotations

from hotloop.profiler.session import Frame
from hotloop.profiler.session.other_profilers.collapsed import AUSTIN_IDLE, austin_thread
from hotloop.profiler.session.other_profilers.stacks import (
    OtherProfile,
    StackSample,
    without_middle,
)

_MAX_VERSION = 4
_MAGIC = b"MOJ"
# Kinds of events.
_METADATA, _STACK, _FRAME, _INVALID, _FRAME_REF, _KERNEL, _GC, _IDLE = range(1, 9)
_TIME, _MEMORY, _STRING, _STRING_REF, _REPEAT, _TASK, _WAITER = range(9, 16)


def matches(content: bytes) -> bool:
    """Return whether a file starts like one of austin."""
    return content.startswith(_MAGIC)


def read(content: bytes) -> OtherProfile:
    """Return the profile in a MOJO file. An incomplete last event is left out.

    Raises:
        ValueError: The file has another version, or an unknown event.
    """
    return _Reader(content).read()


class _Reader:
    """A position in a file, with its texts and frames so far."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = len(_MAGIC)
        self._texts: dict[int, str] = {1: "<unknown>"}
        self._frames: dict[tuple[int, int], Frame] = {}
        self.profile = OtherProfile("austin", [], [], 100_000)

    def read(self) -> OtherProfile:
        version = self._integer()
        if not 1 <= version <= _MAX_VERSION:
            raise ValueError(
                f"it has version {version} of the MOJO format, not 1 to {_MAX_VERSION}"
            )
        samples: list[StackSample] = []
        metadata: dict[str, str] = {}
        pid, thread, frames, previous = 0, "", [], []
        clock_ns: dict[int, int] = {}
        ns, is_idle = 0, False

        def add_sample() -> None:
            if ns > 0:
                process = f"process {pid}"
                self.profile.pids[process] = pid
                name = austin_thread(pid, thread)
                end_ns = clock_ns.get(pid, 0) + (0 if name else ns)
                if not name:
                    clock_ns[pid] = end_ns
                stack = without_middle(frames)
                samples.append(StackSample(process, name, stack, ns, (), is_idle, end_ns=end_ns))

        try:
            while self._at < len(self._content):
                event = self._content[self._at]
                self._at += 1
                if event == _METADATA:
                    key, value = self._string(), self._string()
                    metadata[key] = value
                elif event == _STACK:
                    add_sample()
                    previous = frames
                    pid = self._integer()
                    if version >= 3:
                        self._integer()  # the interpreter
                    thread, frames, ns, is_idle = self._string(), [], 0, False
                elif event == _REPEAT:
                    frames = previous
                elif event == _FRAME:
                    self._add_frame(pid, version)
                elif event == _FRAME_REF:
                    frames.append(self._frames[pid, self._integer()])
                elif event in (_INVALID, _GC):
                    frames.append(Frame("GC" if event == _GC else "INVALID", "", 0))
                elif event == _KERNEL:
                    frames.append(Frame(self._string(), "", 0))
                elif event == _IDLE:
                    is_idle = True
                elif event in (_TIME, _MEMORY):
                    value = self._integer()
                    ns = value * 1000 if event == _TIME else ns
                elif event == _STRING:
                    key = self._integer()
                    self._texts[key] = self._string()
                elif event == _STRING_REF:
                    self._integer()
                elif event in (_TASK, _WAITER):
                    for _ in range(2):
                        self._integer()
                else:
                    raise ValueError(f"it has an unknown event {event} at byte {self._at - 1:,}")
        except EOFError:
            ns = 0  # the writer was killed
        add_sample()
        if metadata.get("mode") == "memory":
            raise ValueError("it has bytes of austin's memory mode: record without `--memory`")
        interval = metadata.get("interval", "")
        if interval.isdigit():
            self.profile.interval_ns = max(1, int(interval) * 1000)
        self.profile.samples = samples
        self.profile.missing = ["its stacks have no spans, memory or causes of waits"]
        if metadata.get("mode") != "full":
            self.profile.missing.append(AUSTIN_IDLE)
        return self.profile

    def _add_frame(self, pid: int, version: int) -> None:
        key, file, function, line = (self._integer() for _ in range(4))
        if version >= 3:  # the end of the line, and the columns
            for _ in range(3):
                self._integer()
        place = Frame(self._texts.get(function, "?"), self._texts.get(file, ""), max(0, line))
        self._frames[pid, key] = place

    def _integer(self) -> int:
        """Return an integer: six bits and a sign, then seven bits a byte."""
        byte = self._byte()
        value, is_negative, shift = byte & 0x3F, byte & 0x40, 6
        while byte & 0x80:
            if shift > 62:
                raise ValueError(f"it has an integer that is too long at byte {self._at:,}")
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        return -value if is_negative else value

    def _byte(self) -> int:
        if self._at >= len(self._content):
            raise EOFError
        self._at += 1
        return self._content[self._at - 1]

    def _string(self) -> str:
        end = self._content.find(b"\0", self._at)
        if end < 0:
            raise EOFError
        text = self._content[self._at : end].decode("utf-8", "replace")
        self._at = end + 1
        return text
