"""A cache on disk for files that are slow to create, such as compiled updates.

The key of a file is a digest of everything that its content depends on. The file's name also
contains a digest of its bytes, which is checked before each use. Users of a file get the checked
bytes instead of its path. The cache is not used unless its directory is private: owned by this
user, mode 0700, and no link.

    content = find(key, ".so")
    if content is None:
        with creating(key, ".so") as file:
            content = file.existing or file.save(compile_update())

If several processes need the same file, one creates it while the others wait. A file is written
under a temporary name, so that a killed process leaves no partial file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hotloop.base.files import write_new

# Creating a file takes less time than this. A process that holds a lock for longer is suspended.
_LOCK_TIMEOUT_S = 600.0
_TEMPORARY_PREFIX = ".making-"
# A compiler's temporary files, precompiled headers included, take less.
_MIN_FREE_BYTES = 256 << 20
# Only files with these names are listed and removed: HOTLOOP_CACHE may contain other files.
_ENTRY = re.compile(r"[0-9a-f]{64}-[0-9a-f]{64}\.\w+")
_LOCK = re.compile(r"\.[0-9a-f]{64}\.lock")
# The directory of torch's compiler, and the environment variable that sets it.
_INDUCTOR, _INDUCTOR_VARIABLE = "inductor", "TORCHINDUCTOR_CACHE_DIR"


def directory() -> Path:
    """Return `$HOTLOOP_CACHE`, or else `$XDG_CACHE_HOME/hotloop` or `~/.cache/hotloop`."""
    custom = os.environ.get("HOTLOOP_CACHE")
    if custom:
        return Path(custom)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "hotloop"
    try:
        return Path.home() / ".cache" / "hotloop"
    except RuntimeError:  # no home, as of a user of a container without a name: not usable
        return Path("/nonexistent/hotloop")


@dataclass
class RunSharing:
    """The number of runs that share a file which this process creates.

    Attributes:
        runs: Runs of a sweep that use the same compiled update.
    """

    runs: int = 1


SHARING = RunSharing()


@dataclass(frozen=True)
class CacheEntry:
    """A file in the cache.

    Attributes:
        used_s: The time of its creation or last use, in seconds since the epoch.
    """

    path: Path
    size_bytes: int
    used_s: float


def entries() -> list[CacheEntry]:
    """Return all files in the cache, sorted by the time of last use, newest first."""
    entries_found: list[CacheEntry] = []
    with contextlib.suppress(OSError):
        for path in directory().iterdir():
            with contextlib.suppress(OSError):  # another process has cleared it
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and _ENTRY.fullmatch(path.name):
                    entries_found.append(CacheEntry(path, status.st_size, status.st_mtime))
                elif stat.S_ISDIR(status.st_mode) and path.name == _INDUCTOR:
                    files = [file.lstat() for file in path.rglob("*") if file.is_file()]
                    size = sum(file.st_size for file in files)
                    used_s = max([status.st_mtime, *(file.st_mtime for file in files)])
                    entries_found.append(CacheEntry(path, size, used_s))
    return sorted(entries_found, key=lambda entry: -entry.used_s)


def clear() -> list[CacheEntry]:
    """Remove all files, including leftovers of killed processes, and return the removed entries.

    Raises:
        OSError: A file cannot be removed.
    """
    removed: list[CacheEntry] = []
    for entry in entries():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(entry.path) if entry.path.is_dir() else entry.path.unlink()
            removed.append(entry)
    for leftover in directory().glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for lock in directory().glob(".*.lock"):
        if _LOCK.fullmatch(lock.name):
            lock.unlink(missing_ok=True)
    return removed


def find(key: str, suffix: str) -> bytes | None:
    """Return the content of an intact file, or None. A damaged file is removed."""
    folder = private_directory()
    for path in sorted(folder.glob(f"{key}-*{suffix}")) if folder is not None else ():
        with contextlib.suppress(OSError):
            content = _read_own(path)
            if content is not None and path.name == _name(key, content, suffix):
                with contextlib.suppress(OSError):  # the directory may be read-only
                    os.utime(path)
                return content
            path.unlink()
    return None


def _read_own(path: Path) -> bytes | None:
    """Return the content of a regular file that only this user can write, else None."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        return file.read() if stat.S_ISREG(status.st_mode) and is_own else None


@dataclass(frozen=True)
class FileInProgress:
    """A file that this process is about to create.

    Attributes:
        existing: The content, if another process has created the file in the meantime.
    """

    existing: bytes | None
    _folder: Path | None
    _key: str
    _suffix: str

    def save(self, content: bytes) -> bytes:
        """Write the file, unless the cache is full or not usable, and return its content."""
        name = _name(self._key, content, self._suffix)
        with contextlib.suppress(OSError), contextlib.ExitStack() as exits:
            if self._folder is not None:
                temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=self._folder))
                exits.callback(shutil.rmtree, temporary, ignore_errors=True)
                write_new(temporary / name, content, mode=0o600)
                os.replace(temporary / name, self._folder / name)
        return content


@contextlib.contextmanager
def creating(
    key: str, suffix: str, on_wait: Callable[[], None] = lambda: None
) -> Iterator[FileInProgress]:
    """Hold the lock of a missing file while the body creates it.

    Args:
        on_wait: Called if another process is creating the file.
    """
    folder = private_directory()
    with contextlib.ExitStack() as exits:
        existing = None
        if folder is not None:
            is_first = exits.enter_context(_locked(folder / f".{key}.lock", on_wait))
            existing = None if is_first else find(key, suffix)
        yield FileInProgress(existing, folder, key, suffix)


@contextlib.contextmanager
def inductor_directory(default: str) -> Iterator[None]:
    """Make torch's compiler store its files in this cache while the body runs.

    The compiler's default is a directory under /tmp, which another user may own and which a reboot
    removes. A directory that the user has set is not changed.

    Args:
        default: The compiler's default. Importing the compiler sets the variable to it.
    """
    previous = os.environ.get(_INDUCTOR_VARIABLE)
    if previous not in (None, os.path.abspath(default)):
        yield
        return
    parent = _directory_with_room()
    folder = None if parent is None else _private(parent / _INDUCTOR)
    with contextlib.ExitStack() as exits:
        if folder is None:  # the compiled code is used in this process only
            folder = exits.enter_context(temporary_directory())
        os.environ[_INDUCTOR_VARIABLE] = str(folder)
        try:
            yield
        finally:
            del os.environ[_INDUCTOR_VARIABLE]
            if previous is not None:
                os.environ[_INDUCTOR_VARIABLE] = previous


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a new directory in the cache, or else (no room) among the system's temporary files.

    Raises:
        OSError: Neither can be written.
    """
    parent, temporary = _directory_with_room(), ""
    with contextlib.suppress(OSError):
        if parent is not None:
            temporary = tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=parent)
    temporary = temporary or tempfile.mkdtemp(prefix="hotloop-")
    try:
        yield Path(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def private_directory() -> Path | None:
    """Create and return the directory, or return None if it is not private to this user."""
    return _private(directory())


def _directory_with_room() -> Path | None:
    """Return the directory, or None if it is not private or its disk is nearly full."""
    path = private_directory()
    with contextlib.suppress(OSError):
        if path is not None:
            disk = os.statvfs(path)
            return path if disk.f_bavail * disk.f_frsize >= _MIN_FREE_BYTES else None
    return None


def _private(path: Path) -> Path | None:
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and not status.st_mode & 0o077:
            return path
    return None


def unusable_reason() -> str:
    """Return why the cache is not used and how to change that, or "" if it is used."""
    path = directory()
    is_new = not os.path.lexists(path)
    existing = next((x for x in path.parents if x.exists()), path) if is_new else path
    if not os.access(existing, os.W_OK):
        return f"{existing} can't be written: set HOTLOOP_CACHE"
    if is_new or private_directory() is not None:
        return ""
    if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid():
        return f"other users have access to {path}: run `chmod 700 {path}`"
    return f"{path} must be a directory that you own, and no link: remove it, or set HOTLOOP_CACHE"


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()}{suffix}"


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold a file lock, and yield whether it was free at once. The end of the process frees it."""
    is_first = True
    with contextlib.ExitStack() as exits:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # the disk is full, or the directory is read-only
            yield is_first
            return
        exits.callback(os.close, descriptor)
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if is_first:
                    on_wait()
                is_first = False
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
        yield is_first
