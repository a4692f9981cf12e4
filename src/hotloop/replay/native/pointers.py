"""Pointers and records in compiled code, made from addresses: C's `address[index]` and structs.

A record is declared as a class whose annotations name its fields. NumPy has a dtype of the same
names, where a pointer is an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.numba_tools import RecordModel, intrinsic, register_default, types

# Annotations of pointers, by what lies there, and of arrays within a record.
Bytes = Ints = Ints32 = Levels = State = list[int]
Floats = Floats32 = list[float]

_KINDS: dict[str, Any] = {
    "int": types.int64,
    "float": types.float64,
    "Bytes": types.CPointer(types.uint8),
    "Ints": types.CPointer(types.int64),
    "Ints32": types.CPointer(types.int32),
    "Floats": types.CPointer(types.float64),
    "Floats32": types.CPointer(types.float32),
    "Levels": types.NestedArray(types.int64, (15,)),
    "State": types.NestedArray(types.uint64, (4,)),
}


class _Struct(types.Record):
    """A record whose fields may be pointers, which no NumPy dtype describes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As many bytes."""
        return np.dtype((np.void, self.size))


register_default(_Struct)(RecordModel)


def _view(kind: Any) -> Any:
    """A compiled function from an address to the pointer or record there."""

    @intrinsic
    def view(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), codegen

    return view


u8_at, i32_at, i64_at = (_view(_KINDS[name]) for name in ("Bytes", "Ints32", "Ints"))
f32_at, f64_at = (_view(_KINDS[name]) for name in ("Floats32", "Floats"))


def _address_of(typingctx: Any, pointer: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], context.get_value_type(types.int64))

    return types.int64(pointer), codegen


def _moved(typingctx: Any, pointer: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), codegen


address_of = intrinsic(_address_of)  # of what a pointer leads to
moved = intrinsic(_moved)  # `moved(pointer, count)` leads `count` places on


def record(fields: type) -> tuple[np.dtype[Any], Callable[[int], Any]]:
    """A record's dtype, and the compiled function from an address to the record there."""
    kinds = {name: _KINDS[kind] for name, kind in fields.__annotations__.items()}
    dtype = np.dtype([(name, *_in_numpy(kind)) for name, kind in kinds.items()])
    places = [
        (name, {"type": kind, "offset": dtype.fields[name][1]})  # type: ignore[index]
        for name, kind in kinds.items()
    ]
    return dtype, _view(_Struct(places, dtype.itemsize, aligned=True))


def _in_numpy(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, types.NestedArray):
        return str(kind.dtype), kind.shape
    return ("float64" if kind == types.float64 else "int64",)
