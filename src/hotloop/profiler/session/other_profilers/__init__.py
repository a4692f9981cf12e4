"""Recordings of other profilers, read as sessions.

    session = read(Path("py-spy.txt"))

A reader is a function of a file's content. It returns an `OtherProfile`, whose stacks become a
session that the report and the diagnosis treat like a session of hotloop, as far as the format's
data allows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from hotloop.base import documents
from hotloop.base.files import LARGE_BYTES, check_memory, read_regular
from hotloop.errors import ProfileError
from hotloop.profiler.session import Session
from hotloop.profiler.session.other_profilers import (
    chrome_trace,
    collapsed,
    function_totals,
    gecko,
    mojo,
    speedscope,
)
from hotloop.profiler.session.other_profilers.stacks import OtherProfile
from hotloop.profiler.session.other_profilers.to_session import to_session
from hotloop.profiler.session.validation import check_session

_EXPECTED = (
    "a recording of py-spy (raw, speedscope), austin, Python's profiling.sampling or cProfile, "
    "torch.profiler or another Chrome trace"
)
_MAX_UNPACKED_BYTES = 2**31
_MAX_COMPRESSION = 250  # of recordings, whose stacks repeat; zlib packs equal bytes 1,000 to 1


# JSON formats, by a key that only they have.
_JSON_READERS: dict[str, tuple[str, Callable[..., OtherProfile]]] = {
    "shared.frames": ("a speedscope file", speedscope.read),
    "threads": ("a profile for the Firefox Profiler", gecko.read),
    "traceEvents": ("a Chrome trace", chrome_trace.read),
}


def read(path: Path) -> Session:
    """Return the session in a file of another profiler.

    Raises:
        ProfileError: The file can't be read, has another format, or has no stacks.
    """
    name = _EXPECTED
    try:
        content = _unpacked(read_regular(path), path)
        name, profile = _read_content(content, path)
        session = to_session(profile, path)
        check_session(session)
    except ProfileError:
        raise
    except Exception as error:  # the file may have any content
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        raise ProfileError(
            f"expected {name} in {path}, got a file that can't be read "
            f"({reason.splitlines()[0][:200] if reason else type(error).__name__}): record again"
        ) from error
    return session


def _read_content(content: bytes, path: Path) -> tuple[str, OtherProfile]:
    """Return the name of the format, and the profile."""
    start = content[:512].lstrip()
    if start[:1] in (b"{", b"[") and not function_totals.matches(content):
        document = documents.parse_large(content, path)
        if isinstance(document, list):
            return "a Chrome trace", chrome_trace.read({"traceEvents": document})
        for key, (name, reader) in _JSON_READERS.items():
            outer, _, inner = key.partition(".")
            if outer in document and (not inner or inner in document[outer]):
                try:
                    return name, reader(document)
                except (KeyError, IndexError, TypeError) as error:
                    raise ValueError(
                        f"it looks like {name}, but can't be read ({type(error).__name__}: {error})"
                    ) from error
        raise ProfileError(
            f"expected {_EXPECTED} in {path}, got JSON with the keys "
            f"{', '.join(map(repr, list(document)[:4])) or 'of an empty object'}: record again"
        )
    if function_totals.matches(content):
        return "a file of cProfile or pstats", function_totals.read(content)
    if mojo.matches(content):
        return "a MOJO file of austin", mojo.read(content)
    return "stacks of py-spy or austin", collapsed.read(content, path)


def _unpacked(content: bytes, path: Path) -> bytes:
    """Return the content, unpacked if it is in gzip's format."""
    if content[:2] != b"\x1f\x8b":
        return content
    limit = min(_MAX_UNPACKED_BYTES, max(LARGE_BYTES, _MAX_COMPRESSION * len(content)))
    unpacked = zlib.decompressobj(wbits=31).decompress(content, limit)
    if len(unpacked) == limit:
        raise ValueError(f"its {len(content):,} bytes unpack to {limit:,} or more")
    check_memory(8 * len(unpacked), path)
    return unpacked
