"""Tools beside Numba's own: a cache on disk that sees every change, and memory by its address.

`jit` is for what only compiled code calls, `entry` for what Python calls, `part` for what compiled
code calls through a pointer.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import MissingExtraError

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils, config
    from numba.core.caching import FunctionCache
    from numba.core.ccallback import CFunc
    from numba.core.compiler import CompileResult
    from numba.core.datamodel.models import RecordModel as RecordModel
    from numba.core.datamodel.registry import register_default as register_default
    from numba.core.errors import NumbaError as NumbaError  # what a user's function can meet
    from numba.core.registry import CPUDispatcher, cpu_target
    from numba.extending import intrinsic as _intrinsic
except ImportError as error:
    raise MissingExtraError(
        "hotloop.replay and hotloop.bandits need Numba, which is not installed: "
        "pip install 'hotloop[replay]' or 'hotloop[bandit]'"
    ) from error


# For what users wrote; their types say less than they can do.
njit: Any = numba.njit
carray: Any = getattr(numba, "carray")  # noqa: B009


def jit(function: Callable[..., Any]) -> Any:
    """Compile what only compiled code calls; it becomes part of the entry points that do."""
    return _jit(function)


def inline(function: Callable[..., Any]) -> Any:
    """As `jit`, and written out wherever it is called: what a loop over lanes is made of.

    LLVM leaves a function that it finds too long as a call, and such a loop has no vectors: Philox
    takes 11 ns a lane as a call, 2 ns written out.
    """
    return _jit(function, forceinline=True)


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _without_literals(njit(error_model="numpy", **wrappers, **options)(function))


def _without_literals(dispatcher: Any) -> Any:
    """Numba would compile a function anew for every constant that it is called with."""
    original = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return original(tuple(types.unliteral(kind) for kind in args), plain)

    dispatcher.get_call_template = get_call_template
    return dispatcher


@functools.cache
def _sources(package: Path) -> str:
    paths = [Path(__file__), *sorted(package.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


class _Cache(FunctionCache):
    """Numba's cache on disk, but aware of all of the function's package.

    Numba looks at the one file that a function stands in; most of what an entry point consists of
    stands in others.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Now, as the package is imported: its files may have changed when a function is compiled.
        self._sources = _sources(Path(function.__code__.co_filename).parent)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), self._sources)


def entry(function: Callable[..., Any], *, releases_lock: bool = False) -> Any:
    """Compile what Python calls, when it is first called, and keep it on disk.

    Args:
        function: takes and gives numbers.
        releases_lock: let other threads of Python run meanwhile. Where a call is over in
            microseconds it is better held: who gives it away may get it back only after the
            interpreter's switch interval, 5 ms.
    """
    dispatcher = njit(error_model="numpy", no_cfunc_wrapper=True, nogil=releases_lock)(function)
    dispatcher._cache = _Cache(function)
    return _without_literals(dispatcher)


OWN_CACHE = object()


def compiler_version() -> tuple[str, ...]:
    """Return all that machine code depends on beside its source: versions, processor, settings."""
    context: Any = cpu_target.target_context
    target = context.codegen().magic_tuple()
    settings = [getattr(config, name) for name in ("OPT", "BOUNDSCHECK")]
    return numba.__version__, np.__version__, *map(str, (*target, *settings))


def is_compiled(function: Any) -> bool:
    """Return whether `numba.njit` has made it."""
    return isinstance(function, CPUDispatcher)


def save_code(compiled: Any) -> bytes | None:
    """Return compiled code as bytes; None: it holds addresses of this process."""
    is_movable = not compiled.lifted and not compiled.library.has_dynamic_globals
    return pickle.dumps(compiled._reduce(), protocol=4) if is_movable else None


def load_code(content: bytes, target_context: Any) -> Any:
    """Return code that `save_code` has given."""
    return CompileResult._rebuild(target_context, *pickle.loads(content))


class Part:
    """What compiled code calls by its address: `function(int64, …)` that gives nothing.

    Compiled when its address is first asked for, and kept on disk.

    Attributes:
        name: the function's.
    """

    def __init__(self, function: Callable[..., None], *, cache: Any = OWN_CACHE) -> None:
        """Args:
        function: what is compiled.
        cache: where machine code is kept, with Numba's methods `load_overload` and
            `save_overload`; None: nowhere; by default with hotloop's own.
        """
        self.name = function.__name__
        self._function = function
        self._cache = _Cache(function) if cache is OWN_CACHE else cache
        self._compiled: Any = None

    def _compile(self) -> Any:
        code: Any = self._function.__code__
        signature = types.void(*[types.int64] * code.co_argcount)
        # Numba makes such an object by `numba.cfunc`, which takes no cache of ours.
        compiled: Any = CFunc(self._function, (signature.args, signature.return_type), {}, _PART)
        if self._cache is not None:
            compiled._cache = self._cache
        compiled.compile()
        return compiled

    @property
    def address(self) -> int:
        """Where its machine code begins."""
        with _COMPILING:
            if self._compiled is None:
                self._compiled = self._compile()
            return self._compiled.address


_PART = {"error_model": "numpy", "nopython": True}
_COMPILING = threading.Lock()


# Numba leaves out the first parameter of an intrinsic, which is for its compiler.
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
    """Have the cache line that holds `address` on its way."""

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
    """An address as `numba.carray` takes it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def call_part(typingctx: Any, address: Any, one: Any, other: Any) -> Any:
    """Call the `Part` of two arguments that begins at `address`."""

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


# `fma_x(a, b, c)`: a·b + c, rounded once, whatever the machine.
fma_f32, fma_f64 = _fma(types.float32), _fma(types.float64)
# The number with these bits, and the bits of a number.
f32_of_bits = _reinterpreter(types.uint32, types.float32, ir.FloatType())
bits_of_f32 = _reinterpreter(types.float32, types.uint32, ir.IntType(32))
f64_of_bits = _reinterpreter(types.uint64, types.float64, ir.DoubleType())
bits_of_f64 = _reinterpreter(types.float64, types.uint64, ir.IntType(64))


@intrinsic
def max_f32(typingctx: Any, a: Any, b: Any) -> Any:
    """The larger of two float32, neither of them NaN.

    A comparison whose result goes back to where it came from becomes a masked store, which takes
    AMD's processors some twenty cycles; LLVM's own maximum does not.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maxnum.f32")
        return builder.call(function, arguments, fastmath=("nnan",))

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def sqrt_f32(typingctx: Any, value: Any) -> Any:
    """√x in float32, correctly rounded; NumPy's and Python's give a loop no vectors."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.sqrt", [ir.FloatType()])
        return builder.call(function, arguments)

    return types.float32(types.float32), codegen


@jit
def same_bytes(one: int, other: int, size: int) -> bool:
    """Whether two pieces of memory hold the same."""
    return _memcmp(one, other, size) == 0
