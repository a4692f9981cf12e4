"""Reads recordings: finished, being written, or left by a process that was killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hotloop.system.processes import boot_id, process_start, process_state
from hotloop.timing import _control
from hotloop.timing import _format as f
from hotloop.timing._fold import fold
from hotloop.timing._format import Kind
from hotloop.timing.clocks import Clocks, clocks_of
from hotloop.timing.tree import Node

State = Literal["complete", "running", "killed", "unknown"]
EVENT = np.dtype(
    [("start_ns", "i8"), ("end_ns", "i8"), ("span", "i4"), ("thread", "i4"), ("depth", "i4")]
)
_Read = Callable[[int, int], bytes]


class RecordingError(ValueError):
    """A file that is no recording, or one that is cut short, damaged, or of a newer version."""


class Place(NamedTuple):
    """What an event's `span` refers to: a place in one thread's nesting."""

    path: tuple[str, ...]
    kind: Kind
    thread: int


class OpenSpan(NamedTuple):
    """A span that had not ended."""

    path: tuple[str, ...]
    kind: Kind
    thread: int
    start_ns: int


@dataclass
class Thread:
    """A thread, or several that followed each other in the same place of the file."""

    name: str
    """Of the last of them."""
    ident: int
    num_threads: int
    alive: bool
    lived_ns: int
    """From its first span (the main thread: from the recording's start) to its end, summed."""
    unnamed: int
    """Spans that found no place in the table of names; their time is in the span around them."""


@dataclass
class _Segment:
    thread: Thread
    parents: list[int]
    names: list[str]
    kinds: list[Kind]
    totals: np.ndarray
    starts: np.ndarray  # ns, all events of the ring, oldest first
    nodes: np.ndarray
    ends: np.ndarray
    open_starts: dict[int, int] = field(default_factory=dict)
    attached_ns: int = 0

    def shifted(self, offset_ns: int) -> _Segment:
        opens = {node: start_ns + offset_ns for node, start_ns in self.open_starts.items()}
        starts, ends = self.starts + offset_ns, self.ends + offset_ns
        return replace(self, starts=starts, ends=ends, open_starts=opens)


@dataclass
class Recording:
    """What one process recorded."""

    path: Path | None
    """None: this process, from memory."""
    component: str
    pid: int
    parent_pid: int
    host: str
    boot_id: str
    recorder: Literal["c", "python"]
    state: State
    """complete: closed by `stop()` or at exit. killed: the process ended without that. unknown: not
    closed, and of another machine or boot, so nobody can ask whether it runs."""
    start_ns: int
    """CLOCK_MONOTONIC, which all processes of a machine share, as all times here."""
    end_ns: int
    """Of a running process: when it was read; of a killed one: its last sign of life."""
    wall_offset_ns: int
    """To add to a time to get nanoseconds since 1970."""
    threads: list[Thread]
    spans: list[Place]
    events: np.ndarray
    """The latest events, in the order of their ends: `start_ns end_ns span thread depth`."""
    open_spans: list[OpenSpan]
    _segments: list[_Segment] = field(repr=False)

    @property
    def complete(self) -> bool:
        """The process closed the recording itself."""
        return self.state == "complete"

    @property
    def killed(self) -> bool:
        """The process is gone and did not close it."""
        return self.state == "killed"

    @property
    def duration_ns(self) -> int:
        """Wall time of the recording."""
        return self.end_ns - self.start_ns

    @property
    def num_spans(self) -> int:
        """All spans that ended, also those whose events the ring has forgotten."""
        return int(sum(segment.totals[:, f.T_COUNT].sum() for segment in self._segments))

    def tree(self, thread: int | None = None) -> Node:
        """Where the time went, over all threads, or in one of them.

        The root's total is the time its threads lived, so the shares of all nodes' own time, waits
        and what no span covers included, add up to one.
        """
        root = Node(self.component)
        for index, segment in enumerate(self._segments):
            if thread in (None, index):
                self._add(root, segment)
        return root

    def told_by(self, clocks: Clocks) -> Recording:
        """Return it as if it had been made on the machine whose clock that is."""
        clock = clocks.others.get(self.boot_id)
        if clock is None:
            return self
        offset_ns, events = clock.offset_ns, self.events.copy()
        events["start_ns"] += offset_ns
        events["end_ns"] += offset_ns
        return replace(
            self,
            boot_id=clocks.boot_id,
            pid=self.pid + clock.first_pid,
            parent_pid=self.parent_pid + clock.first_pid,
            start_ns=self.start_ns + offset_ns,
            end_ns=self.end_ns + offset_ns,
            wall_offset_ns=self.wall_offset_ns - offset_ns,
            events=events,
            open_spans=[one._replace(start_ns=one.start_ns + offset_ns) for one in self.open_spans],
            _segments=[one.shifted(offset_ns) for one in self._segments],
        )

    def _add(self, root: Node, segment: _Segment) -> None:
        nodes = [root]
        root.total_ns += segment.thread.lived_ns
        for index in range(1, len(segment.names)):
            node = nodes[segment.parents[index]].child(segment.names[index], segment.kinds[index])
            nodes.append(node)
            row = segment.totals[index]
            mine = Node(
                node.name,
                node.kind,
                int(row[f.T_COUNT]),
                int(row[f.T_TOTAL]),
                int(row[f.T_MIN]),
                int(row[f.T_MAX]),
                histogram=row[f.T_HIST :],
            )
            if index in segment.open_starts:
                mine.open = 1
                mine.open_ns = max(0, self.end_ns - segment.open_starts[index])
                mine.total_ns += mine.open_ns
            node.add(mine)


class _Picture(NamedTuple):
    """A segment's parts, all between the same two folds."""

    folded: int
    totals: np.ndarray
    opens: np.ndarray
    first: np.ndarray  # the ring
    ring: np.ndarray  # the ring, read again


def _picture(get: Callable[..., np.ndarray], layout: f.Layout, event: np.dtype) -> _Picture:
    bank_size = layout.bank_b - layout.bank_a
    ring = (layout.ring, layout.ring_capacity * f.EVENT_SIZE, event)
    attempts = 0
    while True:
        attempts += 1
        folded = int(get(f.S_FOLDED * 8, 8, np.int64)[0])
        totals = get(layout.bank_b if folded & 1 else layout.bank_a, bank_size, np.int64)
        totals = totals.reshape(-1, f.ROW_WORDS).copy()
        opens = get(layout.opens, layout.node_capacity * 8, event["start"])
        picture = _Picture(folded, totals, opens, get(*ring), get(*ring))
        # The bank that was read is written again only after a flip; after one, begin again.
        if int(get(f.S_FOLDED * 8, 8, np.int64)[0]) == folded or attempts == 100:
            return picture


def _parse_segment(read: _Read, offset: int, words: np.ndarray, is_float: bool) -> _Segment:
    """One consistent picture of a segment that may be written meanwhile."""
    layout = f.layout(int(words[f.S_RING]), int(words[f.S_NODES]))
    time_type = "<f8" if is_float else "<i8"
    event = np.dtype([("start", time_type), ("node", "<i8"), ("end", time_type)])

    def get(start: int, size: int, dtype: np.dtype | type) -> np.ndarray:
        return np.frombuffer(read(offset + start, size), dtype)

    folded, totals, raw_opens, first, ring = _picture(get, layout, event)
    head = get(0, f.SEGMENT_HEAD, np.int64)
    # A slot that changed between two reads may be torn.
    stable = (first["start"] == ring["start"]) & (first["node"] == ring["node"])
    stable &= first["end"] == ring["end"]

    def ns(raw: np.ndarray) -> np.ndarray:
        if not is_float:
            return raw.astype(np.int64)
        with np.errstate(invalid="ignore", over="ignore"):  # of a damaged file
            return np.rint(raw * 1e9).astype(np.int64)

    starts, ends, nodes = ns(ring["start"]), ns(ring["end"]), ring["node"]
    num_nodes = int(head[f.S_NUM_NODES])
    if not 1 <= num_nodes <= layout.node_capacity:
        raise RecordingError(f"a thread of it has {num_nodes:,} names of {layout.node_capacity}")
    table = get(f.SEGMENT_HEAD, num_nodes * f.NODE.size, np.uint8).tobytes()
    parents, names, kinds = [], [], []
    for index in range(num_nodes):
        parent, kind, length, name = f.NODE.unpack_from(table, index * f.NODE.size)
        if not (-1 <= parent < max(index, 0) or index == 0) or not 0 <= kind < len(f.KINDS):
            raise RecordingError(f"node {index} of a thread is damaged")
        parents.append(parent)
        names.append(name[:length].decode("utf-8", "replace"))
        kinds.append(f.KINDS[kind])

    num_folded, floor = folded >> 1, int(totals[0, 0])
    rows = totals[1 : num_nodes + 1]
    position = num_folded % layout.ring_capacity
    fresh = np.arange(position, position + f.PERIOD) % layout.ring_capacity
    valid = stable & (ends > 0) & (nodes > 0) & (nodes < num_nodes)
    is_new = valid[fresh] & (ends[fresh] >= floor)
    new = fresh[is_new]
    fold(rows, nodes[new], starts[new], ends[new])
    # The slot behind the newest may hold a new start with the end of a lap ago: it is left out.
    num_new = int(np.flatnonzero(is_new)[-1]) + 1 if is_new.any() else 0
    newest = position + num_new
    order = np.arange(newest + 1, newest + layout.ring_capacity) % layout.ring_capacity
    order = order[valid[order]]

    alive = int(head[f.S_STATE]) == f.LIVE
    opens = ns(raw_opens)[:num_nodes]
    is_open = np.flatnonzero((opens > 0) & (opens > rows[:, f.T_LAST_START]))
    name = get(f.THREAD_NAME_OFFSET, f.THREAD_NAME_SIZE, np.uint8).tobytes().split(b"\0")[0]
    thread = Thread(
        name.decode("utf-8", "replace"),
        int(head[f.S_IDENT]),
        int(head[f.S_NUM_THREADS]),
        alive,
        int(head[f.S_LIVED]),
        int(head[f.S_UNNAMED]),
    )
    return _Segment(
        thread,
        parents,
        names,
        kinds,
        rows,
        starts[order],
        nodes[order],
        ends[order],
        {int(node): int(opens[node]) for node in is_open} if alive else {},
        int(head[f.S_ATTACHED]) if alive else 0,
    )


def _parse(path: Path | None, header: bytes, segments: list[tuple[_Read, int, int]]) -> Recording:
    """A recording from its header and segments: how to read, where, how many bytes there are."""
    fields = f.HEADER.unpack_from(header)
    _, _, flags, pid, parent_pid, ticks, start_ns, end_ns, wall_offset = fields[:9]
    component, host, boot = (text.rstrip(b"\0").decode("utf-8", "replace") for text in fields[9:])
    parsed = []
    for read, offset, available in segments:
        while available:
            if available < f.SEGMENT_HEAD:
                raise RecordingError("it ends in the middle of a thread's segment")
            words = np.frombuffer(read(offset, f.SEGMENT_HEAD), np.int64)
            if words[f.S_MAGIC] == 0:
                break  # space that was reserved; its process had not come to use it
            ring, nodes, size = (int(words[i]) for i in (f.S_RING, f.S_NODES, f.S_SIZE))
            if (
                words[f.S_MAGIC] != f.SEGMENT_MAGIC
                or not (2 * f.PERIOD <= ring <= 1 << 24 and ring % f.PERIOD == 0)
                or not 8 <= nodes <= 1 << 15
                or f.layout(ring, nodes).size != size
            ):
                raise RecordingError("a thread's segment is damaged")
            if size > available:
                raise RecordingError(
                    f"it ends in the middle of a thread's segment, of which {available:,} of "
                    f"{size:,} bytes are there"
                )
            parsed.append(_parse_segment(read, offset, words, bool(flags & f.FLOAT_TIMES)))
            offset, available = offset + size, available - size
    state: State = "complete" if end_ns else state_of(pid, ticks, host, boot)
    if state == "running":
        end_ns = time.monotonic_ns()
    elif not end_ns:
        signs = [start_ns]
        for segment in parsed:
            signs += [int(segment.ends.max(initial=0)), segment.attached_ns]
            signs += segment.open_starts.values()
        end_ns = max(signs)
    spans: list[Place] = []
    events, open_spans = [], []
    for index, segment in enumerate(parsed):
        if segment.attached_ns:
            segment.thread.lived_ns += max(0, end_ns - segment.attached_ns)
        base = len(spans)
        paths: list[tuple[str, ...]] = [()]
        for node in range(1, len(segment.names)):
            paths.append((*paths[segment.parents[node]], segment.names[node]))
        spans += [Place(p, k, index) for p, k in zip(paths, segment.kinds, strict=True)]
        depths = np.array([len(p) for p in paths])
        mine = np.zeros(len(segment.ends), EVENT)
        mine["start_ns"], mine["end_ns"] = segment.starts, segment.ends
        mine["span"], mine["thread"] = base + segment.nodes, index
        mine["depth"] = depths[segment.nodes]
        events.append(mine)
        open_spans += [
            OpenSpan(paths[node], segment.kinds[node], index, start)
            for node, start in segment.open_starts.items()
        ]
    merged = np.concatenate(events) if events else np.zeros(0, EVENT)
    return Recording(
        path,
        component,
        pid,
        parent_pid,
        host,
        boot,
        "python" if flags & f.PYTHON_RECORDER else "c",
        state,
        start_ns,
        end_ns,
        wall_offset,
        [segment.thread for segment in parsed],
        spans,
        merged[np.argsort(merged["end_ns"], kind="stable")],
        open_spans,
        parsed,
    )


def state_of(pid: int, ticks: int, host: str, boot: str) -> State:
    """Of a process that has not said that it ended; `ticks`: when it began, since its boot."""
    if host != os.uname().nodename or boot != boot_id():
        return "unknown"
    return "running" if _runs(pid, ticks) else "killed"


def _runs(pid: int, ticks: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    # A zombie has ended, only nobody has asked how.
    return process_start(pid) == ticks and process_state(pid) not in ("Z", "X")


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording, whether its process has ended, still writes, or was killed.

    Raises:
        RecordingError: it is no recording, or is cut short, damaged, or of a newer version.
        OSError: it can't be read.
    """
    path = Path(path)
    # Reads instead of a map: a file that is cut short under a map kills the reader.
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size

        def get(offset: int, count: int) -> bytes:
            taken = os.pread(file.fileno(), count, offset)
            if len(taken) != count:
                raise RecordingError(f"it ends at byte {offset + len(taken):,}")
            return taken

        header = os.pread(file.fileno(), f.HEADER.size, 0)
        try:
            _check_header(header, size)
            return _parse(path, header, [(get, f.HEADER_SIZE, size - f.HEADER_SIZE)])
        except RecordingError as error:
            raise RecordingError(
                f"expected a recording of hotloop.timing in {path}, got one that can't be read: "
                f"{error}; leave it out, or record again"
            ) from None


def _check_header(header: bytes, size: int) -> None:
    if header[:8] != f.MAGIC:
        blank = not header.strip(b"\0")
        raise RecordingError("its header was never written" if blank else "it has another format")
    if len(header) >= 16:
        version = int.from_bytes(header[8:16], "little")
        if version > f.VERSION:
            raise RecordingError(
                f"it is of version {version}, this hotloop reads {f.VERSION}: update hotloop"
            )
    if size < f.HEADER_SIZE:
        raise RecordingError(f"it ends in its header, at byte {size:,}")


def read_directory(
    directory: str | os.PathLike[str],
) -> tuple[list[Recording], list[RecordingError]]:
    """Read all recordings (`*.hlt`) in a directory; those of other machines by our clock.

    Returns:
        Those that can be read, by component and pid, and an error for each that can't.

    Raises:
        RecordingError: there is no such directory.
    """
    if not Path(directory).is_dir():
        raise RecordingError(f"expected a directory of recordings, got {directory}: there is none")
    recordings, problems = [], []
    clocks = clocks_of(Path(directory))
    for path in sorted(Path(directory).glob(f"*{f.SUFFIX}")):
        try:
            recordings.append(read(path).told_by(clocks))
        except RecordingError as error:
            problems.append(error)
        except OSError as error:
            problems.append(RecordingError(f"expected to read {path}, got '{error}': leave it out"))
    recordings.sort(key=lambda recording: (recording.component, recording.pid))
    return recordings, problems


def current() -> Recording:
    """What this process has recorded since `start()`, or since it began."""
    recorder = _control.recorder()
    recorder.open()
    assert recorder.header is not None
    sources: list[tuple[_Read, int, int]] = []
    for segment in list(recorder.segments):
        view = memoryview(segment.buffer)
        size = segment.layout.size
        sources.append((lambda at, n, view=view: bytes(view[at : at + n]), 0, size))
    return _parse(recorder.path, recorder.header[: f.HEADER.size], sources)
