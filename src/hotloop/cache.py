"""A cache of files that take long to make, as compiled updates do: kept between processes.

A file is found by a key, which is a digest of all that it depends on; its name also holds the
digest of its own bytes, which are held against it whenever it is taken. The directory is the user's
own: one that others may write is not used.

    path = find(key, ".pt2")
    with to_be_made(key, ".pt2") as making:
        path = making.found or making.keep(make())

Of several processes that want the same, one makes it and the others wait. Nothing is half there:
what a killed one leaves has another name.
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

# Longer than anything takes to be made: who has a lock for so long has been stopped.
_PATIENCE_S = 600.0
_MAKING = ".making-"
# The folder of torch's compiler, and the variable that it is read from.
_INDUCTOR, _INDUCTOR_VARIABLE = "inductor", "TORCHINDUCTOR_CACHE_DIR"


def directory() -> Path:
    """Where it is: `$HOTLOOP_CACHE`, else `$XDG_CACHE_HOME/hotloop`, else `~/.cache/hotloop`."""
    own = os.environ.get("HOTLOOP_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hotloop"


@dataclass
class Shared:
    """How many runs want what this process makes.

    Attributes:
        runs: of a sweep, those that are alike.
    """

    runs: int = 1


SHARED = Shared()


@dataclass(frozen=True)
class Kept:
    """A file that is kept.

    Attributes:
        size: bytes.
        used_s: when it was last taken, or made, seconds since the epoch.
    """

    path: Path
    size: int
    used_s: float


def kept() -> list[Kept]:
    """All of them, the one that was used last first."""
    found: list[Kept] = []
    with contextlib.suppress(OSError):
        for path in directory().iterdir():
            with contextlib.suppress(OSError):  # somebody else has cleared it
                about = path.lstat()
                if stat.S_ISREG(about.st_mode) and "-" in path.stem and path.name[0] != ".":
                    found.append(Kept(path, about.st_size, about.st_mtime))
                elif stat.S_ISDIR(about.st_mode) and path.name == _INDUCTOR:
                    files = [file.lstat() for file in path.rglob("*") if file.is_file()]
                    size = sum(file.st_size for file in files)
                    used_s = max([about.st_mtime, *(file.st_mtime for file in files)])
                    found.append(Kept(path, size, used_s))
    return sorted(found, key=lambda one: -one.used_s)


def clear() -> list[Kept]:
    """Remove all of them, and what killed processes have left; returns what is gone.

    Raises:
        OSError: one can't be removed.
    """
    gone: list[Kept] = []
    for one in kept():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(one.path) if one.path.is_dir() else one.path.unlink()
            gone.append(one)
    for rest in (*directory().glob(f"{_MAKING}*"), *directory().glob(".*.lock")):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)
    return gone


def find(key: str, suffix: str) -> Path | None:
    """A file that is kept and whole; None: there is none. One that is damaged is removed."""
    folder = _own_directory()
    for path in sorted(folder.glob(f"{key}-*{suffix}")) if folder is not None else ():
        with contextlib.suppress(OSError):
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                continue
            if path.name == _name(key, path.read_bytes(), suffix):
                with contextlib.suppress(OSError):  # it may be there to be read alone
                    os.utime(path)
                return path
            path.unlink()
    return None


@dataclass(frozen=True)
class Making:
    """A file that is being made.

    Attributes:
        found: the file, where another process has made it meanwhile.
    """

    found: Path | None
    _folder: Path | None
    _key: str
    _suffix: str
    _exits: contextlib.ExitStack

    def keep(self, content: bytes) -> Path:
        """Write it, where it is kept if that is possible; returns where it is now.

        Where there is no room, or none that is one's own, it is there as long as the context lasts.

        Raises:
            OSError: temporary files can't be written either.
        """
        if self._folder is not None:
            with contextlib.suppress(OSError):
                aside = self._written(content, _MAKING, self._folder)
                final = self._folder / aside.name
                os.replace(aside, final)
                return final
        return self._written(content, "hotloop-", None)

    def _written(self, content: bytes, prefix: str, folder: Path | None) -> Path:
        directory = tempfile.mkdtemp(prefix=prefix, dir=folder)
        self._exits.callback(shutil.rmtree, directory, ignore_errors=True)
        path = Path(directory) / _name(self._key, content, self._suffix)
        path.write_bytes(content)
        return path


@contextlib.contextmanager
def to_be_made(key: str, suffix: str, waits: Callable[[], None] = lambda: None) -> Iterator[Making]:
    """Make a file that is not there: alone, or after another process has tried to.

    Args:
        waits: called if another process makes it.
    """
    folder = _own_directory()
    with contextlib.ExitStack() as exits:
        found = None
        if folder is not None:
            is_first = exits.enter_context(_locked(folder / f".{key}.lock", waits))
            found = None if is_first else find(key, suffix)
        yield Making(found, folder, key, suffix, exits)


@contextlib.contextmanager
def inductor_directory(default: str) -> Iterator[None]:
    """Have torch's compiler keep its files here while the body runs.

    Its own default is a folder under /tmp, which others may have made first and which the next
    start of the machine removes. A folder that the user has chosen stays.

    Args:
        default: the compiler's own default. Importing the compiler sets the variable to it.
    """
    folder, before = _own_directory(), os.environ.get(_INDUCTOR_VARIABLE)
    is_default = before in (None, os.path.abspath(default))
    if folder is None or not is_default:
        yield
        return
    (folder / _INDUCTOR).mkdir(mode=0o700, exist_ok=True)
    os.environ[_INDUCTOR_VARIABLE] = str(folder / _INDUCTOR)
    try:
        yield
    finally:
        del os.environ[_INDUCTOR_VARIABLE]
        if before is not None:
            os.environ[_INDUCTOR_VARIABLE] = before


def _own_directory() -> Path | None:
    """The directory, made where it is missing; None: others may write it, or it can't be made."""
    path = directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = path.stat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return path if is_own and not about.st_mode & 0o022 else None


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()}{suffix}"


@contextlib.contextmanager
def _locked(path: Path, waits: Callable[[], None]) -> Iterator[bool]:
    """Hold a lock, which ends with the process; gives whether nobody had it before."""
    is_first = True
    with contextlib.ExitStack() as exits:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # there is no room, or it is there to be read alone
            yield is_first
            return
        exits.callback(os.close, descriptor)
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if is_first:
                    waits()
                is_first = False
                time.sleep(0.1)
        yield is_first
