"""Reader of recordings, whether their process has ended, is running, or was killed."""

from __future__ import annotations

import errno
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hotloop.base.files import open_regular
from hotloop.timing import _control
from hotloop.timing import _format as fmt
from hotloop.timing._fold import fold
from hotloop.timing._format import Kind
from hotloop.timing.clocks import Clocks, read_clocks
from hotloop.timing.recording_state import RecordingState, recording_state
from hotloop.timing.tree import Node

EVENT = np.dtype(
    [("start_ns", "i8"), ("end_ns", "i8"), ("span", "i4"), ("thread", "i4"), ("depth", "i4")]
)
_Read = Callable[[int, int], bytes]
_BLOCK_BYTES = 2**20
_MAX_BYTES = 2**30  # the size of a recording of a thousand threads


class RecordingError(ValueError):
    """A file that is not a recording, or is truncated, damaged, or of a newer version."""


class SpanPath(NamedTuple):
    """The path and kind of a span in one thread. The field `span` of an event is its index."""

    path: tuple[str, ...]
    kind: Kind
    thread: int


class OpenSpan(NamedTuple):
    """A span that has not ended."""

    path: tuple[str, ...]
    kind: Kind
    thread: int
    start_ns: int


@dataclass
class RecordedThread:
    """A thread, or several consecutive threads that shared a segment of the file."""

    name: str
    """Name of the last thread."""
    ident: int
    num_threads: int
    alive: bool
    lived_ns: int
    """Sum of the threads' times from first span (main thread: start of the recording) to end."""
    unnamed: int
    """Number of spans without a node, whose time belongs to the span around them."""


@dataclass
class _Segment:
    thread: RecordedThread
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
    """The recording of one process. Times are CLOCK_MONOTONIC, shared by a machine's processes."""

    path: Path | None
    """The file, or None if it was read from the memory of this process."""
    component: str
    pid: int
    parent_pid: int
    host: str
    boot_id: str
    recorder: Literal["c", "python"]
    state: RecordingState
    """complete: closed by `stop()` or at exit. running: not closed yet. killed: the process ended
    without closing it. unknown: not closed, and from another machine or boot."""
    start_ns: int
    end_ns: int
    """Time of reading if the process is running, or of the latest record if it was killed."""
    wall_offset_ns: int
    """Offset to add to a time to get nanoseconds since 1970."""
    threads: list[RecordedThread]
    spans: list[SpanPath]
    events: np.ndarray
    """The latest events, ordered by end: `start_ns end_ns span thread depth`."""
    open_spans: list[OpenSpan]
    _segments: list[_Segment] = field(repr=False)

    @property
    def complete(self) -> bool:
        """Whether the process closed the recording."""
        return self.state == "complete"

    @property
    def killed(self) -> bool:
        """Whether the process ended without closing the recording."""
        return self.state == "killed"

    @property
    def duration_ns(self) -> int:
        """Wall time of the recording."""
        return self.end_ns - self.start_ns

    @property
    def num_spans(self) -> int:
        """Number of ended spans, including those whose events were overwritten."""
        return int(sum(segment.totals[:, fmt.T_COUNT].sum() for segment in self._segments))

    def tree(self, thread: int | None = None) -> Node:
        """Return the timing tree of all threads, or of one of them.

        The root's total is the sum of the threads' lifetimes. So the shares of the nodes' own time,
        including waits and the root's own time, add up to one.
        """
        root = Node(self.component)
        for index, segment in enumerate(self._segments):
            if thread in (None, index):
                self._add_segment(root, segment)
        return root

    def aligned_to(self, clocks: Clocks) -> Recording:
        """Return the recording with times and pids of the reference machine of `clocks`."""
        clock = clocks.by_boot.get(self.boot_id)
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
            open_spans=[
                span._replace(start_ns=span.start_ns + offset_ns) for span in self.open_spans
            ],
            _segments=[segment.shifted(offset_ns) for segment in self._segments],
        )

    def _add_segment(self, root: Node, segment: _Segment) -> None:
        nodes = [root]
        root.total_ns += segment.thread.lived_ns
        for index in range(1, len(segment.names)):
            node = nodes[segment.parents[index]].child(segment.names[index], segment.kinds[index])
            nodes.append(node)
            row = segment.totals[index]
            thread_node = Node(
                node.name,
                node.kind,
                int(row[fmt.T_COUNT]),
                int(row[fmt.T_TOTAL]),
                int(row[fmt.T_MIN]),
                int(row[fmt.T_MAX]),
                histogram=row[fmt.T_HIST :],
            )
            if index in segment.open_starts:
                thread_node.open = 1
                thread_node.open_ns = max(0, self.end_ns - segment.open_starts[index])
                thread_node.total_ns += thread_node.open_ns
            node.add(thread_node)


class _SegmentCopy(NamedTuple):
    """A consistent copy of the parts of a segment, without a fold in between."""

    folded: int
    totals: np.ndarray
    opens: np.ndarray
    first: np.ndarray  # first copy of the ring
    ring: np.ndarray  # second copy of the ring


def _copy_segment(
    get: Callable[..., np.ndarray], layout: fmt.SegmentLayout, event: np.dtype
) -> _SegmentCopy:
    bank_size = layout.bank_b - layout.bank_a
    ring = (layout.ring, layout.ring_capacity * fmt.EVENT_SIZE, event)
    attempts = 0
    while True:
        attempts += 1
        folded = int(get(fmt.S_FOLDED * 8, 8, np.int64)[0])
        totals = get(layout.bank_b if folded & 1 else layout.bank_a, bank_size, np.int64)
        totals = totals.reshape(-1, fmt.ROW_WORDS).copy()
        opens = get(layout.opens, layout.node_capacity * 8, event["start"])
        segment_copy = _SegmentCopy(folded, totals, opens, get(*ring), get(*ring))
        # The copied bank is only written again after another fold. Retry if there was one.
        if int(get(fmt.S_FOLDED * 8, 8, np.int64)[0]) == folded or attempts == 100:
            return segment_copy


def _parse_segment(read: _Read, offset: int, words: np.ndarray, is_float: bool) -> _Segment:
    """Read a segment, which its thread may be writing."""
    # Copy the parts of the segment.
    layout = fmt.segment_layout(int(words[fmt.S_RING]), int(words[fmt.S_NODES]))
    time_type = "<f8" if is_float else "<i8"
    event = np.dtype([("start", time_type), ("node", "<i8"), ("end", time_type)])

    def get(start: int, size: int, dtype: np.dtype | type) -> np.ndarray:
        return np.frombuffer(read(offset + start, size), dtype)

    folded, totals, raw_opens, first, ring = _copy_segment(get, layout, event)
    head = get(0, fmt.SEGMENT_HEAD, np.int64)
    # A slot that changed between the two copies may be torn.
    stable = (first["start"] == ring["start"]) & (first["node"] == ring["node"])
    stable &= first["end"] == ring["end"]

    def to_ns(times: np.ndarray) -> np.ndarray:
        if not is_float:
            return times.astype(np.int64)
        with np.errstate(invalid="ignore", over="ignore"):  # the file may be damaged
            return np.rint(times * 1e9).astype(np.int64)

    starts, ends, nodes = to_ns(ring["start"]), to_ns(ring["end"]), ring["node"]
    # Read the table of nodes.
    num_nodes = int(head[fmt.S_NUM_NODES])
    if not 1 <= num_nodes <= layout.node_capacity:
        raise RecordingError(f"a thread has {num_nodes:,} nodes, limit {layout.node_capacity}")
    table = get(fmt.SEGMENT_HEAD, num_nodes * fmt.NODE.size, np.uint8).tobytes()
    parents, names, kinds = [], [], []
    for index in range(num_nodes):
        parent, kind, length, name = fmt.NODE.unpack_from(table, index * fmt.NODE.size)
        if not (-1 <= parent < max(index, 0) or index == 0) or not 0 <= kind < len(fmt.KINDS):
            raise RecordingError(f"node {index} of a thread is damaged")
        parents.append(parent)
        names.append(name[:length].decode("utf-8", "replace"))
        kinds.append(fmt.KINDS[kind])

    # Add the events since the last fold to the totals.
    num_folded, floor = folded >> 1, int(totals[0, 0])
    rows = totals[1 : num_nodes + 1]
    position = num_folded % layout.ring_capacity
    fresh = np.arange(position, position + fmt.PERIOD) % layout.ring_capacity
    valid = stable & (ends > 0) & (nodes > 0) & (nodes < num_nodes)
    is_new = valid[fresh] & (ends[fresh] >= floor)
    new = fresh[is_new]
    fold(rows, nodes[new], starts[new], ends[new])
    # Skip the slot behind the newest event, which may have a new start and the previous lap's end.
    num_new = int(np.flatnonzero(is_new)[-1]) + 1 if is_new.any() else 0
    newest = position + num_new
    order = np.arange(newest + 1, newest + layout.ring_capacity) % layout.ring_capacity
    order = order[valid[order]]

    # Find the open spans.
    alive = int(head[fmt.S_STATE]) == fmt.LIVE
    opens = to_ns(raw_opens)[:num_nodes]
    open_nodes = np.flatnonzero((opens > 0) & (opens > rows[:, fmt.T_LAST_START]))
    name = get(fmt.THREAD_NAME_OFFSET, fmt.THREAD_NAME_SIZE, np.uint8).tobytes().split(b"\0")[0]
    thread = RecordedThread(
        name.decode("utf-8", "replace"),
        int(head[fmt.S_IDENT]),
        int(head[fmt.S_NUM_THREADS]),
        alive,
        int(head[fmt.S_LIVED]),
        int(head[fmt.S_UNNAMED]),
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
        {int(node): int(opens[node]) for node in open_nodes} if alive else {},
        int(head[fmt.S_ATTACHED]) if alive else 0,
    )


def _parse(path: Path | None, header: bytes, segments: list[tuple[_Read, int, int]]) -> Recording:
    """Parse a recording. Each source in `segments` is a read function, an offset and a size."""
    fields = fmt.HEADER.unpack_from(header)
    _, _, flags, pid, parent_pid, ticks, start_ns, end_ns, wall_offset = fields[:9]
    component, host, boot = (text.rstrip(b"\0").decode("utf-8", "replace") for text in fields[9:])
    if max(pid, parent_pid) >= 2**31 or max(ticks, start_ns, end_ns, abs(wall_offset)) >= 2**62:
        raise RecordingError("its header is damaged")
    # Read the segments.
    parsed = []
    for read, offset, available in segments:
        while available:
            if available < fmt.SEGMENT_HEAD:
                raise RecordingError("it ends in the middle of a segment")
            words = np.frombuffer(read(offset, fmt.SEGMENT_HEAD), np.int64)
            if words[fmt.S_MAGIC] == 0:
                break  # reserved space that was not used yet
            ring, nodes, size = (int(words[i]) for i in (fmt.S_RING, fmt.S_NODES, fmt.S_SIZE))
            if (
                words[fmt.S_MAGIC] != fmt.SEGMENT_MAGIC
                or not (2 * fmt.PERIOD <= ring <= 1 << 24 and ring % fmt.PERIOD == 0)
                or not 8 <= nodes <= 1 << 15
                or fmt.segment_layout(ring, nodes).size != size
            ):
                raise RecordingError("a segment is damaged")
            if size > available:
                raise RecordingError(
                    f"it ends in the middle of a segment, with {available:,} of its {size:,} bytes"
                )
            parsed.append(_parse_segment(read, offset, words, bool(flags & fmt.FLOAT_TIMES)))
            offset, available = offset + size, available - size
    # Find out how and when the recording ended.
    state: RecordingState = "complete" if end_ns else recording_state(pid, ticks, host, boot)
    if state == "running":
        end_ns = time.monotonic_ns()
    elif not end_ns:
        times = [start_ns]
        for segment in parsed:
            times += [int(segment.ends.max(initial=0)), segment.attached_ns]
            times += segment.open_starts.values()
        end_ns = max(times)
    # Join the spans and events of all threads.
    spans: list[SpanPath] = []
    events, open_spans = [], []
    for index, segment in enumerate(parsed):
        if segment.attached_ns:
            segment.thread.lived_ns += max(0, end_ns - segment.attached_ns)
        base = len(spans)
        paths: list[tuple[str, ...]] = [()]
        for node in range(1, len(segment.names)):
            paths.append((*paths[segment.parents[node]], segment.names[node]))
        spans += [
            SpanPath(path, kind, index) for path, kind in zip(paths, segment.kinds, strict=True)
        ]
        depths = np.array([len(path) for path in paths])
        thread_events = np.zeros(len(segment.ends), EVENT)
        thread_events["start_ns"], thread_events["end_ns"] = segment.starts, segment.ends
        thread_events["span"], thread_events["thread"] = base + segment.nodes, index
        thread_events["depth"] = depths[segment.nodes]
        events.append(thread_events)
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
        "python" if flags & fmt.PYTHON_RECORDER else "c",
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


def read(path: str | os.PathLike[str]) -> Recording:
    """Read a recording, whether its process has ended, is running, or was killed.

    Raises:
        RecordingError: the file is no recording, or is truncated, damaged, or of a newer version.
        OSError: the file can't be read.
    """
    path = Path(path)
    # Reads instead of a memory map, because truncation of a mapped file kills the reader.
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, limit {_MAX_BYTES:,}", str(path))

        def get(offset: int, count: int) -> bytes:
            content = os.pread(file.fileno(), count, offset)
            if len(content) != count:
                raise RecordingError(f"it ends at byte {offset + len(content):,}")
            return content

        header = os.pread(file.fileno(), fmt.HEADER.size, 0)
        try:
            _check_header(header, size)
            recording = _parse(path, header, [(get, fmt.HEADER_SIZE, size - fmt.HEADER_SIZE)])
            _check_checksum(get, header, size)  # the errors above are more specific
            return recording
        except RecordingError as error:
            raise RecordingError(
                f"expected a recording of hotloop.timing in {path}, got one that can't be read: "
                f"{error}; remove it, or record again"
            ) from None


def _check_checksum(read: _Read, header: bytes, size: int) -> None:
    """Check a closed recording, which does not change any more."""
    (stored,) = struct.unpack("<Q", read(fmt.CHECKSUM_OFFSET, 8))
    (end_ns,) = struct.unpack_from("<Q", header, fmt.END_OFFSET)
    if not stored:  # of an older version, or not closed
        return
    checksum = zlib.crc32(read(0, fmt.CHECKSUM_OFFSET))
    for offset in range(fmt.HEADER_SIZE, size, _BLOCK_BYTES):
        checksum = zlib.crc32(read(offset, min(_BLOCK_BYTES, size - offset)), checksum)
    if not end_ns or stored != fmt.HAS_CHECKSUM | checksum:
        raise RecordingError("its content does not match its checksum")


def _check_header(header: bytes, size: int) -> None:
    if header[:8] != fmt.MAGIC:
        is_blank = not header.strip(b"\0")
        raise RecordingError("its header is empty" if is_blank else "it has another format")
    if len(header) >= 16:
        version = int.from_bytes(header[8:16], "little")
        if version > fmt.VERSION:
            raise RecordingError(
                f"it has version {version}, this hotloop reads {fmt.VERSION}: update hotloop"
            )
    if size < fmt.HEADER_SIZE:
        raise RecordingError(f"it ends in its header, at byte {size:,}")


def read_directory(
    directory: str | os.PathLike[str],
) -> tuple[list[Recording], list[RecordingError]]:
    """Read all recordings (`*.hlt`) in a directory, with times on the clock of one machine.

    Returns:
        The readable recordings, ordered by component and pid, and an error for each other file.

    Raises:
        RecordingError: the directory does not exist.
    """
    if not Path(directory).is_dir():
        raise RecordingError(f"expected a directory of recordings, got {directory}: it is missing")
    recordings, problems = [], []
    clocks = read_clocks(Path(directory))
    for path in sorted(Path(directory).glob(f"*{fmt.SUFFIX}")):
        try:
            recordings.append(read(path).aligned_to(clocks))
        except RecordingError as error:
            problems.append(error)
        except OSError as error:
            problems.append(RecordingError(f"expected to read {path}, got '{error}': remove it"))
    recordings.sort(key=lambda recording: (recording.component, recording.pid))
    return recordings, problems


def current() -> Recording:
    """Return the recording of this process since `start()`, or since the process began.

    Threads are missing if another process has overwritten or truncated their part of the file.
    """
    recorder = _control.recorder()
    recorder.open()
    assert recorder.header is not None
    sources: list[tuple[_Read, int, int]] = []
    for segment in list(recorder.segments):
        view = memoryview(segment.buffer)
        size = segment.layout.size
        sources.append((lambda pos, num, view=view: bytes(view[pos : pos + num]), 0, size))
    header = recorder.fixed_header()
    try:
        return _parse(recorder.path, header, sources)
    except RecordingError:  # keep the threads that can be read
        intact = [source for source in sources if _is_intact(header, source)]
        return _parse(recorder.path, header, intact)


def _is_intact(header: bytes, source: tuple[_Read, int, int]) -> bool:
    try:
        _parse(None, header, [source])
    except RecordingError:
        return False
    return True
