"""A cache on disk for files that are slow to create, such as compiled updates.

The key of a file is a digest of everything that its content depends on. The file's name also
contains a digest of its bytes, which is checked before each use. The cache is not used if other
users can write to its directory.

    path = find(key, ".pt2")
    if path is None:
        with creating(key, ".pt2") as file:
            path = file.existing or file.save(compile_update())

If several processes need the same file, one creates it while the others wait. A file is written
under a temporary name, so that a killed process leaves no partial file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Creating a file takes less time: a process that holds a lock for longer is suspended.
_LOCK_TIMEOUT_S = 600.0
_TEMPORARY_PREFIX = ".making-"
# The directory of torch's compiler, and the environment variable that sets it.
_INDUCTOR, _INDUCTOR_VARIABLE = "inductor", "TORCHINDUCTOR_CACHE_DIR"


def directory() -> Path:
    """Return `$HOTLOOP_CACHE`, or else `$XDG_CACHE_HOME/hotloop` or `~/.cache/hotloop`."""
    custom = os.environ.get("HOTLOOP_CACHE")
    if custom:
        return Path(custom)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hotloop"


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
                if stat.S_ISREG(status.st_mode) and "-" in path.stem and path.name[0] != ".":
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
    for leftover in (*directory().glob(f"{_TEMPORARY_PREFIX}*"), *directory().glob(".*.lock")):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    return removed


def find(key: str, suffix: str) -> Path | None:
    """Return the path of an intact file, or None. A damaged file is removed."""
    folder = _private_directory()
    for path in sorted(folder.glob(f"{key}-*{suffix}")) if folder is not None else ():
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                continue
            if path.name == _name(key, path.read_bytes(), suffix):
                with contextlib.suppress(OSError):  # the directory may be read-only
                    os.utime(path)
                return path
            path.unlink()
    return None


@dataclass(frozen=True)
class FileInProgress:
    """A file that this process is about to create.

    Attributes:
        existing: The path, if another process has created the file in the meantime.
    """

    existing: Path | None
    _folder: Path | None
    _key: str
    _suffix: str
    _exits: contextlib.ExitStack

    def save(self, content: bytes) -> Path:
        """Write the file and return its path.

        If the cache is full or not usable, the file is temporary: it exists until the context ends.

        Raises:
            OSError: Temporary files cannot be written either.
        """
        if self._folder is not None:
            with contextlib.suppress(OSError):
                temporary = self._write(content, _TEMPORARY_PREFIX, self._folder)
                final = self._folder / temporary.name
                os.replace(temporary, final)
                return final
        return self._write(content, "hotloop-", None)

    def _write(self, content: bytes, prefix: str, folder: Path | None) -> Path:
        directory = tempfile.mkdtemp(prefix=prefix, dir=folder)
        self._exits.callback(shutil.rmtree, directory, ignore_errors=True)
        path = Path(directory) / _name(self._key, content, self._suffix)
        path.write_bytes(content)
        return path


@contextlib.contextmanager
def creating(
    key: str, suffix: str, on_wait: Callable[[], None] = lambda: None
) -> Iterator[FileInProgress]:
    """Hold the lock of a missing file while the body creates it.

    Args:
        on_wait: Called if another process is creating the file.
    """
    folder = _private_directory()
    with contextlib.ExitStack() as exits:
        existing = None
        if folder is not None:
            is_first = exits.enter_context(_locked(folder / f".{key}.lock", on_wait))
            existing = None if is_first else find(key, suffix)
        yield FileInProgress(existing, folder, key, suffix, exits)


@contextlib.contextmanager
def inductor_directory(default: str) -> Iterator[None]:
    """Make torch's compiler store its files in this cache while the body runs.

    The compiler's default is a directory under /tmp, which another user may own and which a reboot
    removes. A directory that the user has set is not changed.

    Args:
        default: The compiler's default. Importing the compiler sets the variable to it.
    """
    folder, previous = _private_directory(), os.environ.get(_INDUCTOR_VARIABLE)
    is_default = previous in (None, os.path.abspath(default))
    if folder is None or not is_default:
        yield
        return
    (folder / _INDUCTOR).mkdir(mode=0o700, exist_ok=True)
    os.environ[_INDUCTOR_VARIABLE] = str(folder / _INDUCTOR)
    try:
        yield
    finally:
        del os.environ[_INDUCTOR_VARIABLE]
        if previous is not None:
            os.environ[_INDUCTOR_VARIABLE] = previous


def _private_directory() -> Path | None:
    """Create and return the directory, or return None if it is not private to this user."""
    path = directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError:
        return None
    is_owned = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return path if is_owned and not status.st_mode & 0o022 else None


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()}{suffix}"


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold a file lock, and yield whether it was free at once. It ends with the process."""
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
            except OSError:
                if is_first:
                    on_wait()
                is_first = False
                time.sleep(0.1)
        yield is_first
