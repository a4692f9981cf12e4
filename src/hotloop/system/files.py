"""Files that are there whole or not at all, also after the machine has crashed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hotloop.errors import HotloopError, OutputError
from hotloop.system import memory

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGE = 2**24  # what is smaller is read without a question


@contextlib.contextmanager
def written_whole(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Another name to write to, beside `path`; it takes `path`'s place when the body has ended.

    Whatever fails or interrupts the body, nothing half-written is left, and what `path` held before
    stays. Missing directories are made. The other name has the same suffix; what has that name
    already, a link that leads elsewhere too, is removed and not written to.

    Args:
        path: what is written.
        durable: whether it must outlast a crash of the machine from then on: some ms more.

    Raises:
        OutputError: the directory or the file can't be written.
    """
    aside = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        os.close(os.open(aside, _NEW, 0o666))  # fails before the work begins, if it must
        yield aside
        if durable:
            sync(aside)
        os.replace(aside, path)
        if durable:
            sync(path.parent)
    except OSError as error:
        if isinstance(error, HotloopError):
            raise
        why = error.strerror or str(error).strip().split("\n")[0]
        if isinstance(error, FileExistsError):  # of mkdir
            why = "a part of its path is a file"
        free = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OutputError(f"{path} can't be written ({why}): {free}name another place") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file of a name that there must be none of; a link counts as one.

    Raises:
        OSError: it can't be written.
    """
    with open(os.open(path, _NEW, mode), "wb") as file:
        file.write(content)


def sync(*paths: Path) -> None:
    """Return when files and directories, with the names in them, are on the disk.

    All of them begin to be written before the first is waited for: the file system then writes its
    journal once, and not once for each, 4 ms on a busy disk.

    Raises:
        OSError: one of them can't be opened or written.
    """
    with contextlib.ExitStack() as exits:
        descriptors: list[int] = []
        for path in paths:
            access = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptors.append(os.open(path, access))
            exits.callback(os.close, descriptors[-1])
        for descriptor in descriptors:
            if len(paths) > 1 and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for descriptor in descriptors:
            try:
                os.fsync(descriptor)
            except OSError as error:
                # Some file systems have no such call for directories: there is nothing to wait for.
                if error.errno != errno.EINVAL:
                    raise


def read_regular(path: Path) -> bytes:
    """Return the content of a file that is one: a pipe would be waited for, a device has no end.

    Raises:
        OSError: it can't be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            if about.st_size > _LARGE:
                free = memory.available_memory()
                if free is not None and about.st_size > free:
                    raise OSError(
                        errno.EFBIG, "it is larger than the memory that is free", str(path)
                    )
            return file.read()
    except MemoryError as error:
        raise OSError(errno.EFBIG, "it does not fit into memory", str(path)) from error
    finally:
        os.close(descriptor)
