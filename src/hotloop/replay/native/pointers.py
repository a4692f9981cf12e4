"""Pointers and records in compiled code, created from addresses: C's `address[index]` and structs.

A class declares a record, and its annotations name the fields. The NumPy dtype of a record has the
same field names and stores each pointer as an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.base.numba_tools import RecordModel, intrinsic, register_default, types

# Annotations of pointers, by element type, and of arrays within a record.
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
    """A record whose fields may be pointers, which NumPy dtypes do not support."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """A void dtype of the same size in bytes."""
        return np.dtype((np.void, self.size))


register_default(_Struct)(RecordModel)


def _view(kind: Any) -> Any:
    """Return a compiled function that converts an address into a pointer or record."""

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


def _offset_pointer(typingctx: Any, pointer: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), codegen


address_of = intrinsic(_address_of)  # converts a pointer into an address
advance = intrinsic(_offset_pointer)  # C's `pointer + count`


def record(fields: type) -> tuple[np.dtype[Any], Callable[[int], Any]]:
    """Return a record's NumPy dtype, and a compiled function from an address to the record."""
    kinds = {name: _KINDS[kind] for name, kind in fields.__annotations__.items()}
    dtype = np.dtype([(name, *_numpy_dtype(kind)) for name, kind in kinds.items()])
    fields_at = [
        (name, {"type": kind, "offset": dtype.fields[name][1]})  # type: ignore[index]
        for name, kind in kinds.items()
    ]
    return dtype, _view(_Struct(fields_at, dtype.itemsize, aligned=True))


def _numpy_dtype(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, types.NestedArray):
        return str(kind.dtype), kind.shape
    return ("float64" if kind == types.float64 else "int64",)
