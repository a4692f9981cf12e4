"""The file of one process: its header, and the segments into which its threads write.

Slow and rare operations of both recorders are here: opening files, reserving space, adding nodes.
The code that runs at every span is in `_recorder.c` and, without a compiler, in `_pure`.

Another process may overwrite or truncate the file at any time. So no code uses a number from the
file as an offset or an index: a segment keeps copies of the numbers that it needs. `_recorder.c`
handles the signal of a truncated map; without it, truncating a file ends its process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import sys
import threading
import time
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotloop.base.owned_file import OwnedFile
from hotloop.base.processes import boot_id, process_start
from hotloop.timing import _format as fmt
from hotloop.timing._format import Kind

try:
    from hotloop.timing import _recorder
except ImportError:
    _recorder: Any = None


def _reserve(fd: int, offset: int, size: int) -> None:
    """Reserve disk space or raise OSError: a sparse map on a full disk raises SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, size)
        return
    zeros = bytes(65536)
    for position in range(offset, offset + size, len(zeros)):
        os.pwrite(fd, zeros, position)


class Segment:
    """The part of a recording that one thread at a time writes.

    After a thread ends, the next thread reuses its segment and continues its totals. So thousands
    of short-lived threads do not fill the disk, and no count is lost.
    """

    def __init__(self, recorder: Recorder, buffer: mmap.mmap, layout: fmt.SegmentLayout) -> None:
        self.recorder = recorder
        self.buffer = buffer
        self.layout = layout
        self.words = memoryview(buffer).cast("q")
        self.state: Any = None  # state of the recorder, which lives as long as the segment
        # Copies of numbers and names in the file.
        self.thread: int | None = None  # native id, None if the thread has ended
        self.parents: list[int] = []
        self.kinds: list[Kind] = []
        self._paths: list[tuple[str, ...]] = []
        self.is_writing = False  # while a method of this class changes the file
        self._num_threads = self._num_unnamed = self._lived_ns = self._attached_ns = 0
        words = self.words
        words[fmt.S_SIZE] = layout.size
        words[fmt.S_RING] = layout.ring_capacity
        words[fmt.S_NODES] = layout.node_capacity
        words[layout.bank_a // 8] = words[layout.bank_b // 8] = 1
        self.add_node(0, "", "work")
        words[fmt.S_STATE] = fmt.ENDED
        words[fmt.S_MAGIC] = fmt.SEGMENT_MAGIC  # last, because a reader stops if it is missing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[bool]:
        """Yield whether the body may write: False after the end of the recording.

        Another thread may close the recording at any time, and then writes a checksum of the file
        unless `is_writing` is set.
        """
        self.is_writing = True
        try:
            yield not self.recorder.closed and os.getpid() == self.recorder.pid
        finally:
            self.is_writing = False

    def attach(self) -> None:
        """Assign the segment to the calling thread. Does nothing after the recording's end."""
        with self._writing() as may_write:
            if not may_write:
                return
            words, opens = self.words, self.layout.opens // 8
            for node in range(len(self.parents)):
                words[opens + node] = 0
            name = fmt.clip_utf8(threading.current_thread().name, fmt.THREAD_NAME_SIZE - 1)
            stop = fmt.THREAD_NAME_OFFSET + fmt.THREAD_NAME_SIZE
            self.buffer[fmt.THREAD_NAME_OFFSET : stop] = name.ljust(fmt.THREAD_NAME_SIZE, b"\0")
            self.thread = words[fmt.S_IDENT] = threading.get_native_id()
            self._num_threads += 1
            words[fmt.S_NUM_THREADS] = self._num_threads
            # The main thread's time includes the time before its first span.
            is_first = self.layout is fmt.MAIN and self._num_threads == 1
            self._attached_ns = self.recorder.started_ns if is_first else time.monotonic_ns()
            words[fmt.S_ATTACHED] = self._attached_ns
            words[fmt.S_STATE] = fmt.LIVE

    def release(self) -> None:
        """Release the segment after its thread has ended."""
        # A forked child shares this memory with its parent. Python discards the parent's other
        # threads in the child, and may call this before the hooks of `os.register_at_fork`, so
        # `_writing` compares process ids.
        with self._writing() as may_write:
            if not may_write:
                return
            self.thread = None
            state = self.state  # None if another thread closes the recording at this moment
            if state is not None:
                state.rewind()
            self._lived_ns += time.monotonic_ns() - self._attached_ns
            self.words[fmt.S_LIVED] = self._lived_ns
            self.words[fmt.S_STATE] = fmt.ENDED
        # Do not take the lock: the garbage collector may call this on a thread that holds it.
        self.recorder.free_segments[self.layout].append(self)

    @property
    def num_nodes(self) -> int:
        """Number of nodes in the table."""
        return len(self.parents)

    def add_node(self, parent: int, name: str, kind: str) -> int:
        """Add a node to the table and return its index."""
        index = self.num_nodes
        del self._paths[index:], self.kinds[index:]  # of a call that Ctrl-C ended halfway
        encoded = fmt.clip_utf8(name, fmt.NODE_NAME_SIZE)
        fields = (
            parent if index else -1,
            fmt.KINDS.index(kind),  # pyright: ignore[reportArgumentType]
            len(encoded),
            encoded,
        )
        with self._writing() as may_write:
            if may_write:
                offset = fmt.SEGMENT_HEAD + index * fmt.NODE.size
                fmt.NODE.pack_into(self.buffer, offset, *fields)
            self._paths.append((*self._paths[parent], encoded.decode()) if index else ())
            self.kinds.append(kind)  # pyright: ignore[reportArgumentType]
            self.parents.append(parent)
            if may_write:
                self.words[fmt.S_NUM_NODES] = index + 1
        return index

    def path(self, index: int) -> tuple[str, ...]:
        """Return the names from the root of the tree to a node."""
        return self._paths[index]

    def count_unnamed(self) -> None:
        """Count a span without a node, whose time belongs to the span around it."""
        self._num_unnamed += 1
        self.words[fmt.S_UNNAMED] = self._num_unnamed


class Recorder:
    """The recording of this process: a file, or anonymous memory if there is no directory."""

    def __init__(self, directory: Path | None, component: str, flags: int) -> None:
        self.directory = directory
        self.component = component
        self.flags = flags
        self.pid = os.getpid()
        self.path: Path | None = None
        self.closed = False
        self.segments: list[Segment] = []
        self.free_segments: dict[fmt.SegmentLayout, deque[Segment]] = {
            fmt.MAIN: deque(),
            fmt.OTHER: deque(),
        }
        self.started_ns = time.monotonic_ns()
        self.header: mmap.mmap | None = None
        self._fixed_header = b""
        self._file = OwnedFile()
        self._size = 0
        self._lock = threading.RLock()
        self._is_mapping = False  # while a thread with the lock creates or extends the file

    def open(self) -> None:
        """Create the header, and the file if there is a directory."""
        with self._lock, self._mapping():
            self._open()

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[None]:
        self._is_mapping = True
        try:
            yield
        finally:
            self._is_mapping = False

    def _open(self) -> None:
        if self.header is not None:
            return
        try:
            if self.directory is not None:
                self._create()
            self._write_header()
        except BaseException:  # Ctrl-C: the next call starts again
            self.header, self._size = None, 0
            self._file.close()
            if self.path is not None:
                with contextlib.suppress(OSError):
                    self.path.unlink()
                self.path = None
            raise

    def _write_header(self) -> None:
        header = self._map(fmt.HEADER_SIZE)
        self._fixed_header = fmt.HEADER.pack(
            fmt.MAGIC,
            fmt.VERSION,
            self.flags,
            self.pid,
            os.getppid(),
            process_start(self.pid),
            self.started_ns,
            0,
            time.time_ns() - time.monotonic_ns(),
            fmt.clip_utf8(self.component, 128),
            fmt.clip_utf8(os.uname().nodename, 128),
            fmt.clip_utf8(boot_id(), 64),
        )
        header[8 : fmt.HEADER.size] = self._fixed_header[8:]
        header[:8] = fmt.MAGIC  # last, so that it marks a complete header
        self.header = header

    def fixed_header(self) -> bytes:
        """Return the header of a recording that is not closed, even if the file is damaged."""
        return self._fixed_header

    def _create(self) -> None:
        assert self.directory is not None
        stem = re.sub(r"[^\w.-]+", "_", self.component) + f"-{self.pid}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.path = self._file.create(self.directory, stem, fmt.SUFFIX, os.O_RDWR)
        except OSError as error:
            self._continue_in_memory(error)

    def _map(self, size: int) -> mmap.mmap:
        """Map the next `size` bytes of the file, or anonymous memory without a file or space."""
        if self._file:
            try:
                descriptor = self._file.descriptor()
                _reserve(descriptor, self._size, size)
                mapped = mmap.mmap(descriptor, size, offset=self._size)
            except (OSError, ValueError) as error:
                self._continue_in_memory(error)
            else:
                self._size += size
                if hasattr(_recorder, "guard"):  # extensions of older versions have none
                    number = _recorder.guard(mapped)
                    weakref.finalize(mapped, _recorder.unguard, number).atexit = False
                return mapped
        return mmap.mmap(-1, size)

    def _continue_in_memory(self, error: Exception) -> None:
        """Continue in memory after one warning: the recording must not stop the program."""
        target = self.path or self.directory
        if self._file:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.descriptor(), self._size)
            self._file.close()
        if self.path is not None and self._size == 0:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.path = None
        with contextlib.suppress(RuntimeWarning):  # the program may turn warnings into errors
            warnings.warn(
                f"expected to record timings in {target}, got '{error}': the program continues "
                "and records in memory from now on; free some space or choose another directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def acquire_segment(self) -> Segment:
        """Return a segment for the calling thread."""
        is_main = threading.current_thread() is threading.main_thread()
        layout = fmt.MAIN if is_main else fmt.OTHER
        try:
            segment = self.free_segments[layout].popleft()
        except IndexError:
            with self._lock:
                if self._is_mapping:  # a signal handler or finalizer has interrupted this thread
                    segment = Segment(self, mmap.mmap(-1, layout.size), layout)
                    self.segments.append(segment)
                else:
                    with self._mapping():
                        self._open()
                        segment = self._add_segment(layout)
        segment.attach()
        return segment

    def _add_segment(self, layout: fmt.SegmentLayout) -> Segment:
        size, count = self._size, len(self.segments)
        try:
            segment = Segment(self, self._map(layout.size), layout)
            self.segments.append(segment)
            return segment
        except BaseException:
            # After Ctrl-C the file must not have a hole, in which a reader would stop.
            if len(self.segments) == count and self._file:
                self._size = size
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.descriptor(), size)
            raise

    def close(self) -> Path | None:
        """Close the recording and return its file."""
        if self.closed:
            return self.path
        with self._lock:  # a thread may be about to map a segment
            self.closed = True
            if self.header is not None:
                struct.pack_into("<Q", self.header, fmt.END_OFFSET, time.monotonic_ns())
            self._retire_states()
            if self._file and self.header is not None:
                self._write_checksum(self.header)
            self._file.close()
        return self.path

    def _write_checksum(self, header: mmap.mmap) -> None:
        """Write a checksum of everything, unless other threads may still be writing."""
        threads = {segment.thread for segment in self.segments} - {None, threading.get_native_id()}
        if threads and self.flags & fmt.PYTHON_RECORDER:  # they may be writing an event
            return
        if any(segment.is_writing for segment in self.segments):
            return
        if self._size != fmt.HEADER_SIZE + sum(segment.layout.size for segment in self.segments):
            return  # a signal handler's segment is in memory
        checksum = zlib.crc32(memoryview(header)[: fmt.CHECKSUM_OFFSET])
        for segment in self.segments:
            checksum = zlib.crc32(segment.buffer, checksum)
        struct.pack_into("<Q", header, fmt.CHECKSUM_OFFSET, fmt.HAS_CHECKSUM | checksum)

    def abandon(self) -> None:
        """Release the recording of the parent process, without writing into it."""
        self.closed = True
        self._file.close()
        self._retire_states()

    def _retire_states(self) -> None:
        for segment in self.segments:
            state, segment.state = segment.state, None  # breaks a reference cycle
            if state is not None:
                state.retire()


def in_multiprocessing_child(close: Any) -> None:
    """Call `close` when a forked multiprocessing worker ends, because atexit does not run there."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(close, lambda func: util.Finalize(None, func, exitpriority=0))
