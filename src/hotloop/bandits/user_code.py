"""Keep the machine code of users' functions, under a key of all that it depends on.

Numba treats everything that a function refers to as a constant: other functions, numbers, arrays.
So the key holds the bytecode of a function and, recursively, the value of each global, closure
variable and default that it reads. A function that refers to anything else (an object, a module of
the user's own) has no key, and is compiled in each process.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from hotloop import cache
from hotloop.numba_tools import compiler_version, is_compiled, load_code, save_code

_SUFFIX = ".nbc"
# Modules whose attributes never change while a program runs.
_FIXED_MODULES = ("builtins", "cmath", "math", "numpy")


class _UnknownValueError(Exception):
    """A function refers to a value whose identity cannot be told from another's."""


def fingerprint(*functions: Callable[..., Any]) -> str | None:
    """Return a digest of functions and of all that they refer to.

    Args:
        functions: plain ones, or compiled by `numba.njit`.

    Returns:
        The same for functions that compile to the same code, in each process; None: unknown.
    """
    digest = hashlib.sha256()
    for part in (_own_sources(), *compiler_version(), sys.version):
        digest.update(f"{part}\n".encode())
    try:
        for part in _describe(functions, {}):
            digest.update(len(part).to_bytes(8, "little") + part)
    except _UnknownValueError:
        return None
    return digest.hexdigest()


@functools.cache
def _own_sources() -> str:
    """Return a digest of hotloop's own code that is compiled together with the user's."""
    folder = Path(__file__).parent
    paths = [folder.parent / "numba_tools.py", *sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _describe(value: Any, seen: dict[int, int]) -> Iterator[bytes]:
    """Yield the parts of a value that tell it from every other one.

    Args:
        seen: numbers of the functions that have been described, by `id`: they may be recursive.
    """
    kind: Any = type(value)
    yield kind.__qualname__.encode()
    if value is None or value is Ellipsis or kind in (bool, int, float, complex, str, bytes):
        yield repr(value).encode()
    elif kind in (tuple, frozenset):
        items = value if kind is tuple else sorted(value, key=repr)
        yield str(len(items)).encode()
        for item in items:
            yield from _describe(item, seen)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        layout = value.flags.c_contiguous, value.flags.f_contiguous
        yield f"{value.dtype.str} {value.shape} {layout}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, CodeType):
        yield from _describe_code(value, seen)
    elif is_compiled(value):
        function: Any = value
        for name, option in sorted(function.targetoptions.items()):
            yield name.encode()
            yield from _describe(option, seen)
        yield from _describe(function.py_func, seen)
    elif isinstance(value, FunctionType):
        yield from _describe_function(value, seen)
    elif isinstance(value, ModuleType):
        yield _known_module(value.__name__)
    elif isinstance(value, type | BuiltinFunctionType | np.ufunc):
        module = getattr(value, "__module__", None) or "numpy"  # a ufunc has none
        yield _known_module(module) + b"." + getattr(value, "__name__", "").encode()
    else:
        raise _UnknownValueError


def _describe_function(function: FunctionType, seen: dict[int, int]) -> Iterator[bytes]:
    if id(function) in seen:
        yield str(seen[id(function)]).encode()
        return
    seen[id(function)] = len(seen)
    code = function.__code__
    yield from _describe_code(code, seen)
    yield from _describe(function.__defaults__, seen)
    for cell in function.__closure__ or ():
        try:
            yield from _describe(cell.cell_contents, seen)
        except ValueError as error:  # it is still empty
            raise _UnknownValueError from error
    builtins = function.__globals__.get("__builtins__", {})
    known = vars(builtins) if isinstance(builtins, ModuleType) else builtins
    for name in sorted(_global_names(code)):
        value = function.__globals__.get(name, known.get(name, Ellipsis))
        yield name.encode()
        yield from _describe(value, seen)


def _describe_code(code: CodeType, seen: dict[int, int]) -> Iterator[bytes]:
    """Yield what code does; its file, lines and name change nothing."""
    yield code.co_code
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield repr((counts, names)).encode()
    yield getattr(code, "co_exceptiontable", b"")
    yield from _describe(code.co_consts, seen)


def _global_names(code: CodeType) -> set[str]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _known_module(name: str) -> bytes:
    if name.partition(".")[0] not in _FIXED_MODULES:
        raise _UnknownValueError
    return name.encode()


class CodeCache:
    """The machine code of one function on disk, as `Part` asks for it.

    A file that is missing or cannot be read means compiling; one that cannot be written changes
    nothing.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return what was compiled before; None: nothing was."""
        target_context.refresh()
        with contextlib.suppress(OSError):
            path = cache.find(self._key, _SUFFIX)
            return None if path is None else load_code(path.read_bytes(), target_context)
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled, if it does not depend on this process."""
        content = save_code(compiled)
        if content is None:
            return
        with contextlib.suppress(OSError), cache.to_be_made(self._key, _SUFFIX) as making:
            if making.found is None:
                making.keep(content)


def part_key(key: str, name: str) -> str:
    """Return the key of one of several parts that are made of the same functions."""
    return hashlib.sha256(f"{key} {name}".encode()).hexdigest()
