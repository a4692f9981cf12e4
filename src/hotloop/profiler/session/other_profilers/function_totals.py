"""Times by function and caller: files of cProfile, and of profiling.sampling with `--pstats`.

They are written with `marshal`, whose own reader may crash on damaged files. This one reads the few
types that such a file has. Stacks are estimated: the time of a function is divided among its
callers in proportion to the time of their calls.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from hotloop.profiler.session import Frame
from hotloop.profiler.session.other_profilers.stacks import MAIN, OtherProfile, StackSample

_REFERENCED = 0x80  # a flag: later values refer to this one
_MAX_DEPTH = 32
_MAX_ITEMS = 8  # of a tuple: a function has 3, its totals 5
_MAX_DIGITS = 5  # of an integer, 15 bits each
# A smaller share of the time is not divided among further callers.
_MIN_SHARE = 2e-4
_INTERVAL_NS = 1_000_000
_SAMPLED_MARK = ("__sampled__",)


class _Totals(NamedTuple):
    """Totals of a function.

    Attributes:
        own_s: seconds in the function itself.
        callers: weights of its callers.
        uncalled: weight of its calls without a caller.
    """

    own_s: float
    callers: dict[Frame, float]
    uncalled: float


def matches(content: bytes) -> bool:
    """Return whether a file starts with a dict of tuples, as `marshal` writes them."""
    start = bytes(byte & ~_REFERENCED for byte in content[:2])
    return start[:1] == b"{" and start[1:] in (b"(", b")", b"0")


def read(content: bytes) -> OtherProfile:
    """Return the profile in a file.

    Raises:
        ValueError, TypeError, KeyError: The file is damaged.
    """
    table = _Marshal(content).value()
    if not isinstance(table, dict):
        raise ValueError("it has no table of functions")
    is_sampled = table.pop(_SAMPLED_MARK, False)
    functions = {_place(key): _totals(value) for key, value in table.items()}
    lines = "" if is_sampled else ", and lines are those of functions"
    return OtherProfile(
        "profiling.sampling" if is_sampled else "cProfile",
        _stacks(functions),
        [
            "it has times of functions, whose callers are estimated from the times of calls; "
            f"spans, threads, processes, memory and waits are unknown{lines}"
        ],
        _INTERVAL_NS,
        has_first_lines=not is_sampled,
    )


def _place(key: tuple[Any, ...]) -> Frame:
    file, line, function = key
    return Frame(str(function), "" if file == "~" else str(file), int(line))


def _totals(value: tuple[Any, ...]) -> _Totals:
    _, num_samples, own_s, cumulative_s, callers = value
    # For each caller, cProfile stores calls and own and cumulative seconds, a sampler only samples.
    is_traced = any(isinstance(numbers, tuple) for numbers in callers.values())
    whole = _number(cumulative_s if is_traced else num_samples)
    weights = {
        _place(key): _number(numbers[3] if isinstance(numbers, tuple) else numbers)
        for key, numbers in callers.items()
    }
    return _Totals(_number(own_s), weights, max(0.0, whole - sum(weights.values())))


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value < 2**30:
        raise ValueError(f"a time must be a number of 0 or more, got {value!r}")
    return float(value)


def _stacks(functions: dict[Frame, _Totals]) -> list[StackSample]:
    """Return estimated stacks, from the own times of functions and the weights of their callers."""
    smallest = _MIN_SHARE * sum(totals.own_s for totals in functions.values())
    known = {
        function: {x: weight for x, weight in totals.callers.items() if x in functions and weight}
        for function, totals in functions.items()
    }
    ranked = {
        function: sorted(callers.items(), key=lambda item: -item[1])
        for function, callers in known.items()
    }
    sums = {function: sum(callers.values()) for function, callers in known.items()}
    samples: list[StackSample] = []
    for function, totals in functions.items():
        pending: list[tuple[tuple[Frame, ...], float]] = [((function,), totals.own_s)]
        while pending:
            stack, seconds = pending.pop()
            callers = known[stack[0]]
            repeated = [callers[x] for x in {*stack} if x in callers]
            rest_s = seconds
            if len(repeated) < len(callers) and seconds > smallest and len(stack) < _MAX_DEPTH:
                uncalled = functions[stack[0]].uncalled
                total = uncalled + sums[stack[0]] - sum(repeated)
                for caller, weight in ranked[stack[0]]:
                    if seconds * weight <= smallest * total:
                        break  # so are all further callers
                    if caller not in stack:
                        pending.append(((caller, *stack), seconds * weight / total))
                        rest_s -= pending[-1][1]
            samples.append(StackSample(MAIN, "", stack, round(max(0.0, rest_s) * 1e9)))
    return samples


class _Marshal:
    """A reader of numbers, texts, tuples and dicts in the format of `marshal`."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._values: list[Any] = []

    def value(self, depth: int = 0) -> Any:
        """Return the next value. The end of a dict is `_END`."""
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        code = self._bytes(1)[0]
        kind = chr(code & ~_REFERENCED)
        if kind == "r":
            value = self._values[self._size()]
            # A value that contains itself many times would take forever to hash or print.
            if not _is_flat(value):
                raise ValueError("it refers to a container of others")
            return value
        # A container is numbered before its items.
        number = len(self._values)
        if code & _REFERENCED:
            self._values.append(None)
        value = self._content_of(kind, depth)
        if code & _REFERENCED:
            self._values[number] = value
        return value

    def _content_of(self, kind: str, depth: int) -> Any:
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind == "i":
            return struct.unpack("<i", self._bytes(4))[0]
        if kind == "g":
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == "l":
            num_digits = struct.unpack("<i", self._bytes(4))[0]
            if abs(num_digits) > _MAX_DIGITS:
                raise ValueError(f"it has an integer of {abs(num_digits):,} digits")
            digits = [struct.unpack("<H", self._bytes(2))[0] for _ in range(abs(num_digits))]
            value = sum(digit << 15 * place for place, digit in enumerate(digits))
            return -value if num_digits < 0 else value
        if kind in "zZ":
            return self._bytes(self._bytes(1)[0]).decode("latin-1")
        if kind in "aAutsS":
            return self._bytes(self._size()).decode("utf-8", "replace")
        if kind in "()":
            size = self._size() if kind == "(" else self._bytes(1)[0]
            if size > _MAX_ITEMS:
                raise ValueError(f"it has a tuple of {size:,} items")
            return tuple(self.value(depth + 1) for _ in range(size))
        if kind == "{":
            items: dict[Any, Any] = {}
            while (key := self.value(depth + 1)) is not _END:
                if not _is_flat(key):
                    raise ValueError("it has a function whose name contains others")
                items[key] = self.value(depth + 1)
            return items
        raise ValueError(f"it has a value of an unexpected type {kind!r} at byte {self._at - 1:,}")

    def _size(self) -> int:
        size = struct.unpack("<i", self._bytes(4))[0]
        if size < 0:
            raise ValueError(f"it has a size of {size}")
        return size

    def _bytes(self, size: int) -> bytes:
        if self._at + size > len(self._content):
            raise ValueError("it ends too early")
        self._at += size
        return self._content[self._at - size : self._at]


def _is_flat(value: Any) -> bool:
    """Return whether a value is a text, a number, or a tuple of them."""
    items = value if isinstance(value, tuple) else (value,)
    return not any(isinstance(item, tuple | dict) for item in items)


_END = object()
_CONSTANTS = {"0": _END, "N": None, "F": False, "T": True}
