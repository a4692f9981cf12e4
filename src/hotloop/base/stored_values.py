"""Users' dataclasses as JSON: their fields, and the name to import their class by."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from hotloop.base import documents
from hotloop.base.importing import import_object, importable_name
from hotloop.errors import ConfigError

Value = TypeVar("Value")


def check_storable(value: Any, *, kind: str) -> None:
    """Raise `ConfigError` unless a dataclass is the same after its fields are stored as JSON."""
    is_same = False
    with contextlib.suppress(KeyError, NameError, TypeError, ValueError):
        fields = value_to_json(value)
        del fields["name"]
        is_same = documents.record(type(value), fields) == value
    if not is_same:
        raise ConfigError(
            f"the fields of the {kind} {value} must be numbers, texts, booleans, or tuples of "
            "these, with the declared types: files and workers receive them as JSON"
        )


def check_importable(value: Any, *, kind: str) -> None:
    """Raise `ConfigError` if other processes can't import the class of a value."""
    name = importable_name(type(value))
    if "<" in name:
        raise ConfigError(
            f"workers can't import the {kind} '{name}': define it at the top level of a module"
        )


def value_to_json(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and its class as `module:Class`."""
    return {"name": importable_name(type(value)), **json.loads(json.dumps(asdict(value)))}


def value_from_json(
    fields: Mapping[str, Any], parent: type[Value], names: Mapping[str, type[Value]], *, kind: str
) -> Value:
    """Return the dataclass whose fields and class name a file contains.

    This imports the class, so load only files that the user trusts, see `runs.trust`.

    Args:
        fields: the fields, and `name`, which is `module:Class` or in `names`.
        parent: the class that the dataclass derives from.
        names: classes of hotloop by their short names.
        kind: the kind of value for error messages, such as "head".

    Raises:
        UnknownNameError: there is no such class.
        ConfigError: importing it raised an exception, it does not derive from `parent`, or a field
            is missing, unknown or of the wrong type.
    """
    fields = dict(fields)
    name = str(fields.pop("name", None))
    value_class = names.get(name) or import_object(name, kind=kind, example=f"my_{kind}s:Best")
    if not (isinstance(value_class, type) and issubclass(value_class, parent)):
        raise ConfigError(f"'{name}' is no {kind}: it must be a subclass of `{parent.__name__}`")
    try:
        return documents.record(value_class, fields)
    except ValueError as error:
        raise ConfigError(f"{kind} '{name}': {error}") from error
