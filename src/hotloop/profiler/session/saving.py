"""Storage of a session as one file, which contains no code."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hotloop.base import documents
from hotloop.base.files import atomic_write, check_memory, open_regular
from hotloop.errors import ProfileError
from hotloop.profiler.session import (
    Frame,
    Period,
    ProfiledProcess,
    Sample,
    Session,
    SpanThread,
    Stack,
    ThreadTotals,
    UnrecordedProcess,
)
from hotloop.profiler.session.gpu import GpuWindow
from hotloop.profiler.session.validation import check_session
from hotloop.timing import Node
from hotloop.timing.reader import OpenSpan, SpanPath

VERSION = 1
SESSION_FILE = "session.npz"
WINDOW_ARRAYS = ("work", "calls", "looks")


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Write a session to one file, which contains no code.

    Raises:
        OutputError: The file cannot be written.
    """
    # Describe the processes.
    arrays: dict[str, np.ndarray] = {}
    document: dict[str, Any] = {
        "version": VERSION,
        "directory": session.directory,
        "about": session.metadata,
        "problems": session.problems,
        "uncovered": session.unrecorded,
        "processes": [],
        "gpu": [],
    }
    for index, process in enumerate(session.processes):
        arrays[f"events.{index}"] = process.events
        fields = {**vars(process), "tree": _tree_to_json(process.tree)}
        del fields["events"]
        fields["threads"] = [vars(thread) for thread in process.threads]
        fields["periods"] = [
            [
                period.end_ns,
                [[list(path), *totals] for path, totals in period.spans.items()],
                period.cpu_ns,
                period.resident_bytes,
                [[list(path), count] for path, count in period.by_path.items()],
                list(period.by_stack.items()),
            ]
            for period in process.periods
        ]
        document["processes"].append(fields)
    # Describe the GPU windows.
    for index, window in enumerate(session.gpu):
        for name in WINDOW_ARRAYS:
            arrays[f"gpu.{name}.{index}"] = getattr(window, name)
        document["gpu"].append(
            {name: value for name, value in vars(window).items() if name not in WINDOW_ARRAYS}
            | {"spans": [[list(path), *totals] for path, totals in window.spans.items()]}
        )
    # Write the file atomically.
    arrays["session"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    with atomic_write(Path(path)) as partial, open(partial, "wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]


def is_saved_session(path: Path) -> bool:
    """Return whether a file starts like a saved session, which is a zip archive."""
    try:
        with open_regular(path) as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


def load(path: str | os.PathLike[str]) -> Session:
    """Return the session that `save` wrote.

    Raises:
        ProfileError: The file is not a session, or is of a newer version.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            arrays = _read_arrays(file, path)
        document = documents.parse_large(arrays["session"].tobytes(), path)
        if document["version"] > VERSION:
            raise ProfileError(
                f"expected a session of version {VERSION} or older in {path}, got "
                f"{document['version']}: update hotloop"
            )
        session = _session_from_json(document, arrays)
        check_session(session)
        return session
    except ProfileError:
        raise
    except Exception as error:  # the file may have any content
        reason = error.strerror if isinstance(error, OSError) else None
        # NumPy's messages have several lines, with advice to trust the file.
        reason = reason or f"{type(error).__name__}: {error}".split("\n")[0]
        raise ProfileError(
            f"expected a session of `hotloop profile` in {path}, got a file that can't be read "
            f"({reason}): save it again from the profile's directory"
        ) from error


def _read_arrays(file: BinaryIO, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name, after checking its checksums."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        check_memory(sum(entry.file_size for entry in entries), path)
        # `archive.read` checks the checksum at an entry's end, up to which NumPy may not read.
        return {
            entry.filename.removesuffix(".npy"): np.lib.format.read_array(
                io.BytesIO(archive.read(entry)), allow_pickle=False
            )
            for entry in entries
        }


def _session_from_json(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Session:
    return Session(
        document["directory"],
        document["about"],
        [
            _process_from_json(fields, arrays[f"events.{index}"])
            for index, fields in enumerate(document["processes"])
        ],
        [UnrecordedProcess(*fields) for fields in document["uncovered"]],
        document["problems"],
        [
            _window_from_json(
                fields, {name: arrays[f"gpu.{name}.{index}"] for name in WINDOW_ARRAYS}
            )
            for index, fields in enumerate(document.get("gpu", []))
        ],
    )


def _window_from_json(fields: dict[str, Any], arrays: dict[str, np.ndarray]) -> GpuWindow:
    return GpuWindow(
        **{
            **fields,
            **arrays,
            "spans": {tuple(path): (count, total) for path, count, total in fields["spans"]},
            "paths": [tuple(path) for path in fields["paths"]],
            "stacks": [_stack_from_json(*stack) for stack in fields["stacks"]],
        }
    )


def _stack_from_json(frames: list[list[Any]], lines: list[int]) -> Stack:
    return Stack(tuple(Frame(*frame) for frame in frames), tuple(lines))


def _process_from_json(fields: dict[str, Any], events: np.ndarray) -> ProfiledProcess:
    return ProfiledProcess(
        **{
            **fields,
            "events": events,
            "tree": _tree_from_json(fields["tree"]),
            "spans": [
                SpanPath(tuple(path), kind, thread) for path, kind, thread in fields["spans"]
            ],
            "open_spans": [
                OpenSpan(tuple(path), *values) for path, *values in fields["open_spans"]
            ],
            "span_threads": [SpanThread(*thread) for thread in fields["span_threads"]],
            "stacks": [_stack_from_json(*stack) for stack in fields["stacks"]],
            "samples": [
                Sample(thread, tuple(path), *values) for thread, path, *values in fields["samples"]
            ],
            "threads": [ThreadTotals(**thread) for thread in fields["threads"]],
            "periods": [
                Period(
                    end_ns,
                    {tuple(path): (count, total) for path, count, total in spans},
                    cpu_ns,
                    resident,
                    {tuple(path): count for path, count in by_path},
                    dict(by_stack),
                )
                for end_ns, spans, cpu_ns, resident, by_path, by_stack in fields["periods"]
            ],
        }
    )


def _tree_to_json(node: Node) -> dict[str, Any]:
    buckets = np.flatnonzero(node.histogram)
    return {
        "name": node.name,
        "kind": node.kind,
        "numbers": [
            node.count, node.total_ns, node.min_ns, node.max_ns, node.open, node.open_ns,
        ],
        "histogram": [buckets.tolist(), node.histogram[buckets].tolist()],
        "children": [_tree_to_json(child) for child in node.children.values()],
    }  # fmt: skip


def _tree_from_json(fields: dict[str, Any]) -> Node:
    node = Node(fields["name"], fields["kind"], *fields["numbers"])
    buckets, counts = fields["histogram"]
    node.histogram[buckets] = counts
    for child in map(_tree_from_json, fields["children"]):
        node.children[child.name, child.kind] = child
    return node
