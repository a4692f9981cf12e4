"""Checks of a session that was read from files, which may be damaged or written by anyone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from hotloop.base import documents
from hotloop.base.crowding import Crowding
from hotloop.profiler.session import Session, Stack
from hotloop.profiler.session.gpu import CALL, HOST_SAMPLE, WORK, GpuWindow
from hotloop.timing import _format
from hotloop.timing.reader import EVENT

# Limit of times and counts. It is 36 years in nanoseconds.
_MAX_NUMBER = 2**60
_MAX_PROCESSES, _MAX_DEPTH = 100_000, 200
_ARRAYS = {"events": EVENT, "work": WORK, "calls": CALL, "looks": HOST_SAMPLE}
_PLAIN = (int, str, bool)
_PATH = tuple[str, ...]


@dataclass(kw_only=True)
class _Training:
    """Schema of `training`, see `run_facts`."""

    num_envs: int
    execution: str
    has_replay: bool
    has_auto_workers: bool


@dataclass(kw_only=True)
class _Metadata:
    """Schema of `profile.json`, to which reading adds `crowding` and `training`."""

    command: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    started: str = ""
    recorded_by: str = ""
    start_ns: int = 0
    end_ns: int = 0
    exit_code: int = 0
    crowding: dict[str, float] | None = None
    training: _Training | None = None
    environment: dict[str, str] | None = None


def check_metadata(metadata: Any) -> None:
    """Check the types of all values in `profile.json`.

    Raises:
        ValueError: A value has another type.
    """
    documents.record(_Metadata, metadata, ignore_unknown=True)
    if "crowding" in metadata and Crowding.from_json(metadata["crowding"]) is None:
        raise ValueError("`crowding` has other fields or values than this version writes")


def check_session(session: Session) -> None:
    """Check the types and ranges of all values of a session, and its indices into tables.

    Raises:
        ValueError: A value is impossible. The message names its place.
    """
    _check(session, Session, "session")
    check_metadata(session.metadata)
    if not 0 < len(session.processes) <= _MAX_PROCESSES:
        raise ValueError(f"it has {len(session.processes):,} processes")
    for process in session.processes:
        if process.start_ns > process.end_ns:
            raise ValueError(f"process {process.pid} ends before it starts")
        events = process.events
        _check_indices("an event's span", events["span"], len(process.spans))
        _check_indices("an event's thread", events["thread"], len(process.span_threads))
        spans = (*process.spans, *process.open_spans)
        _check_indices("a span's thread", [x.thread for x in spans], len(process.span_threads))
        stacks = [sample.stack for sample in process.samples]
        stacks += [stack for period in process.periods for stack in period.by_stack]
        _check_indices("a sample's stack", stacks, len(process.stacks))
        _check_stacks(process.stacks)
    for window in session.gpu:
        check_window(window)


def check_window(window: GpuWindow) -> None:
    """Check a GPU window like a session.

    Raises:
        ValueError: A value is impossible. The message names its place.
    """
    _check(window, GpuWindow, "window")
    for array in (window.work, window.calls):
        _check_indices("the name of a GPU's work", array["name"], len(window.names))
    _check_indices("a GPU window's path", window.looks["path"], len(window.paths))
    _check_indices("a GPU window's stack", window.looks["stack"], len(window.stacks))
    _check_stacks(window.stacks)
    if not all(window.spans):
        raise ValueError("a span's path is empty")


def _check_stacks(stacks: Sequence[Stack]) -> None:
    for frames, lines in stacks:
        if len(frames) != len(lines):
            raise ValueError("a stack has another number of lines than of frames")


def _check_indices(name: str, indices: Any, size: int) -> None:
    array = np.asarray(indices, np.int64)
    if array.size and not (array.min() >= 0 and array.max() < size):
        raise ValueError(f"{name} must be below {size:,}, got {array.min()} to {array.max()}")


def _check(value: Any, hint: Any, where: str, depth: int = 0) -> None:
    """Check a value against a type hint, recursively."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where[:60]}… is nested too deeply")
    if hint is Any:
        return
    origin, inner = _parts(hint)
    if origin in (Union, UnionType):
        if value is not None:
            (hint,) = (item for item in inner if item is not NoneType)
            _check(value, hint, where, depth)
    elif origin is Literal:
        if not isinstance(value, str) or value not in inner:
            raise ValueError(f"{where} must be one of {', '.join(inner)}")
    elif hint in _PLAIN:
        if type(value) is not hint or (hint is int and abs(int(value)) > _MAX_NUMBER):
            raise ValueError(f"{where} must be {hint.__name__}, got {repr(value)[:60]}")
    elif hint is float:
        is_number = type(value) in (int, float) and abs(value) <= _MAX_NUMBER
        if not (is_number and math.isfinite(value)):
            raise ValueError(f"{where} must be a number, got {repr(value)[:60]}")
    elif origin in (dict, Mapping):
        _check_instance(value, Mapping, where)
        if inner[0] != _PATH or not all(map(_is_path, value)):
            _check_items(value, inner[0], f"a key of {where}", depth)
        _check_items(value.values(), inner[1], where, depth)
    elif origin is tuple and inner[-1] is not Ellipsis:
        _check_instance(value, tuple, where)
        if len(value) != len(inner):
            raise ValueError(f"{where} must have {len(inner)} items, got {len(value)}")
        if inner.count(inner[0]) == len(inner):
            _check_items(value, inner[0], where, depth)
            return
        for item, item_hint in zip(value, inner, strict=True):
            _check(item, item_hint, where, depth + 1)
    elif origin in (list, tuple, Sequence):
        _check_instance(value, tuple if origin is tuple else list, where)
        _check_items(value, inner[0], where, depth)
    elif hint is np.ndarray:
        _check_array(value, where)
    else:  # a dataclass or a named tuple
        _check_instance(value, hint, where)
        for name, field_hint in _fields(hint).items():
            _check(getattr(value, name), field_hint, f"{where}.{name}", depth + 1)


def _check_items(items: Collection[Any], hint: Any, where: str, depth: int) -> None:
    """Check items of one type. Plain values, which are most, take no call each.

    Named tuples are checked field by field, so that their plain values take none either.
    """
    is_plain = hint in _PLAIN and {*map(type, items)} <= {hint}
    if is_plain and (hint is not int or max(map(abs, items), default=0) <= _MAX_NUMBER):
        return
    if hasattr(hint, "_fields") and items and {*map(type, items)} == {hint}:
        columns = zip(*items, strict=True)
        for (name, field_hint), values in zip(_fields(hint).items(), columns, strict=True):
            _check_items(values, field_hint, f"{where}.{name}", depth + 1)
        return
    for item in items:
        _check(item, hint, where, depth + 1)


@lru_cache(maxsize=4096)
def _is_path(key: object) -> bool:
    """Return whether a key is a path of spans. All periods of a process have the same ones."""
    return type(key) is tuple and {*map(type, key)} <= {str}


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _check_instance(value: Any, kind: Any, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be a {kind.__name__}, got {repr(value)[:60]}")


def _check_array(value: Any, where: str) -> None:
    dtype = _ARRAYS.get(where.rpartition(".")[2])
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != (dtype or np.int64):
        raise ValueError(f"{where} must be an array of {dtype or 'int64'}")
    if dtype is None and len(value) != _format.NUM_BUCKETS:
        raise ValueError(f"{where} must have {_format.NUM_BUCKETS} numbers, got {len(value):,}")
    for name in dtype.names or () if dtype else ():
        if value.size and np.abs(value[name].astype(np.float64)).max() > _MAX_NUMBER:
            raise ValueError(f"{where} has a `{name}` beyond {_MAX_NUMBER:,}")


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, localns={"GpuWindow": GpuWindow, "Stack": Stack})
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else (getattr(kind, "_fields", ()))
    )
    return {name: hints[name] for name in names}
