"""Keys of users' functions in the disk cache of machine code, from all that they depend on.

Numba treats everything that a function refers to as a constant: other functions, numbers, arrays.
So a key depends on the function's module and bytecode and, recursively, on the value of each
global, closure variable and default that it reads. A function that refers to anything else, such as
an object or a module of the user, has no key. It is compiled in each process.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from hotloop.base import numba_tools
from hotloop.base.numba_tools import is_compiled

# Modules whose attributes never change while a program runs.
_FIXED_MODULES = ("builtins", "cmath", "math", "numpy")


class _UnknownValueError(Exception):
    """A function refers to a value that has no digest."""


def fingerprint(*functions: Callable[..., Any]) -> str | None:
    """Return a digest of functions and of all that they refer to.

    Args:
        functions: Python functions, or functions compiled by `numba.njit`.

    Returns:
        A digest that is equal in all processes for functions that one compiler compiles to the same
        code. None if they refer to an unknown value.
    """
    digest = hashlib.sha256(_package_sources().encode())
    try:
        for part in _describe(functions, {}):
            digest.update(len(part).to_bytes(8, "little") + part)
    except _UnknownValueError:
        return None
    return digest.hexdigest()


@functools.cache
def _package_sources() -> str:
    """Return a digest of hotloop's code, which is compiled together with users' functions."""
    folder = Path(__file__).parent
    paths = [Path(numba_tools.__file__), *sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _describe(value: Any, visited: dict[int, int]) -> Iterator[bytes]:
    """Yield bytes that identify a value. `visited` numbers functions, which may be recursive."""
    kind: Any = type(value)
    yield kind.__qualname__.encode()
    if value is None or value is Ellipsis or kind in (bool, int, float, complex, str, bytes):
        yield repr(value).encode()
    elif kind in (tuple, frozenset):
        items = value if kind is tuple else sorted(value, key=repr)
        yield str(len(items)).encode()
        for item in items:
            yield from _describe(item, visited)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        layout = value.flags.c_contiguous, value.flags.f_contiguous
        yield f"{value.dtype.str} {value.shape} {layout}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, CodeType):
        yield from _describe_code(value, visited)
    elif is_compiled(value):
        function: Any = value
        for name, option in sorted(function.targetoptions.items()):
            yield name.encode()
            yield from _describe(option, visited)
        yield from _describe(function.py_func, visited)
    elif isinstance(value, FunctionType):
        yield from _describe_function(value, visited)
    elif isinstance(value, ModuleType):
        yield _encode_module(value.__name__)
    elif isinstance(value, type | BuiltinFunctionType | np.ufunc):
        module = getattr(value, "__module__", None) or "numpy"  # a ufunc has no module
        yield _encode_module(module) + b"." + getattr(value, "__name__", "").encode()
    else:
        raise _UnknownValueError


def _describe_function(function: FunctionType, visited: dict[int, int]) -> Iterator[bytes]:
    if id(function) in visited:
        yield str(visited[id(function)]).encode()
        return
    visited[id(function)] = len(visited)
    # Numba imports this module when it loads the code.
    module = function.__globals__.get("__name__")
    if module not in sys.modules:
        raise _UnknownValueError
    yield module.encode()
    code = function.__code__
    yield from _describe_code(code, visited)
    yield from _describe(function.__defaults__, visited)
    for cell in function.__closure__ or ():
        try:
            yield from _describe(cell.cell_contents, visited)
        except ValueError as error:  # the cell of a closure variable is still empty
            raise _UnknownValueError from error
    builtins = function.__globals__.get("__builtins__", {})
    builtin_values = vars(builtins) if isinstance(builtins, ModuleType) else builtins
    for name in sorted(_global_names(code)):
        value = function.__globals__.get(name, builtin_values.get(name, Ellipsis))
        yield name.encode()
        yield from _describe(value, visited)


def _describe_code(code: CodeType, visited: dict[int, int]) -> Iterator[bytes]:
    """Yield bytes that identify what code does, independent of its file, lines and name."""
    yield code.co_code
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield repr((counts, names)).encode()
    yield getattr(code, "co_exceptiontable", b"")
    yield from _describe(code.co_consts, visited)


def _global_names(code: CodeType) -> set[str]:
    names = {item.argval for item in dis.get_instructions(code) if item.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _encode_module(name: str) -> bytes:
    if name.partition(".")[0] not in _FIXED_MODULES:
        raise _UnknownValueError
    return name.encode()


def part_key(key: str, name: str) -> str:
    """Return the key of one of several parts made of the same functions."""
    return hashlib.sha256(f"{key} {name}".encode()).hexdigest()
