"""Additions to Numba: a safe disk cache that notices every change, memory access by address.

Use `jit` for functions that only compiled code calls, `entry` for functions that Python calls, and
`CompiledFunction` for functions that compiled code calls through a pointer.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base import cache
from hotloop.base.streams import notify
from hotloop.errors import requires_extra

with requires_extra("hotloop.replay and hotloop.bandits need Numba", "replay,bandit"):
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils, config
    from numba.core.ccallback import CFunc
    from numba.core.compiler import CompileResult
    from numba.core.datamodel.models import RecordModel as RecordModel
    from numba.core.datamodel.registry import register_default as register_default
    from numba.core.errors import NumbaError as NumbaError  # raised by users' functions
    from numba.core.registry import CPUDispatcher, cpu_target
    from numba.extending import intrinsic as _intrinsic

# Numba reads `.numba_config.yaml` of the working directory, which may name a directory of pickled
# code. Environment variables set the same.
config._config_fname = os.devnull
config.reload_config()

# Users' functions are compiled with these, without Numba's type hints, which are too narrow.
njit: Any = numba.njit
carray: Any = getattr(numba, "carray")  # noqa: B009


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled code calls. It becomes a part of its callers."""
    return _jit(function)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function as `jit` does, and inline it into all callers.

    By default LLVM does not inline long functions, and a loop with a call is not vectorized: Philox
    takes 11 ns per lane as a call and 2 ns inlined.
    """
    return _jit(function, forceinline=True)


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _without_literals(njit(error_model="numpy", **wrappers, **options)(function))


def _without_literals(dispatcher: Any) -> Any:
    """Make a dispatcher compile once per type, instead of once per literal argument."""
    original = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return original(tuple(types.unliteral(kind) for kind in args), plain)

    dispatcher.get_call_template = get_call_template
    return dispatcher


def entry(function: Callable[..., Any], *, releases_lock: bool = False) -> Any:
    """Compile a function that Python calls, at its first call, and cache the code on disk.

    Args:
        function: Takes and returns numbers.
        releases_lock: Whether to release the GIL during a call. Calls of microseconds should keep
            the GIL: waiting to get it back can take 5 ms, the interpreter's switch interval.
    """
    dispatcher = njit(error_model="numpy", no_cfunc_wrapper=True, nogil=releases_lock)(function)
    dispatcher._cache = _package_cache(function)
    return _without_literals(dispatcher)


_SUFFIX = ".nbc"


def compiler_version() -> tuple[str, ...]:
    """Return what machine code depends on besides its source: versions, processor, settings."""
    context: Any = cpu_target.target_context
    target = context.codegen().magic_tuple()
    settings = [getattr(config, name) for name in ("OPT", "BOUNDSCHECK")]
    return numba.__version__, np.__version__, *map(str, (*target, *settings))


def is_compiled(function: Any) -> bool:
    """Return whether `numba.njit` created the function."""
    return isinstance(function, CPUDispatcher)


class CodeCache:
    """The machine code of one function in hotloop's cache, with the methods of Numba's caches.

    Numba's own cache unpickles the files that it finds beside the sources, whoever wrote them.
    hotloop loads only bytes that it has hashed, from a directory that is private to this user. A
    missing or unreadable file causes a compilation. A failed write has no effect.

    Args:
        *content: Texts that identify the function and all that it refers to.
    """

    def __init__(self, *content: str) -> None:
        self._content = content

    def _key(self, signature: Any) -> str:
        parts = *self._content, str(signature), *compiler_version(), sys.version
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the cached code, or None if there is none."""
        target_context.refresh()
        with contextlib.suppress(OSError):
            content = cache.find(self._key(signature), _SUFFIX)
            if content is not None:
                return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store compiled code, unless it contains addresses of this process."""
        if compiled.lifted or compiled.library.has_dynamic_globals:
            return
        content = pickle.dumps(compiled._reduce(), protocol=4)
        _warn_unusable_cache()
        key = self._key(signature)
        with contextlib.suppress(OSError), cache.creating(key, _SUFFIX) as file:
            # Another process may have compiled the same at the same time.
            if file.existing is None and cache.find(key, _SUFFIX) is None:
                file.save(content)


@functools.cache
def _warn_unusable_cache() -> None:
    """Print once why compiled code can't be stored, if so."""
    reason = cache.unusable_reason()
    if reason:
        notify(f"warning: compiled functions are compiled again in each process: {reason}")


def _package_cache(function: Callable[..., Any]) -> CodeCache:
    """Return the cache of a function of hotloop, with a key from all files of its package."""
    # Most of an entry point is in other files. They are read at import, since they may have changed
    # by the time the function is compiled.
    code = function.__code__
    place = function.__module__, function.__qualname__, str(code.co_firstlineno)
    return CodeCache(*place, _sources(Path(code.co_filename).parent))


@functools.cache
def _sources(package: Path) -> str:
    paths = [Path(__file__), *sorted(package.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


_PACKAGE_CACHE = object()


class CompiledFunction:
    """A function `f(int64, …) -> None` that compiled code calls by its address.

    It is compiled when its address is first needed, and cached on disk.

    Attributes:
        name: The function's name.
    """

    def __init__(self, function: Callable[..., None], *, cache: Any = _PACKAGE_CACHE) -> None:
        """Args:
        function: The Python function.
        cache: The `CodeCache` of its machine code. None disables caching. By default the function
            is one of hotloop, which depends on its package alone.
        """
        self.name = function.__name__
        self._function = function
        self._cache = _package_cache(function) if cache is _PACKAGE_CACHE else cache
        self._compiled: Any = None

    def _compile(self) -> Any:
        code: Any = self._function.__code__
        signature = types.void(*[types.int64] * code.co_argcount)
        # This is what `numba.cfunc` does, which does not accept a custom cache.
        compiled: Any = CFunc(
            self._function, (signature.args, signature.return_type), {}, _CFUNC_OPTIONS
        )
        if self._cache is not None:
            compiled._cache = self._cache
        compiled.compile()
        return compiled

    @property
    def address(self) -> int:
        """The address of its machine code."""
        with _COMPILE_LOCK:
            if self._compiled is None:
                self._compiled = self._compile()
            return self._compiled.address


_CFUNC_OPTIONS = {"error_model": "numpy", "nopython": True}
_COMPILE_LOCK = threading.Lock()


# Callers of an intrinsic omit its first parameter, which is for Numba's compiler.
intrinsic: Any = _intrinsic


def _loader(kind: Any, word: Any) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], word.as_pointer())
            return builder.load(builder.gep(pointer, [arguments[1]]))

        return kind(types.int64, types.int64), codegen

    return load


def _storer(kind: Any, word: Any) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], word.as_pointer())
            builder.store(arguments[2], builder.gep(pointer, [arguments[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), codegen

    return store


# `load_x(address, index)` and `store_x(address, index, value)`, as C's `address[index]`.
load_f64 = _loader(types.float64, ir.DoubleType())
store_f64 = _storer(types.float64, ir.DoubleType())
load_f32 = _loader(types.float32, ir.FloatType())
store_f32 = _storer(types.float32, ir.FloatType())
load_i64 = _loader(types.int64, ir.IntType(64))
store_i64 = _storer(types.int64, ir.IntType(64))
load_i32 = _loader(types.int32, ir.IntType(32))
store_i32 = _storer(types.int32, ir.IntType(32))
load_u32 = _loader(types.uint32, ir.IntType(32))
store_u32 = _storer(types.uint32, ir.IntType(32))


def _copier(copy: Any) -> Any:
    @intrinsic
    def copier(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
            copy(builder, target, source, arguments[2], 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return copier


# `copy_bytes(target, source, size)`, from one address to another; `move_bytes` if they may overlap.
copy_bytes = _copier(cgutils.raw_memcpy)
move_bytes = _copier(cgutils.raw_memmove)


@intrinsic
def _memcmp(typingctx: Any, one: Any, other: Any, size: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.IntType(32), [byte, byte, ir.IntType(64)])
        function = cgutils.get_or_insert_function(builder.module, kind, "memcmp")
        one, other = (builder.inttoptr(address, byte) for address in arguments[:2])
        return builder.call(function, [one, other, arguments[2]])

    return types.int32(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line of `address`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, everywhere, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte), read, everywhere, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """Convert an address to a pointer for `numba.carray`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def call_function(typingctx: Any, address: Any, one: Any, other: Any) -> Any:
    """Call the `CompiledFunction` with two arguments at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word, word])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _fma(kind: Any) -> Any:
    @intrinsic
    def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return kind(kind, kind, kind), codegen

    return fma


def _reinterpreter(source: Any, kind: Any, word: Any) -> Any:
    @intrinsic
    def reinterpret(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], word)

        return kind(source), codegen

    return reinterpret


# `fma_x(a, b, c)`: a·b + c, rounded once, on every machine.
fma_f32, fma_f64 = _fma(types.float32), _fma(types.float64)
# Convert between a number and its bits.
f32_of_bits = _reinterpreter(types.uint32, types.float32, ir.FloatType())
bits_of_f32 = _reinterpreter(types.float32, types.uint32, ir.IntType(32))
f64_of_bits = _reinterpreter(types.uint64, types.float64, ir.DoubleType())
bits_of_f64 = _reinterpreter(types.float64, types.uint64, ir.IntType(64))


@intrinsic
def max_f32(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the larger of two float32 values, neither of them NaN.

    LLVM turns a comparison that updates a value in place into a masked store, which takes about 20
    cycles on AMD processors. Its maximum intrinsic avoids that.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maxnum.f32")
        return builder.call(function, arguments, fastmath=("nnan",))

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def sqrt_f32(typingctx: Any, value: Any) -> Any:
    """Return √x in float32, correctly rounded. `math.sqrt` and `np.sqrt` prevent vectorization."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.sqrt", [ir.FloatType()])
        return builder.call(function, arguments)

    return types.float32(types.float32), codegen


@jit
def same_bytes(a: int, b: int, size: int) -> bool:
    """Return whether two memory blocks have the same bytes."""
    return _memcmp(a, b, size) == 0
