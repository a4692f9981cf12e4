"""What compiled functions need and Numba does not give: memory by its address, and random numbers.

A buffer is one array of 64-bit words, its *handle*: counts, settings, and the addresses of all
other arrays. A jitted call takes the handle's address and nothing else; nine arrays as arguments
would cost 15 µs in a training loop before anything is done.

Random numbers come from xoshiro256++ (Blackman and Vigna 2021, arXiv:1805.01407), whose four words
lie in the handle and are saved with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import MissingExtraError

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.core.caching import FunctionCache
    from numba.extending import intrinsic as _intrinsic
except ImportError as error:
    raise MissingExtraError(
        "hotloop.replay needs Numba, which is not installed: pip install 'hotloop[replay]'"
    ) from error


def jit(function: Callable[..., Any]) -> Any:
    """Compile what only compiled code calls; it becomes part of the entry points that do.

    The interpreter's lock stays held throughout: a call is over in microseconds, while a lock that
    is given away may come back only after the interpreter's switch interval, 5 ms.
    """
    njit: Any = numba.njit
    made = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return _without_literals(made)


def _without_literals(dispatcher: Any) -> Any:
    """Numba would compile a function anew for every constant that it is called with."""
    original = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return original(tuple(types.unliteral(kind) for kind in args), plain)

    dispatcher.get_call_template = get_call_template
    return dispatcher


class _Cache(FunctionCache):
    """Numba's cache on disk, but aware of all of this package.

    Numba looks at the one file that a function stands in; most of what an entry point consists of
    stands in others.
    """

    _sources = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    ).hexdigest()

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), self._sources)


def entry(function: Callable[..., Any]) -> Any:
    """Compile what Python calls, when it is first called, and keep it on disk."""
    njit: Any = numba.njit
    dispatcher = njit(error_model="numpy", no_cfunc_wrapper=True)(function)
    dispatcher._cache = _Cache(function)
    return _without_literals(dispatcher)


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
load_u64 = _loader(types.uint64, ir.IntType(64))
store_u64 = _storer(types.uint64, ir.IntType(64))
load_i32 = _loader(types.int32, ir.IntType(32))
store_i32 = _storer(types.int32, ir.IntType(32))
load_u8 = _loader(types.uint8, ir.IntType(8))
store_u8 = _storer(types.uint8, ir.IntType(8))


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


@jit
def same_bytes(one: int, other: int, size: int) -> bool:
    """Whether two pieces of memory hold the same."""
    return _memcmp(one, other, size) == 0


wide: Any = np.int64  # of an int32, or of a truth

# The words of the handle. Addresses of arrays and counts are int64, a few are float64.
CAPACITY, SIZE, ADDED, NUM_ENVS, N_STEP, GAMMA = range(6)
RANDOM = 6  # four words
FILLED, STALE = 10, 11  # counters that the user sees
SCRATCH, SCRATCH_SIZE = 12, 13  # int64 and float64 work space, see drawing.py
WEIGHTS = 14  # how a new entry gets its weight, see WEIGHT_*
RUNNING, RUNNING_IS_MEAN = 15, 16  # weight of the entries of a running episode
KIND, SHIFT_IS_MIN, SHIFT, REPLACEMENT, STRICT, STRATIFIED = range(17, 23)
EPOCH = 23
USUAL, ALPHA, EPSILON, PRIORITIES, WHOLE_BUFFER, SINGLE, BASE = range(118, 125)
# rows.py
ROWS, ROW_BYTES, STAGE_BYTES, PLAIN_BYTES = range(24, 28)
LINKED, OBS_BYTES, LINK, NEXT = range(28, 32)
REWARD, TERMINATED, TRUNCATED, DISCOUNT, RAW_REWARD, PREVIOUS = range(32, 38)  # offsets, -1: none
HEADS, OPEN, HEAD_WEIGHTS = range(38, 41)
ENV_STEPS, ENV_WAITING, ENV_PENDING = range(41, 44)
ENV_RETURN, ENV_FIRST, ENV_LAST = 44, 45, 49
FINALS, FINALS_FREE, FINALS_NUM_FREE = range(46, 49)
NUM_APART, APART = 50, 51  # see APART_* in rows.py
# tree.py
LEVELS = 60
SUMS, MINS, MAXS = 61, 76, 91  # an address a level; level 0 of SUMS: the leaves
# ranks.py
BLOCK_KEYS, BLOCK_SLOTS, BLOCK_COUNTS, BLOCK_ORDER, BLOCK_BEFORE = range(106, 111)
NUM_BLOCKS, FREE_BLOCKS, NUM_FREE_BLOCKS, MAX_BLOCKS, RANKS_STALE = range(111, 116)
RANK_ALPHA, RANK_TABLE = 116, 117
HANDLE_WORDS = 128

MAX_WEIGHT = 1e290  # beyond it, sums over all weights could be infinite

KIND_UNIFORM, KIND_TREE, KIND_RANKS = range(3)
WEIGHT_GIVEN, WEIGHT_MAX = range(2)
WEIGHT_EPISODE_RETURN, WEIGHT_RETURN_SO_FAR, WEIGHT_RETURN_TO_GO = range(2, 5)

_LOW_32 = np.uint64(0xFFFFFFFF)
_17, _23, _41, _45, _19 = (np.uint64(bits) for bits in (17, 23, 41, 45, 19))
_11, _32 = np.uint64(11), np.uint64(32)


@jit
def random_word(handle: int) -> int:
    """64 random bits."""
    base = handle + RANDOM * 8
    a, b = load_u64(base, 0), load_u64(base, 1)
    c, d = load_u64(base, 2), load_u64(base, 3)
    total = a + d
    word = ((total << _23) | (total >> _41)) + a
    shifted = b << _17
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << _45) | (d >> _19)
    store_u64(base, 0, a)
    store_u64(base, 1, b)
    store_u64(base, 2, c)
    store_u64(base, 3, d)
    return word


@jit
def random_unit(handle: int) -> float:
    """Uniform in [0, 1), 53 bits."""
    return np.float64(random_word(handle) >> _11) * (1.0 / 9007199254740992.0)


@jit
def random_below(handle: int, bound: int) -> int:
    """Uniform in 0 … bound − 1, exactly; `bound` below 2³² (Lemire 2019, arXiv:1805.10941)."""
    limit = np.uint64(bound)
    product = (random_word(handle) >> _32) * limit
    if (product & _LOW_32) < limit:
        threshold = (np.uint64(4294967296) - limit) % limit
        while (product & _LOW_32) < threshold:
            product = (random_word(handle) >> _32) * limit
    return wide(product >> _32)


@jit
def number_of(handle: int, slot: int) -> int:
    """The number of the entry that lies in a slot of the ring."""
    capacity, added = load_i64(handle, CAPACITY), load_i64(handle, ADDED)
    start = added - added % capacity
    return start + slot if start + slot < added else start + slot - capacity
