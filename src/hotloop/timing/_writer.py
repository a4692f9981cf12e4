"""The file of one process: its header, and the segments that it lends to threads.

All that is slow and rare is here, for both recorders: opening, reserving space, naming nodes. What
happens at every span is in `_recorder.c` and, without a compiler, in `_pure`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import struct
import sys
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any

from hotloop.system.processes import boot_id, process_start
from hotloop.timing import _format as f

CLOSED = "the program has closed its descriptor"


def _reserve(fd: int, offset: int, size: int) -> None:
    """Take space on the disk; a write into a hole of a full disk's map would be a SIGBUS.

    Raises:
        OSError: there isn't that much space.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, size)
        return
    zeros = bytes(65536)
    for position in range(offset, offset + size, len(zeros)):
        os.pwrite(fd, zeros, position)


class OwnFile:
    """A file of ours, by its bare descriptor, in a program that may close descriptors of others.

    A program that becomes a daemon closes all that it knows nothing of, and the next file that it
    opens gets our number: what is ours must not be written there.
    """

    def __init__(self) -> None:
        self._number = -1
        self._identity = (0, 0)

    def __bool__(self) -> bool:
        return self._number >= 0

    def make(self, directory: Path, stem: str, suffix: str, access: int) -> Path:
        """Make a file of a name that there is none of yet.

        Args:
            directory: where.
            stem, suffix: the name; where there is such a file, `<stem>-2<suffix>`, and so on.
            access: os.O_RDWR or os.O_WRONLY; further flags may be added.
        """
        flags = access | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        path = directory / (stem + suffix)
        taken = 1
        while True:
            try:
                self._number = os.open(path, flags, 0o644)
                break
            except FileExistsError:
                taken += 1
                path = directory / f"{stem}-{taken}{suffix}"
        self._identity = self._look()
        return path

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._number)
        return status.st_dev, status.st_ino

    def number(self) -> int:
        """The descriptor; OSError if it is none of ours any more, or none at all."""
        try:
            if self._number >= 0 and self._look() == self._identity:
                return self._number
        except OSError:
            pass
        raise OSError(errno.EBADF, CLOSED)

    def close(self) -> None:
        """Close it, if there is something of ours to close."""
        with contextlib.suppress(OSError):
            os.close(self.number())
        self._number = -1


class Segment:
    """The part of a recording that one thread at a time writes.

    A thread that ends gives it back with its totals in it, and the next one goes on from there: so
    thousands of short-lived threads fill no disk, and nothing that was counted is forgotten.
    """

    def __init__(self, recorder: Recorder, buffer: mmap.mmap, layout: f.Layout) -> None:
        self.recorder = recorder
        self.buffer = buffer
        self.layout = layout
        self.words = memoryview(buffer).cast("q")
        self.state: Any = None  # the recorder's own; it lives as long as the segment does
        self._paths: list[tuple[str, ...]] = []
        words = self.words
        words[f.S_SIZE] = layout.size
        words[f.S_RING] = layout.ring_capacity
        words[f.S_NODES] = layout.node_capacity
        words[layout.bank_a // 8] = words[layout.bank_b // 8] = 1
        self.add_node(-1, "", "work")
        words[f.S_STATE] = f.ENDED
        words[f.S_MAGIC] = f.SEGMENT_MAGIC  # last: a reader stops where it is missing

    def attach(self) -> None:
        """Give the segment to the calling thread."""
        words, opens = self.words, self.layout.opens // 8
        for node in range(words[f.S_NUM_NODES]):
            words[opens + node] = 0
        name = f.clip_utf8(threading.current_thread().name, f.THREAD_NAME_SIZE - 1)
        start = f.THREAD_NAME_OFFSET
        self.buffer[start : start + f.THREAD_NAME_SIZE] = name.ljust(f.THREAD_NAME_SIZE, b"\0")
        words[f.S_IDENT] = threading.get_native_id()
        words[f.S_NUM_THREADS] += 1
        words[f.S_ATTACHED] = time.monotonic_ns()
        words[f.S_STATE] = f.LIVE

    def release(self) -> None:
        """Take the segment back from a thread that ended."""
        # Nor in a forked child: that memory is the parent's, and Python ends the parent's threads
        # there before anybody is told of the fork.
        if self.recorder.closed or os.getpid() != self.recorder.pid:
            return
        words = self.words
        words[f.S_LIVED] += time.monotonic_ns() - words[f.S_ATTACHED]
        words[f.S_STATE] = f.ENDED
        # No lock: this may run inside the garbage collector, on a thread that holds it.
        self.recorder.free[self.layout].append(self)

    def add_node(self, parent: int, name: str, kind: str) -> int:
        """Enter a node into the table, and return its index."""
        words = self.words
        index = words[f.S_NUM_NODES]
        encoded = f.clip_utf8(name, f.NODE_NAME_SIZE)
        f.NODE.pack_into(
            self.buffer,
            f.SEGMENT_HEAD + index * f.NODE.size,
            parent,
            f.KINDS.index(kind),  # pyright: ignore[reportArgumentType]
            len(encoded),
            encoded,
        )
        words[f.S_NUM_NODES] = index + 1
        return index

    def path(self, index: int) -> tuple[str, ...]:
        """The names from the top of the tree down to a node."""
        for node in range(len(self._paths), index + 1):
            parent, _, length, name = f.NODE.unpack_from(
                self.buffer, f.SEGMENT_HEAD + node * f.NODE.size
            )
            above = self._paths[parent] if node else ()
            self._paths.append((*above, name[:length].decode()) if node else ())
        return self._paths[index]

    def count_unnamed(self) -> None:
        """Count a span that found no place in the table: its time is in the span around it."""
        self.words[f.S_UNNAMED] += 1


class Recorder:
    """Where this process records: a file, or, without a directory, anonymous memory."""

    def __init__(self, directory: Path | None, component: str, flags: int) -> None:
        self.directory = directory
        self.component = component
        self.flags = flags
        self.pid = os.getpid()
        self.path: Path | None = None
        self.closed = False
        self.segments: list[Segment] = []
        self.free: dict[f.Layout, deque[Segment]] = {f.MAIN: deque(), f.OTHER: deque()}
        self.started_ns = time.monotonic_ns()
        self.header: mmap.mmap | None = None
        self._file = OwnFile()
        self._size = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make the header, and the file if there is to be one."""
        with self._lock:
            self._open()

    def _open(self) -> None:
        if self.header is not None:
            return
        if self.directory is not None:
            self._create()
        self.header = self._map(f.HEADER_SIZE)
        f.HEADER.pack_into(
            self.header,
            0,
            bytes(8),
            f.VERSION,
            self.flags,
            self.pid,
            os.getppid(),
            process_start(self.pid),
            self.started_ns,
            0,
            time.time_ns() - time.monotonic_ns(),
            f.clip_utf8(self.component, 128),
            f.clip_utf8(os.uname().nodename, 128),
            f.clip_utf8(boot_id(), 64),
        )
        self.header[:8] = f.MAGIC  # last: what has it has all of the header

    def _create(self) -> None:
        assert self.directory is not None
        stem = re.sub(r"[^\w.-]+", "_", self.component) + f"-{self.pid}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.path = self._file.make(self.directory, stem, f.SUFFIX, os.O_RDWR)
        except OSError as error:
            self._give_up(error)

    def _map(self, size: int) -> mmap.mmap:
        """The file's next `size` bytes, or memory of our own where there is no space or file."""
        if self._file:
            try:
                file = self._file.number()
                _reserve(file, self._size, size)
                mapped = mmap.mmap(file, size, offset=self._size)
            except (OSError, ValueError) as error:
                self._give_up(error)
            else:
                self._size += size
                return mapped
        return mmap.mmap(-1, size)

    def _give_up(self, error: Exception) -> None:
        """Go on in memory, and say so once: the program matters more than its recording."""
        target = self.path or self.directory
        if self._file:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.number(), self._size)
            self._file.close()
        if self.path is not None and self._size == 0:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.path = None
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors
            warnings.warn(
                f"expected to record timings in {target}, got '{error}': the program goes on, what "
                "it records from here on stays in memory; free some space or choose another "
                "directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def lend(self) -> Segment:
        """A segment for the calling thread."""
        is_main = threading.current_thread() is threading.main_thread()
        layout = f.MAIN if is_main else f.OTHER
        try:
            segment = self.free[layout].popleft()
        except IndexError:
            with self._lock:
                self._open()
                segment = Segment(self, self._map(layout.size), layout)
                self.segments.append(segment)
        segment.attach()
        if is_main and segment.words[f.S_NUM_THREADS] == 1:
            segment.words[f.S_ATTACHED] = self.started_ns  # what came before its first span counts
        return segment

    def close(self) -> Path | None:
        """End the recording cleanly."""
        if self.closed:
            return self.path
        with self._lock:  # a thread may be about to map a segment
            self.closed = True
            if self.header is not None:
                struct.pack_into("<Q", self.header, f.END_OFFSET, time.monotonic_ns())
            self._drop()
        return self.path

    def abandon(self) -> None:
        """Let go of a recording that is the parent's, without writing a byte into it."""
        self.closed = True
        self._drop()

    def _drop(self) -> None:
        self._file.close()
        for segment in self.segments:
            state, segment.state = segment.state, None  # it refers back
            if state is not None:
                state.retire()


def in_multiprocessing_child(close: Any) -> None:
    """Have `close` called when a forked multiprocessing worker ends: atexit is not run there."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(close, lambda f: util.Finalize(None, f, exitpriority=0))
