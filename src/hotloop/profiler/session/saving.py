"""A session as one file, which holds no code."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import ProfileError
from hotloop.profiler.session import (
    Frame,
    Period,
    Process,
    Sample,
    Session,
    SpanThread,
    Stack,
    ThreadTimes,
    Uncovered,
)
from hotloop.profiler.session.gpu import GpuWindow
from hotloop.timing import Node
from hotloop.timing.reader import OpenSpan, Place

VERSION = 1
FILE = "session.npz"
WINDOW_ARRAYS = ("work", "calls", "looks")


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Write a session as one file, which holds no code.

    Raises:
        ProfileError: it can't be written.
    """
    arrays: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {
        "version": VERSION,
        "directory": session.directory,
        "about": session.about,
        "problems": session.problems,
        "uncovered": session.uncovered,
        "processes": [],
        "gpu": [],
    }
    for number, process in enumerate(session.processes):
        arrays[f"events.{number}"] = process.events
        own = {**vars(process), "tree": _tree_to_json(process.tree)}
        del own["events"]
        own["threads"] = [vars(thread) for thread in process.threads]
        own["periods"] = [
            [
                period.end_ns,
                [[list(path), *totals] for path, totals in period.spans.items()],
                period.cpu_ns,
                period.resident,
                [[list(path), count] for path, count in period.by_path.items()],
                list(period.by_stack.items()),
            ]
            for period in process.periods
        ]
        about["processes"].append(own)
    for number, window in enumerate(session.gpu):
        for name in WINDOW_ARRAYS:
            arrays[f"gpu.{name}.{number}"] = getattr(window, name)
        about["gpu"].append(
            {name: value for name, value in vars(window).items() if name not in WINDOW_ARRAYS}
            | {"spans": [[list(path), *totals] for path, totals in window.spans.items()]}
        )
    arrays["session"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        partial.write_bytes(buffer.getvalue())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ProfileError(
            f"expected to write {path}, got '{error}': choose another place"
        ) from error


def load(path: str | os.PathLike[str]) -> Session:
    """Read what `save` wrote.

    Raises:
        ProfileError: it is no session, or of a newer version.
    """
    try:
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"
        if not is_archive:
            raise ProfileError(
                "expected a profile's or a run's directory, or a session that was saved, got "
                f"{path}: it is neither; `hotloop profile SCRIPT` makes a directory"
            )
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file["session"].tobytes())
            if about["version"] > VERSION:
                raise ProfileError(
                    f"expected a session of version {VERSION} or older in {path}, got "
                    f"{about['version']}: update hotloop"
                )
            events = [file[f"events.{i}"] for i in range(len(about["processes"]))]
            windows = [
                _window_from_json(
                    own, {name: file[f"gpu.{name}.{number}"] for name in WINDOW_ARRAYS}
                )
                for number, own in enumerate(about.get("gpu", []))
            ]
        pairs = zip(about["processes"], events, strict=True)
        return Session(
            about["directory"],
            about["about"],
            [_process_from_json(own, one) for own, one in pairs],
            [Uncovered(*one) for one in about["uncovered"]],
            about["problems"],
            windows,
        )
    except ProfileError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ProfileError(
            f"expected a session of `hotloop profile` in {path}, got a file that can't be read "
            f"({type(error).__name__}: {error}): save it again from the profile's directory"
        ) from error


def _window_from_json(own: dict[str, Any], arrays: dict[str, np.ndarray]) -> GpuWindow:
    return GpuWindow(
        **{
            **own,
            **arrays,
            "spans": {tuple(path): (count, total) for path, count, total in own["spans"]},
            "paths": [tuple(path) for path in own["paths"]],
            "stacks": [_stack_from_json(*stack) for stack in own["stacks"]],
        }
    )


def _stack_from_json(frames: list[list[Any]], lines: list[int]) -> Stack:
    return Stack(tuple(Frame(*frame) for frame in frames), tuple(lines))


def _process_from_json(own: dict[str, Any], events: np.ndarray) -> Process:
    return Process(
        **{
            **own,
            "events": events,
            "tree": _tree_from_json(own["tree"]),
            "spans": [Place(tuple(path), kind, thread) for path, kind, thread in own["spans"]],
            "open_spans": [OpenSpan(tuple(path), *rest) for path, *rest in own["open_spans"]],
            "span_threads": [SpanThread(*thread) for thread in own["span_threads"]],
            "stacks": [_stack_from_json(*stack) for stack in own["stacks"]],
            "samples": [
                Sample(thread, tuple(path), *rest) for thread, path, *rest in own["samples"]
            ],
            "threads": [ThreadTimes(**thread) for thread in own["threads"]],
            "periods": [
                Period(
                    end_ns,
                    {tuple(path): (count, total) for path, count, total in spans},
                    cpu_ns,
                    resident,
                    {tuple(path): count for path, count in by_path},
                    dict(by_stack),
                )
                for end_ns, spans, cpu_ns, resident, by_path, by_stack in own["periods"]
            ],
        }
    )


def _tree_to_json(node: Node) -> dict[str, Any]:
    full = np.flatnonzero(node.histogram)
    return {
        "name": node.name,
        "kind": node.kind,
        "numbers": [
            node.count, node.total_ns, node.min_ns, node.max_ns, node.open, node.open_ns,
        ],
        "histogram": [full.tolist(), node.histogram[full].tolist()],
        "children": [_tree_to_json(child) for child in node.children.values()],
    }  # fmt: skip


def _tree_from_json(fields: dict[str, Any]) -> Node:
    node = Node(fields["name"], fields["kind"], *fields["numbers"])
    buckets, counts = fields["histogram"]
    node.histogram[buckets] = counts
    for child in map(_tree_from_json, fields["children"]):
        node.children[child.name, child.kind] = child
    return node
