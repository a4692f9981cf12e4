"""Atomic writes of files, which can survive a crash of the machine, and safe reads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hotloop.base import memory
from hotloop.errors import HotloopError, OutputError, shortened

_REFUSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LARGE_BYTES = 2**24
"""Size from which files are read only if they fit into the free memory."""


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` at the end of the body.

    If the body fails or is interrupted, the old content of `path` stays and the temporary file is
    removed. Missing directories are created. The temporary name has the same suffix, and no other
    writer uses it: of several writers of one path, the last one to finish wins. A killed writer
    leaves its temporary file, which the next writer of `path` removes.

    Args:
        path: the file to write.
        durable: whether to write the file so that it survives a crash of the machine. This takes
            some ms.

    Raises:
        OutputError: the directory or the file can't be written.
    """
    if not path.name or "\0" in str(path):
        raise OutputError(f"{str(path)!r} can't be written (it names no file): choose another path")
    temporary_path = path.with_name(f".{path.stem}.{secrets.token_hex(8)}.tmp{path.suffix}")
    descriptor = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        descriptor = os.open(temporary_path, _NEW_FILE, 0o666)  # fail before the work begins
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # until the end: the writer is alive
        yield temporary_path
        if durable:
            sync(temporary_path)
        os.replace(temporary_path, path)
        if durable:
            sync(path.parent)
    except OSError as error:
        if isinstance(error, HotloopError):
            raise
        reason = error.strerror or str(error).strip().split("\n")[0]
        if isinstance(error, FileExistsError):  # of mkdir
            reason = "a parent is not a directory"
        advice = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OutputError(
            f"{path} can't be written ({reason}): {advice}choose another path"
        ) from error
    finally:
        if descriptor is not None:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary_path.unlink()


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of killed writers of `path`, whose locks are free."""
    pattern = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{16}}\.tmp{re.escape(path.suffix)}")
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(path.parent)):
            descriptor = os.open(path.with_name(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb"), contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.with_name(name).unlink()


def make_directory(path: Path, description: str, advice: str) -> None:
    """Create a directory with its parents, unless it exists.

    Args:
        path: the directory.
        description: its purpose and path, for the error.
        advice: what to do if it can't be created.

    Raises:
        OutputError: it can't be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has its name" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(f"{description} can't be created ({reason}): {advice}") from error


def path_problem(error: Exception) -> str:
    """Return what is wrong with a path that the system refuses, or "" for other errors."""
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # pathlib's, before 3.13
        return f"{error}: remove this link, or pass another path"
    if isinstance(error, OSError) and error.filename and error.errno in _REFUSED:
        path = shortened(os.fsdecode(error.filename))
        return f"{path} can't be used ({error.strerror}): check its permissions, or pass another"
    return ""


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a new file. An existing file or link of this name is an error.

    Raises:
        OSError: the file exists or can't be written.
    """
    with open(os.open(path, _NEW_FILE, mode), "wb") as file:
        file.write(content)


def sync(*paths: Path) -> None:
    """Flush files and directories, with their entries, to the disk.

    Start to write all files before waiting for the first. The file system then writes its
    journal once instead of once per file, which takes 4 ms on a busy disk.

    Raises:
        OSError: a file can't be opened or written.
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
                # Some file systems do not support this call for directories.
                if error.errno != errno.EINVAL:
                    raise


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read it. A pipe could block, and a device has no end.

    Raises:
        OSError: the file can't be read, is not a regular file, or does not fit into memory.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name has a NUL character") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with open(descriptor, "rb") as file:
        check_memory(status.st_size, path)
        try:
            yield file
        except MemoryError as error:
            raise OSError(errno.EFBIG, "it does not fit into memory", str(path)) from error


def check_memory(size_bytes: int, path: Path) -> None:
    """Check that the content of a file fits into the free memory.

    Raises:
        OSError: it does not fit.
    """
    if size_bytes > LARGE_BYTES:
        free = memory.available_memory()
        if free is not None and size_bytes > free:
            raise OSError(errno.EFBIG, "it is larger than the free memory", str(path))


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(path) as file:
        return file.read()


@contextlib.contextmanager
def private_file(content: bytes) -> Iterator[Path]:
    """Yield a path of a file with this content that no other process can change.

    On Linux it is in memory only.

    Raises:
        OSError: the file can't be written.
    """
    with contextlib.ExitStack() as exits:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            descriptor = os.memfd_create("hotloop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            file = exits.enter_context(open(descriptor, "wb", buffering=0))
            remaining = memoryview(content)
            while remaining:  # one call writes at most 2 GiB
                remaining = remaining[file.write(remaining) :]
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            yield Path(f"/proc/self/fd/{descriptor}")
        else:
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="hotloop-"))
            write_new(Path(folder) / "content", content, mode=0o600)
            yield Path(folder) / "content"
