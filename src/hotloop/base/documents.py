"""JSON documents: their checksums, and checks of their fields against dataclasses."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hotloop.base.files import LARGE_BYTES, check_memory, read_regular

Record = TypeVar("Record")

_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    dict: ("an object", (dict,)),
    list: ("a list", (list,)),
}
_DIGEST_LENGTH = 64
_INTEGER_LIMIT = 2**63
_MAX_PRINTED = 60


def is_json_object(value: Any) -> bool:
    """Return whether a value is a dict that is the same after it is written as JSON and read."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value)) == value
    except (TypeError, ValueError, RecursionError):
        return False


def json_copy(value: Any, where: str | None = None) -> Any:
    """Return a copy of a JSON object, which later changes of the object do not reach.

    Raises:
        ValueError: JSON can't hold a value, or would return another one, such as a list for a
            tuple. The message has its path.
    """
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                place = "its" if where is None else f"`{where}`'s"
                raise ValueError(f"{place} key {name!r} is not a text")
        prefix = "" if where is None else f"{where}."
        return {name: json_copy(item, f"{prefix}{name}") for name, item in value.items()}
    if where is not None:
        if isinstance(value, list):
            return [json_copy(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
    raise ValueError(f"{'it' if where is None else f'`{where}`'} is {value!r}")


def finite(value: Any) -> Any:
    """Return a JSON value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text has, or None if it has none."""
    try:
        value = parse(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_large(text: bytes, path: Path) -> Any:
    """Return the value of a JSON text from a file, if its objects fit into the free memory.

    Raises:
        OSError: They do not fit.
        ValueError: The text is not JSON, or is nested too deeply.
    """
    # Empty objects and lists take the most memory for their text, at least 56 bytes for two.
    num_containers = text.count(b"{") + text.count(b"[") if len(text) > LARGE_BYTES // 64 else 0
    check_memory(8 * len(text) + 56 * num_containers, path)
    return parse(text)


def read(path: Path) -> Any:
    """Return the value in a JSON file, without the digest that `sealed` has added.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        ValueError: The file is not JSON, or its content does not match its digest.
    """
    value = parse(read_regular(path))
    if (
        isinstance(value, dict)
        and _has_digest(value)
        and value.pop("digest", None) != digest(value)
    ):
        raise ValueError("its content does not match its digest")
    return value


def _has_digest(document: Mapping[str, Any]) -> bool:
    """Return whether a document has a digest, perhaps under a damaged name.

    Documents of older versions have none.
    """
    last, text = [*document.items()][-1] if document else ("", None)
    is_nameless = isinstance(text, str) and len(text) == _DIGEST_LENGTH and last != "signature"
    return "digest" in document or is_nameless


def digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document, without its field `digest`."""
    content = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its digest, which `read` checks."""
    # A reader digests the parsed document, in which tuples are lists and keys are texts.
    return {**document, "digest": digest(json.loads(json.dumps(document)))}


def record(
    kind: type[Record], value: Any, *, where: str = "", ignore_unknown: bool = False
) -> Record:
    """Create a dataclass from a JSON object.

    Supported field types are bool, int (64 bits), float, str, dict and list, optional ones
    (`| None`), sequences, tuples, mappings and dataclasses of these, and `Any`.

    Args:
        kind: The dataclass.
        value: The JSON object. Fields with a default may be missing.
        where: The path of the object within the document, for error messages.
        ignore_unknown: Whether to ignore undeclared fields instead of raising an error.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type. The message has its path.
    """
    if not isinstance(value, dict):
        raise _mismatch("an object", value, where)
    declared = _declared(kind)
    prefix = f"{where}." if where else ""
    unknown = [] if ignore_unknown else sorted(value.keys() - declared.keys())
    if unknown:
        raise ValueError(f"`{prefix}{unknown[0]}` is not known")
    arguments: dict[str, Any] = {}
    for name, (hint, is_required) in declared.items():
        if name in value:
            arguments[name] = _as_declared(hint, value[name], f"{prefix}{name}")
        elif is_required:
            raise ValueError(f"`{prefix}{name}` is missing")
    return kind(**arguments)


def _as_declared(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint in _PLAIN:  # the common case: `get_origin` and `get_args` would cost 2 µs
        return _as_plain(hint, value, where)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (hint,) = (inner_hint for inner_hint in inner if inner_hint is not NoneType)
        return _as_declared(hint, value, where)
    if is_dataclass(hint):
        return record(hint, value, where=where)  # pyright: ignore[reportArgumentType]
    if origin in (list, tuple, Sequence):
        return _as_sequence(origin, inner, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _mismatch("an object", value, where)
        return {
            name: _as_declared(inner[1], item, f"{where}.{name}") for name, item in value.items()
        }
    return _as_plain(hint, value, where)


def _as_plain(hint: Any, value: Any, where: str) -> Any:
    expected, kinds = _PLAIN[hint]
    is_wrong_bool = isinstance(value, bool) and hint is not bool
    if is_wrong_bool or not isinstance(value, kinds):
        raise _mismatch(expected, value, where)
    if type(value) is int and abs(value) >= _INTEGER_LIMIT:
        raise _mismatch(f"{expected} of 64 bits", value, where)
    return value


def _as_sequence(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _mismatch("a list", value, where)
    if inner[0] is Any and origin is not tuple:  # saves 1 s for half a million episodes
        return value
    hints = [inner[0]] * len(value)
    if origin is tuple and inner[-1] is not Ellipsis:
        hints = list(inner)
        if len(hints) != len(value):
            raise _mismatch(f"a list of {len(hints)}", value, where)
    values = [
        _as_declared(h, x, f"{where}[{i}]")
        for i, (h, x) in enumerate(zip(hints, value, strict=True))
    ]
    return tuple(values) if origin is tuple else values


@functools.cache
def _declared(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether the field is required."""
    hints = get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)  # pyright: ignore[reportArgumentType]
    }


def _mismatch(expected: str, value: Any, where: str) -> ValueError:
    containers = {dict: "an object", list: "a list"}
    got = containers.get(type(value)) or repr(value)[:_MAX_PRINTED]
    return ValueError(f"{f'`{where}`' if where else 'it'} must be {expected}, got {got}")
