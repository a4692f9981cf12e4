"""JSON documents, read from files and held against what dataclasses declare."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hotloop.system.files import read_regular

Record = TypeVar("Record")

_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    dict: ("an object", (dict,)),
    list: ("a list", (list,)),
}
_GREATEST = 2**63
_MAX_SHOWN = 60


def parse(text: str | bytes) -> Any:
    """Return the value that a JSON text stands for.

    Raises:
        ValueError: it stands for none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: it can't be read, or is no regular file.
        ValueError: it is no JSON.
    """
    return parse(read_regular(path))


def record(kind: type[Record], value: Any, *, where: str = "", others: bool = False) -> Record:
    """Return a dataclass from the object that JSON has of it.

    Fields are bool, int (of 64 bits), float, str, dict and list, optional ones (`| None`),
    sequences, tuples, mappings and dataclasses of these, and `Any`.

    Args:
        kind: the dataclass.
        value: the object; fields with a default may be missing.
        where: what leads to it, for messages.
        others: whether fields that are not declared are passed over, and not an error.

    Raises:
        ValueError: says what is missing, unknown or of another type, and where.
    """
    if not isinstance(value, dict):
        raise _mismatch("an object", value, where)
    declared = _declared(kind)
    within = f"{where}." if where else ""
    unknown = [] if others else sorted(value.keys() - declared.keys())
    if unknown:
        raise ValueError(f"`{within}{unknown[0]}` is not known")
    given: dict[str, Any] = {}
    for name, (hint, is_needed) in declared.items():
        if name in value:
            given[name] = _as_declared(hint, value[name], f"{within}{name}")
        elif is_needed:
            raise ValueError(f"`{within}{name}` is missing")
    return kind(**given)


def _as_declared(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint in _PLAIN:  # most are, and what a type is made of takes 2 µs to find out
        return _as_plain(hint, value, where)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (hint,) = (one for one in inner if one is not NoneType)
        return _as_declared(hint, value, where)
    if is_dataclass(hint):
        return record(hint, value, where=where)  # pyright: ignore[reportArgumentType]
    if origin in (list, tuple, Sequence):
        return _as_sequence(origin, inner, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _mismatch("an object", value, where)
        return {name: _as_declared(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    return _as_plain(hint, value, where)


def _as_plain(hint: Any, value: Any, where: str) -> Any:
    expected, kinds = _PLAIN[hint]
    is_other = isinstance(value, bool) and hint is not bool
    if is_other or not isinstance(value, kinds):
        raise _mismatch(expected, value, where)
    if type(value) is int and abs(value) >= _GREATEST:
        raise _mismatch(f"{expected} of 64 bits", value, where)
    return value


def _as_sequence(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _mismatch("a list", value, where)
    if inner[0] is Any and origin is not tuple:  # half a million episodes are: 1 s less
        return value
    hints = [inner[0]] * len(value)
    if origin is tuple and inner[-1] is not Ellipsis:
        hints = list(inner)
        if len(hints) != len(value):
            raise _mismatch(f"a list of {len(hints)}", value, where)
    made = [
        _as_declared(h, x, f"{where}[{i}]")
        for i, (h, x) in enumerate(zip(hints, value, strict=True))
    ]
    return tuple(made) if origin is tuple else made


@functools.cache
def _declared(kind: type) -> dict[str, tuple[Any, bool]]:
    """Each field's type, and whether it must be given."""
    hints = get_type_hints(kind)
    return {
        one.name: (hints[one.name], one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)  # pyright: ignore[reportArgumentType]
    }


def _mismatch(expected: str, value: Any, where: str) -> ValueError:
    containers = {dict: "an object", list: "a list"}
    got = containers.get(type(value)) or repr(value)[:_MAX_SHOWN]
    return ValueError(f"{f'`{where}`' if where else 'it'} must be {expected}, got {got}")
